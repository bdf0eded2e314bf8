// Publishing: what was sent and is not confirmed, in order, over as many connections as it takes.
//
// A lane is all that one client sends to one destination; its messages are numbered, and each asks for a receipt that says
// lane and number; those with an idempotency key have a lane and numbers of their own. What is unconfirmed when a connection is lost goes out again on the next, first and in order. A lane whose
// queue is full is held: after the time that the server said its first message is tried, and all others behind it once that
// one is stored.
//
// What goes to a queue is numbered for the server, too, which stores a number of this producer once, and none behind one
// that is missing. Where a message is refused for good, those behind it on their way are refused as coming too early; they
// are held like those of a full queue, and the first of them then names the last that is stored.

import { Refused, Unknown } from "./errors.js";
import { frame } from "./frames.js";

const FULL_RETRY_S = 1; // after so long a full queue is tried again, if the server names no time
const LOOK_AGAIN_MS = 50;
const FULL_WARNING_MS = 60_000; // a publisher that waits for a full queue is reported at most once in so long

class Lane {
  number = 0;
  unconfirmed = new Map(); // number → sending, in order
  held = null; // number → sending: what waits for room; null while the lane is open
  probe = null; // the first of those, once it was sent again
  timer = null;
  warnedAt = -Infinity;

  constructor(index, isKeyed) {
    this.index = index;
    this.isKeyed = isKeyed;
  }

  get first() {
    return this.unconfirmed.values().next().value;
  }
}

export class Publisher {
  #write; // sends a frame, while connected
  #waitsWhenFull;
  #isUp = false;
  #producer = `js-${[0, 0].map(() => Math.random().toString(36).slice(2)).join("")}`; // a name that nobody else has
  #isNumbered = true; // whether the server keeps numbers, as far as is known
  #lanes = new Map(); // destination → lane
  #byIndex = [];

  constructor(write, waitsWhenFull) {
    this.#write = write;
    this.#waitsWhenFull = waitsWhenFull;
  }

  /** Send a message with these headers; the promise ends as the message does. */
  send(destination, headers, body) {
    const lane = this.#lane(destination, "idempotency-key" in headers);
    const number = (lane.number += 1);
    const named = { destination, ...headers, receipt: `p${lane.index}.${number}` };
    const isNumbered = this.#isNumbered && !lane.isKeyed && destination.startsWith("/queue/");
    if (isNumbered) named["x-producer"] = this.#producer;
    const sending = { lane, number, headers: named, body, bytes: frame("SEND", named, body), isNumbered, isRepeated: false, expected: 0 };
    sending.ended = new Promise((resolve, reject) => Object.assign(sending, { resolve, reject }));
    lane.unconfirmed.set(number, sending);
    if (lane.held) lane.held.set(number, sending);
    else this.#write(sending.bytes);
    return sending.ended;
  }

  /** A RECEIPT came. */
  receipt(headers) {
    const sending = this.#named(headers["receipt-id"]);
    if (!sending) return;
    const status = Number(headers["x-error-code"] ?? 0);
    if (headers["x-expected"]) {
      sending.expected = Number(headers["x-expected"]);
      this.#hold(sending, 0);
    } else if (status === 507 && this.#waitsWhenFull) {
      this.#warnOfFull(sending, headers["x-error"]);
      this.#hold(sending, Number(headers["retry-after"] ?? FULL_RETRY_S));
    } else if (status) {
      this.#end(sending, new Refused(headers["x-error"], status));
    } else {
      this.#leaves(sending, true);
      const maybeRepeated = sending.isRepeated && !sending.isNumbered && !sending.lane.isKeyed;
      sending.resolve({ id: headers["x-msg-id"] ?? "", maybeRepeated, repeated: "x-duplicate" in headers });
    }
  }

  /** The server ended the connection because of the message that asked for this receipt. */
  refused(receipt, error) {
    const sending = this.#named(receipt);
    if (sending) this.#end(sending, error);
  }

  /** Connected: what is unconfirmed goes out again, in order. */
  up(keepsNumbers) {
    this.#isUp = true;
    if (this.#isNumbered && !keepsNumbers) this.#goWithoutNumbers();
    for (const lane of this.#byIndex) {
      this.#forget(lane);
      for (const { bytes } of lane.unconfirmed.values()) this.#write(bytes);
    }
  }

  /** The connection has ended: what was sent may be on disk or not; what waited for room was not sent. */
  down() {
    this.#isUp = false;
    for (const lane of this.#byIndex) {
      for (const sending of lane.unconfirmed.values()) {
        sending.isRepeated ||= !lane.held?.has(sending.number) || sending === lane.probe;
      }
      this.#forget(lane);
    }
  }

  /** The ends of all that is unconfirmed. */
  ends() {
    return this.#byIndex.flatMap((lane) => [...lane.unconfirmed.values()].map((each) => each.ended));
  }

  /** Give up what is not confirmed. */
  endAll(error) {
    for (const lane of this.#byIndex) {
      this.#forget(lane);
      for (const sending of lane.unconfirmed.values()) sending.reject(error);
      lane.unconfirmed.clear();
    }
  }

  close() {
    this.endAll(new Unknown("the client was closed before the confirm arrived"));
  }

  // ---------------------------------------------------------------- inside

  #lane(destination, isKeyed) {
    const name = isKeyed ? `${destination} with keys` : destination;
    let lane = this.#lanes.get(name);
    if (!lane) {
      lane = new Lane(this.#byIndex.length, isKeyed);
      this.#lanes.set(name, lane);
      this.#byIndex.push(lane);
    }
    return lane;
  }

  #named(receipt) {
    const parts = /^p(\d+)\.(\d+)$/.exec(receipt ?? "");
    return parts && this.#byIndex[Number(parts[1])]?.unconfirmed.get(Number(parts[2]));
  }

  #forget(lane) {
    clearTimeout(lane.timer);
    lane.held = lane.probe = lane.timer = null;
  }

  #warnOfFull({ lane, headers: { destination } }, text) {
    if (Date.now() - lane.warnedAt < FULL_WARNING_MS) return;
    lane.warnedAt = Date.now();
    console.warn(`@curbstone/client: publishing to ${destination} waits until there is room: ${text}`);
  }

  /** Keep a message for so many seconds; what comes behind it on its lane waits, too. */
  #hold(sending, seconds) {
    const { lane } = sending;
    const isNew = !lane.held;
    lane.held ??= new Map();
    lane.held.set(sending.number, sending);
    if (seconds || isNew || sending === lane.probe) this.#tryIn(lane, 1000 * seconds);
    if (sending === lane.probe) lane.probe = null;
  }

  #tryIn(lane, ms) {
    clearTimeout(lane.timer);
    lane.timer = setTimeout(() => this.#try(lane), ms);
  }

  /** Send the first of what a lane holds, to see whether it is taken now; not before all in front of it have ended. */
  #try(lane) {
    if (!lane.held || lane.probe || !this.#isUp) return;
    const { first } = lane;
    if (!lane.held.has(first.number)) {
      this.#tryIn(lane, LOOK_AGAIN_MS);
      return;
    }
    lane.probe = first;
    this.#write(first.expected ? frame("SEND", { ...first.headers, "x-after": first.expected - 1 }, first.body) : first.bytes);
  }

  #end(sending, error) {
    this.#leaves(sending, false);
    sending.reject(error);
  }

  /**
   * A message has ended: if it was the one that was tried, there may be room for the others. Of a numbered lane, those behind
   * one that was refused would come too early, but for the first of them.
   */
  #leaves(sending, isStored) {
    const { lane } = sending;
    lane.unconfirmed.delete(sending.number);
    if (!lane.held) return;
    lane.held.delete(sending.number);
    const isProbe = sending === lane.probe;
    if (lane.held.size && sending.isNumbered && !isStored) {
      if (!isProbe) return;
      lane.probe = null;
      this.#tryIn(lane, 0);
    } else if (isProbe || !lane.held.size) {
      const waiting = [...lane.held.values()].sort((a, b) => a.number - b.number);
      this.#forget(lane);
      for (const { bytes } of waiting) this.#write(bytes);
    }
  }

  /** The server keeps no numbers: what is sent again may be stored twice. */
  #goWithoutNumbers() {
    this.#isNumbered = false;
    for (const lane of this.#byIndex) {
      for (const sending of lane.unconfirmed.values()) {
        delete sending.headers["x-producer"];
        sending.isNumbered = false;
        sending.bytes = frame("SEND", sending.headers, sending.body);
      }
    }
  }
}
