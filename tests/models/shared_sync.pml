/* Shared sync and its recovery: core/wal (sync_group, redo_file, replay), as a model for Spin.
 *
 * Two queues with a segment each, BATCHES batches for each, and two redo files of RECORDS records. A batch is a bit. For each segment
 * there are four sets: what the process keeps in memory (late), what the system has (cached), what is on the disk
 * (durable), and what was confirmed. The power may be cut before each step, also while a start writes the records again;
 * a cut keeps any part of what was not synced. A sync of a segment may fail, and the system then forgets any part of
 * what was cached. Invariant: after each start, everything that was confirmed is durable.
 *
 * The plants are mistakes that the model must find:
 *   PLANT_REUSE    a full redo file is used again before its segments are synced
 *   PLANT_CONFIRM  a record is confirmed before its redo file is synced
 *   PLANT_KEEP     redo files are used again after a sync of a segment has failed
 *   PLANT_REMOVE   a start removes the redo files before the segments are synced
 *   PLANT_LATE     a segment is noted for its redo file only when its commit is reported (bug 25)
 */

#define BATCHES 3
#define ALL 7                 /* the bits of BATCHES batches */
#define RECORDS 2             /* that a redo file takes */
#define CUTS 3

mtype = { idle, recorded, alone, retiring, starting, written, written_again, synced_again };

byte late[2], cached[2], durable[2], confirmed[2];
byte next[2];                 /* the next batch, as a bit */
byte parts[4];                /* what a redo file has: parts[2 * file + queue] */
byte records[2], touched[2];  /* of each file: records in it, and the segments that it has parts of, as bits */
byte current;                  /* the file that is written to */
byte due;                     /* the segments that are still to be synced for a full file, as bits */
byte one;                     /* the queue that commits alone */
bool kept;                    /* a sync of a segment has failed: no file is written or used again until the next start */
byte cuts;
mtype stage = idle;

/* Of what is cached and not durable, any part is durable now and the rest is lost. */
inline lose(q) {
    bit_ = 1;
    do
    :: bit_ > ALL -> break
    :: else ->
        if
        :: (cached[q] & bit_) && !(durable[q] & bit_) -> durable[q] = durable[q] | bit_
        :: true
        fi;
        bit_ = bit_ << 1
    od;
    cached[q] = durable[q]
}

inline write_late(q) { cached[q] = cached[q] | late[q]; late[q] = 0 }

/* Sync a segment; it may fail once, and then the system forgets a part of what it had cached. */
inline sync_segment(q) {
    write_late(q);
    ok = true;
    if
    :: durable[q] = cached[q]
    :: !kept -> lose(q); kept = true; ok = false
    fi
}

inline forget_file(f) { records[f] = 0; touched[f] = 0; parts[2 * f] = 0; parts[2 * f + 1] = 0 }

inline confirm(q) { confirmed[q] = confirmed[q] | next[q]; next[q] = next[q] << 1 }

inline check(q) { assert((confirmed[q] & (ALL - durable[q])) == 0) }

active proctype system() {
    byte bit_;
    bool ok;
    next[0] = 1; next[1] = 1;
    do
    /* Both queues commit in one turn: a record is written and synced. Before that it is whole or torn, and has not been
       answered, so a cut before the sync is a cut before this step. */
    :: atomic { stage == idle && !kept && records[current] < RECORDS && next[0] <= ALL && next[1] <= ALL ->
#ifdef PLANT_CONFIRM
        confirmed[0] = confirmed[0] | next[0]; confirmed[1] = confirmed[1] | next[1]; stage = written }
    :: atomic { stage == written ->
#endif
        parts[2 * current] = parts[2 * current] | next[0]; parts[2 * current + 1] = parts[2 * current + 1] | next[1];
        late[0] = late[0] | next[0]; late[1] = late[1] | next[1];
        records[current]++;
#ifndef PLANT_LATE
        touched[current] = 3;
#endif
        stage = recorded }
    :: atomic { stage == recorded -> confirm(0); confirm(1); stage = idle }
#ifdef PLANT_LATE
    :: atomic { stage == idle && records[current] && records[current] < RECORDS -> touched[current] = 3 }
#endif
    /* One queue commits alone. */
    :: atomic { stage == idle && next[0] <= ALL -> one = 0; late[0] = late[0] | next[0]; stage = alone }
    :: atomic { stage == idle && next[1] <= ALL -> one = 1; late[1] = late[1] | next[1]; stage = alone }
    :: atomic { stage == alone ->
        sync_segment(one);
        if
        :: ok -> confirm(one)
        :: else -> next[one] = next[one] << 1
        fi;
        stage = idle }
    /* What is late is written. */
    :: atomic { stage != starting && (late[0] || late[1]) -> write_late(0); write_late(1) }
    /* The redo file is full: sync its segments one by one, then use it again, and the other one until then. */
    :: atomic { stage == idle && !kept && records[current] == RECORDS ->
        due = touched[current]; stage = retiring;
#ifdef PLANT_REUSE
        forget_file(current)
#endif
        }
    :: atomic { stage == retiring && (due & 1) -> sync_segment(0); due = due & 2 }
    :: atomic { stage == retiring && (due & 2) -> sync_segment(1); due = due & 1 }
    :: atomic { stage == retiring && due == 0 ->
        stage = idle;
        if
#ifdef PLANT_KEEP
        :: true -> forget_file(current); current = 1 - current
#else
        :: !kept -> forget_file(current); current = 1 - current
        :: else
#endif
        fi }
    /* The power is cut, at any moment, also of a start. */
    :: atomic { cuts < CUTS ->
        cuts++;
        lose(0); lose(1);
        late[0] = 0; late[1] = 0; due = 0;
        stage = starting }
    /* A start writes the parts of all records to their segments, syncs these, and removes the files. */
    :: atomic { stage == starting ->
        cached[0] = cached[0] | parts[0] | parts[2]; cached[1] = cached[1] | parts[1] | parts[3];
#ifdef PLANT_REMOVE
        forget_file(0); forget_file(1);
#endif
        stage = written_again }
    :: atomic { stage == written_again -> durable[0] = cached[0]; durable[1] = cached[1]; stage = synced_again }
    :: atomic { stage == synced_again ->
        forget_file(0); forget_file(1); current = 0; kept = false;
        /* a batch that was not confirmed may be there or not; its number is not used again */
        check(0); check(1);
        stage = idle }
    :: stage == idle && cuts == CUTS && next[0] > ALL && next[1] > ALL -> break
    od
}
