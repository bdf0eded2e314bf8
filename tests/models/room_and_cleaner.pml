/* Room and cleaner: core/engine (log/room, compaction/cleaner and relocate, recovery/replay), as a model for Spin.
 *
 * The log of one queue has segments of up to SEGMENT records, of one byte each: a message, its settle, or a record of
 * its tries. A commit appends a batch, may begin a segment, and may drop the oldest one. Clients publish, release and settle
 * MESSAGES messages. The process may be killed before and during each commit, whose batch is then on disk or not.
 *
 * Invariants:
 *   cap         what the files hold, with the batch under way and the segment that it drops, is at most CAP
 *   promised    a settle and the first release of a message find room, perhaps after cleaning
 *   lost        after each start, a message that was confirmed and not settled is pending, with its confirmed tries
 *   returned    after each start, a message whose settle was confirmed is not pending
 *
 * The plants are mistakes that the model must find:
 *   PLANT_ADMIT    a publish may use the room for the copy of a segment
 *   PLANT_KEPT     a publish may use the room that is kept for releases
 *   PLANT_SETTLES  settles and releases may use the room for the copy
 *   PLANT_COPY     the cleaner copies a message that the same batch settles
 *   PLANT_TRIES    the cleaner copies messages, but not the records of their tries
 *   PLANT_EARLY    the oldest segment is removed before the batch with its copies is on disk
 *   PLANT_ORDER    a segment without live records is dropped before older ones
 */

#define MESSAGES 3
#define SEGMENT 2
#define SEGMENTS 8
#define SLACK 1
#define CAP 7
#define KILLS 2

#define NONE 255
#define ENTRY(m) (m)
#define SETTLE(m) (MESSAGES + (m))
#define TRIES(m) (2 * MESSAGES + (m))

/* Of a message, and of the record of its tries. A release or a settle is owed until it is in a batch. */
#define NEW 0
#define PENDING 1
#define OWED 2
#define IN_BATCH 3
#define SETTLED 4
#define RECORDED 4

byte record[SEGMENTS * SEGMENT];  /* the log; records of a segment from its first place on */
byte length[SEGMENTS];
byte segments = 1;
byte batch[SEGMENT];
byte batch_length;
bool drops, rolls, under_way;
byte through;                     /* how many of the oldest segments the cleaner has to drop in this pass */
byte held;                        /* records in the log */
byte state[MESSAGES], tries[MESSAGES];
byte entry_at[MESSAGES], tries_at[MESSAGES];  /* the segment of the last copy; NONE if there is none */
byte kills;

inline find_copies() {
    m = 0;
    do
    :: m == MESSAGES -> break
    :: else -> entry_at[m] = NONE; tries_at[m] = NONE; m++
    od;
    s = 0; held = 0;
    do
    :: s == segments -> break
    :: else ->
        p = 0;
        do
        :: p == length[s] -> break
        :: else ->
            r = record[s * SEGMENT + p];
            if
            :: r < MESSAGES -> entry_at[r] = s
            :: r >= 2 * MESSAGES -> tries_at[r - 2 * MESSAGES] = s
            :: else
            fi;
            held++; p++
        od;
        s++
    od;
    m = 0; p = 0; s = 0; r = 0
}

/* Bytes that are kept: one for each pending message without a record of its tries. `owed`: settles and releases that are not in a batch. */
inline count() {
    m = 0; kept = 0; owed = 0; live = 0;
    do
    :: m == MESSAGES -> break
    :: else ->
        if
        :: state[m] == PENDING ->
            live++;
            if :: tries[m] == RECORDED -> live++ :: else -> kept++ fi;
            if :: tries[m] == OWED -> owed++ :: else fi
        :: state[m] == OWED -> owed++
        :: else
        fi;
        m++
    od;
    m = 0;
#ifdef PLANT_KEPT
    kept = 0;
#endif
}

#ifdef PLANT_ADMIT
#define LEFT (CAP - held - SLACK)
#else
#define LEFT (CAP - held - SEGMENT - SLACK)
#endif
#ifdef PLANT_SETTLES
#define RECORDS_LEFT (CAP - held)
#else
#define RECORDS_LEFT (CAP - held - SEGMENT)
#endif

/* Whether a record of the oldest segment has to be copied. */
inline ask_live() {
    is_live = false;
    if
    :: r < MESSAGES && entry_at[r] == 0 ->
#ifdef PLANT_COPY
        is_live = state[r] == PENDING || state[r] == IN_BATCH
#else
        is_live = state[r] == PENDING
#endif
#ifndef PLANT_TRIES
    :: r >= 2 * MESSAGES && tries_at[r - 2 * MESSAGES] == 0 -> is_live = state[r - 2 * MESSAGES] == PENDING
#endif
    :: else
    fi
}

inline take_records() {
    m = 0;
    do
    :: m == MESSAGES -> break
    :: else ->
        if
        :: batch_length < SEGMENT && held + batch_length < held + RECORDS_LEFT ->
            if
            :: state[m] == OWED -> batch[batch_length] = SETTLE(m); batch_length++; state[m] = IN_BATCH
            :: state[m] == PENDING && tries[m] == OWED -> batch[batch_length] = TRIES(m); batch_length++; tries[m] = IN_BATCH
            :: else
            fi
        :: else
        fi;
        m++
    od;
    m = 0
}

/* Copy what is live of the oldest segment, as much as the batch has room for; drop it if that was all. */
inline take_copies() {
    p = 0; drops = true;
    do
    :: p == length[0] -> break
    :: else ->
        r = record[p];
        ask_live();
        if
        :: is_live && batch_length < SEGMENT -> batch[batch_length] = r; batch_length++
        :: is_live && batch_length == SEGMENT -> drops = false
        :: else
        fi;
        p++
    od;
    p = 0; r = 0; is_live = false;
    rolls = segments == 1
}

inline drop(which) {
    s = which;
    do
    :: s + 1 == segments -> break
    :: else ->
        length[s] = length[s + 1];
        p = 0;
        do
        :: p == SEGMENT -> break
        :: else -> record[s * SEGMENT + p] = record[(s + 1) * SEGMENT + p]; p++
        od;
        s++
    od;
    segments--;
    length[segments] = 0;
    p = 0;
    do
    :: p == SEGMENT -> break
    :: else -> record[segments * SEGMENT + p] = 0; p++
    od;
    s = 0; p = 0
}

inline write() {
    if
    :: rolls || length[segments - 1] + batch_length > SEGMENT -> segments++
    :: else
    fi;
    assert(segments <= SEGMENTS);
    p = 0;
    do
    :: p == batch_length -> break
    :: else ->
        record[(segments - 1) * SEGMENT + length[segments - 1]] = batch[p];
        length[segments - 1]++; p++
    od;
    p = 0;
#ifndef PLANT_EARLY
    if
    :: drops -> drop(0)
    :: else
    fi;
#endif
    find_copies()
}

inline forget_batch() {
    p = 0;
    do
    :: p == SEGMENT -> break
    :: else -> batch[p] = 0; p++
    od;
    p = 0; batch_length = 0; drops = false; rolls = false; under_way = false
}

inline confirm() {
    m = 0;
    do
    :: m == batch_length -> break
    :: else ->
        r = batch[m];
        if
        :: r < MESSAGES && state[r] == NEW -> state[r] = PENDING
        :: r >= MESSAGES && r < 2 * MESSAGES -> state[r - MESSAGES] = SETTLED
        :: r >= 2 * MESSAGES -> tries[r - 2 * MESSAGES] = RECORDED
        :: else
        fi;
        m++
    od;
    m = 0; r = 0
}

/* The log is read from its start: a message is pending if its entry is not followed by its settle. */
inline start() {
    m = 0;
    do
    :: m == MESSAGES -> break
    :: else ->
        s = 0; is_live = false;
        do
        :: s == segments -> break
        :: else ->
            p = 0;
            do
            :: p == length[s] -> break
            :: else ->
                if
                :: record[s * SEGMENT + p] == ENTRY(m) -> is_live = true
                :: record[s * SEGMENT + p] == SETTLE(m) -> is_live = false
                :: else
                fi;
                p++
            od;
            s++
        od;
        assert(is_live || state[m] != PENDING);   /* lost */
        assert(!is_live || state[m] != SETTLED);  /* returned */
        assert(!is_live || state[m] != PENDING || tries[m] != RECORDED || tries_at[m] != NONE);  /* lost tries */
        if
        :: is_live -> state[m] = PENDING
        :: !is_live && state[m] != NEW -> state[m] = SETTLED
        :: else
        fi;
        if
        :: is_live && tries_at[m] != NONE -> tries[m] = RECORDED
        :: else -> tries[m] = NEW
        fi;
        m++
    od;
    m = 0; s = 0; p = 0; is_live = false; through = 0
}

/* A client settles or releases a message. */
#define CLIENT(m) \
    :: atomic { !under_way && state[m] == PENDING -> state[m] = OWED } \
    :: atomic { !under_way && state[m] == PENDING && tries[m] == NEW -> tries[m] = OWED }

active proctype queue() {
    byte m, s, p, r;
    byte kept, owed, live;
    bool is_live;
    find_copies();
    do
    CLIENT(0)
    CLIENT(1)
    CLIENT(2)
    /* The cleaner begins a pass, because a publish or records have no room, or for another reason. */
    :: atomic { !under_way && through == 0 && held > 0 -> through = segments }
    /* A commit of records with copies, if a pass is under way, or else with a message. */
    :: atomic { !under_way ->
        d_step {
            count();
            assert(through || !owed || RECORDS_LEFT > 0 || held > live);  /* promised */
            take_records();
            if
            :: through -> take_copies()
            :: else
            fi };
        if
        :: !through && batch_length < SEGMENT && LEFT - batch_length - kept >= 1 ->
            if
            :: state[0] == NEW -> r = 0
            :: state[0] != NEW && state[1] == NEW -> r = 1
            :: state[0] != NEW && state[1] != NEW && state[2] == NEW -> r = 2
            :: r = NONE
            fi;
            if
            :: r != NONE -> batch[batch_length] = ENTRY(r); batch_length++
            :: else
            fi;
            r = 0
        :: else
        fi;
        kept = 0; owed = 0; live = 0;
        if
        :: batch_length || drops ->
            assert(held + batch_length <= CAP);  /* cap */
            under_way = true;
#ifdef PLANT_EARLY
            d_step { if :: drops && segments > 1 -> drop(0); find_copies() :: else fi }
#endif
        :: else
        fi }
    /* It succeeds. */
    :: atomic { under_way ->
        d_step {
            write();
            confirm();
            if :: drops && through -> through-- :: else fi;
            forget_batch() } }
#ifdef PLANT_ORDER
    :: atomic { !under_way && segments > 2 && record[SEGMENT] >= MESSAGES && (length[1] < 2 || record[SEGMENT + 1] >= MESSAGES) ->
        d_step { drop(1); find_copies(); through = 0 } }
#endif
    /* The process is killed; a batch under way is on disk or not. */
    :: atomic { kills < KILLS ->
        kills++;
        if
        :: under_way -> d_step { write() }
        :: true
        fi;
        d_step { forget_batch(); start() } }
    :: state[0] == SETTLED && state[1] == SETTLED && state[2] == SETTLED -> break
    od
}
