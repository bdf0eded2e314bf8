// Publishing: what was sent and is not confirmed, in order, over as many connections as it takes.
//
// A series is all that one client sends to one destination. Its messages are numbered, and each asks for a receipt with series
// and number; messages with an idempotency key are a series of their own. What is unconfirmed when a connection is lost is
// sent again on the next one, first and in order. When a queue is full, its series is held: after the time that the server
// named, its first message is tried, and all others once that one is stored.
//
// What goes to a queue is numbered for the server, too, which stores a number of this producer once, and none behind one
// that is missing. Where a message is refused for good, those behind it on their way are refused as coming too early; they
// are held like those of a full queue, and the first of them then names the last that is stored.

import { Refused, Unknown } from "./errors.js";
import { frame } from "./frames.js";

const FULL_RETRY_S = 1; // after so long a full queue is tried again, if the server names no time
const LOOK_AGAIN_MS = 50;
const FULL_WARNING_MS = 60_000; // a publisher that waits for a full queue is reported at most once in so long

class Series {
  number = 0;
  unconfirmed = new Map(); // number → sending, in order
  held = null; // number → sending: what waits for room; null while the series is open
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
  #producer = `js-${[0, 0].map(() => Math.random().toString(36).slice(2)).join("")}`; // unique to this client
  #isNumbered = true; // whether the server keeps numbers, as far as is known
  #allSeries = new Map(); // destination → series
  #byIndex = [];

  constructor(write, waitsWhenFull) {
    this.#write = write;
    this.#waitsWhenFull = waitsWhenFull;
  }

  /** Send a message with these headers; the promise ends as the message does. */
  send(destination, headers, body) {
    const series = this.#series(destination, "idempotency-key" in headers);
    const number = (series.number += 1);
    const named = { destination, ...headers, receipt: `p${series.index}.${number}` };
    const isNumbered = this.#isNumbered && !series.isKeyed && destination.startsWith("/queue/");
    if (isNumbered) named["x-producer"] = this.#producer;
    const bytes = frame("SEND", named, body);
    const sending = { series, number, headers: named, body, bytes, isNumbered, isRepeated: false, expected: 0 };
    sending.ended = new Promise((resolve, reject) => Object.assign(sending, { resolve, reject }));
    series.unconfirmed.set(number, sending);
    if (series.held) series.held.set(number, sending);
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
      const maybeRepeated = sending.isRepeated && !sending.isNumbered && !sending.series.isKeyed;
      sending.resolve({ id: headers["x-msg-id"] ?? "", maybeRepeated, repeated: "x-duplicate" in headers });
    }
  }

  /** The server ended the connection because of the message that asked for this receipt. */
  refused(receipt, error) {
    const sending = this.#named(receipt);
    if (sending) this.#end(sending, error);
  }

  /** Connected: unconfirmed messages are sent again, in order. */
  up(keepsNumbers) {
    this.#isUp = true;
    if (this.#isNumbered && !keepsNumbers) this.#goWithoutNumbers();
    for (const series of this.#byIndex) {
      this.#forget(series);
      for (const { bytes } of series.unconfirmed.values()) this.#write(bytes);
    }
  }

  /** The connection has ended: what was sent may be on disk or not; what waited for room was not sent. */
  down() {
    this.#isUp = false;
    for (const series of this.#byIndex) {
      for (const sending of series.unconfirmed.values()) {
        sending.isRepeated ||= !series.held?.has(sending.number) || sending === series.probe;
      }
      this.#forget(series);
    }
  }

  /** The ends of all that is unconfirmed. */
  ends() {
    return this.#byIndex.flatMap((series) => [...series.unconfirmed.values()].map((each) => each.ended));
  }

  /** Give up what is not confirmed. */
  endAll(error) {
    for (const series of this.#byIndex) {
      this.#forget(series);
      for (const sending of series.unconfirmed.values()) sending.reject(error);
      series.unconfirmed.clear();
    }
  }

  close() {
    this.endAll(new Unknown("the client was closed before the confirm arrived"));
  }

  // ---------------------------------------------------------------- inside

  #series(destination, isKeyed) {
    const name = isKeyed ? `${destination} with keys` : destination;
    let series = this.#allSeries.get(name);
    if (!series) {
      series = new Series(this.#byIndex.length, isKeyed);
      this.#allSeries.set(name, series);
      this.#byIndex.push(series);
    }
    return series;
  }

  #named(receipt) {
    const parts = /^p(\d+)\.(\d+)$/.exec(receipt ?? "");
    return parts && this.#byIndex[Number(parts[1])]?.unconfirmed.get(Number(parts[2]));
  }

  #forget(series) {
    clearTimeout(series.timer);
    series.held = series.probe = series.timer = null;
  }

  #warnOfFull({ series, headers: { destination } }, text) {
    if (Date.now() - series.warnedAt < FULL_WARNING_MS) return;
    series.warnedAt = Date.now();
    console.warn(`@curbstone/client: publishing to ${destination} waits until there is room: ${text}`);
  }

  /** Keep a message for so many seconds; what comes behind it on its series waits, too. */
  #hold(sending, seconds) {
    const { series } = sending;
    const isNew = !series.held;
    series.held ??= new Map();
    series.held.set(sending.number, sending);
    if (seconds || isNew || sending === series.probe) this.#tryIn(series, 1000 * seconds);
    if (sending === series.probe) series.probe = null;
  }

  #tryIn(series, ms) {
    clearTimeout(series.timer);
    series.timer = setTimeout(() => this.#try(series), ms);
  }

  /** Send the first of what a series holds, to see whether it is taken now; not before all in front of it have ended. */
  #try(series) {
    if (!series.held || series.probe || !this.#isUp) return;
    const { first } = series;
    if (!series.held.has(first.number)) {
      this.#tryIn(series, LOOK_AGAIN_MS);
      return;
    }
    series.probe = first;
    this.#write(first.expected ? frame("SEND", { ...first.headers, "x-after": first.expected - 1 }, first.body) : first.bytes);
  }

  #end(sending, error) {
    this.#leaves(sending, false);
    sending.reject(error);
  }

  /**
   * A message has ended: if it was the one that was tried, there may be room for the others. Of a numbered series, those behind
   * one that was refused would come too early, but for the first of them.
   */
  #leaves(sending, isStored) {
    const { series } = sending;
    series.unconfirmed.delete(sending.number);
    if (!series.held) return;
    series.held.delete(sending.number);
    const isProbe = sending === series.probe;
    if (series.held.size && sending.isNumbered && !isStored) {
      if (!isProbe) return;
      series.probe = null;
      this.#tryIn(series, 0);
    } else if (isProbe || !series.held.size) {
      const waiting = [...series.held.values()].sort((a, b) => a.number - b.number);
      this.#forget(series);
      for (const { bytes } of waiting) this.#write(bytes);
    }
  }

  /** The server keeps no numbers: what is sent again may be stored twice. */
  #goWithoutNumbers() {
    this.#isNumbered = false;
    for (const series of this.#byIndex) {
      for (const sending of series.unconfirmed.values()) {
        delete sending.headers["x-producer"];
        sending.isNumbered = false;
        sending.bytes = frame("SEND", sending.headers, sending.body);
      }
    }
  }
}
