// Publishing: keeps unconfirmed messages in order, and sends them again on each new connection until they are confirmed.
//
// A series has all messages that the client sends to one destination. They are numbered, and each requests a receipt with its
// series and number; messages with an idempotency key have their own series. If a connection is lost, unconfirmed messages are
// sent again on the next one, first and in order. When a queue is full, its series waits: after the time that the server
// named, the first message is sent as a probe, and all others once it is stored.
//
// Messages to a queue also have a number for the server, which stores each number of a producer once, and none after a gap.
// If a message is refused for good, the messages sent after it are refused because of the gap. They wait like those of a full
// queue, and the first of them then names the last number that is stored.

import { Refused, Unknown } from "./errors.js";
import { frame } from "./frames.js";

const FULL_RETRY_S = 1; // the pause before a full queue is tried again, if the server names none
const LOOK_AGAIN_MS = 50;
const FULL_WARNING_MS = 60_000; // the least interval between warnings about a full queue

class Series {
  number = 0;
  unconfirmed = new Map(); // number → sending, in order
  waiting = null; // number → sending, while messages wait; else null
  probe = null; // the first of them, once it was sent again
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
  #isNumbered = true; // whether the server stores numbers, as far as is known
  #allSeries = new Map(); // destination → series
  #byIndex = [];

  constructor(write, waitsWhenFull) {
    this.#write = write;
    this.#waitsWhenFull = waitsWhenFull;
  }

  /** Send a message with these headers; return a promise of the result. */
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
    if (series.waiting) series.waiting.set(number, sending);
    else this.#write(sending.bytes);
    return sending.ended;
  }

  /** Handle a RECEIPT. */
  receipt(headers) {
    const sending = this.#named(headers["receipt-id"]);
    if (!sending) return;
    const status = Number(headers["x-error-code"] ?? 0);
    if (headers["x-expected"]) {
      sending.expected = Number(headers["x-expected"]);
      this.#wait(sending, 0);
    } else if (status === 507 && this.#waitsWhenFull) {
      this.#warnOfFull(sending, headers["x-error"]);
      this.#wait(sending, Number(headers["retry-after"] ?? FULL_RETRY_S));
    } else if (status) {
      this.#end(sending, new Refused(headers["x-error"], status));
    } else {
      this.#remove(sending, true);
      const maybeRepeated = sending.isRepeated && !sending.isNumbered && !sending.series.isKeyed;
      sending.resolve({ id: headers["x-msg-id"] ?? "", maybeRepeated, repeated: "x-duplicate" in headers });
    }
  }

  /** Handle an ERROR that names the receipt of a message as its cause. */
  refused(receipt, error) {
    const sending = this.#named(receipt);
    if (sending) this.#end(sending, error);
  }

  /** Send unconfirmed messages again, in order, on a new connection. */
  connected(keepsNumbers) {
    this.#isUp = true;
    if (this.#isNumbered && !keepsNumbers) this.#dropNumbers();
    for (const series of this.#byIndex) {
      this.#forget(series);
      for (const { bytes } of series.unconfirmed.values()) this.#write(bytes);
    }
  }

  /** The connection has ended: messages that were sent may be on disk; waiting ones were not sent. */
  disconnected() {
    this.#isUp = false;
    for (const series of this.#byIndex) {
      for (const sending of series.unconfirmed.values()) {
        sending.isRepeated ||= !series.waiting?.has(sending.number) || sending === series.probe;
      }
      this.#forget(series);
    }
  }

  /** Return the promises of all unconfirmed messages. */
  pending() {
    return this.#byIndex.flatMap((series) => [...series.unconfirmed.values()].map((each) => each.ended));
  }

  /** Reject all unconfirmed messages. */
  rejectAll(error) {
    for (const series of this.#byIndex) {
      this.#forget(series);
      for (const sending of series.unconfirmed.values()) sending.reject(error);
      series.unconfirmed.clear();
    }
  }

  close() {
    this.rejectAll(new Unknown("the client was closed before the confirm arrived"));
  }

  // ---------------------------------------------------------------- private

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
    series.waiting = series.probe = series.timer = null;
  }

  #warnOfFull({ series, headers: { destination } }, text) {
    if (Date.now() - series.warnedAt < FULL_WARNING_MS) return;
    series.warnedAt = Date.now();
    console.warn(`@curbstone/client: publishing to ${destination} waits until there is room: ${text}`);
  }

  /** Let a message, and all later ones of its series, wait for so many seconds. */
  #wait(sending, seconds) {
    const { series } = sending;
    const isNew = !series.waiting;
    series.waiting ??= new Map();
    series.waiting.set(sending.number, sending);
    if (seconds || isNew || sending === series.probe) this.#tryIn(series, 1000 * seconds);
    if (sending === series.probe) series.probe = null;
  }

  #tryIn(series, ms) {
    clearTimeout(series.timer);
    series.timer = setTimeout(() => this.#try(series), ms);
  }

  /** Send the first waiting message of a series as a probe, once all messages before it have ended. */
  #try(series) {
    if (!series.waiting || series.probe || !this.#isUp) return;
    const { first } = series;
    if (!series.waiting.has(first.number)) {
      this.#tryIn(series, LOOK_AGAIN_MS);
      return;
    }
    series.probe = first;
    this.#write(first.expected ? frame("SEND", { ...first.headers, "x-after": first.expected - 1 }, first.body) : first.bytes);
  }

  #end(sending, error) {
    this.#remove(sending, false);
    sending.reject(error);
  }

  /**
   * Remove a message that has ended. If it was the probe, there may be room for the others. In a numbered series whose probe was
   * refused, only the next message can be sent; the others would be refused because of the gap.
   */
  #remove(sending, isStored) {
    const { series } = sending;
    series.unconfirmed.delete(sending.number);
    if (!series.waiting) return;
    series.waiting.delete(sending.number);
    const isProbe = sending === series.probe;
    if (series.waiting.size && sending.isNumbered && !isStored) {
      if (!isProbe) return;
      series.probe = null;
      this.#tryIn(series, 0);
    } else if (isProbe || !series.waiting.size) {
      const waiting = [...series.waiting.values()].sort((a, b) => a.number - b.number);
      this.#forget(series);
      for (const { bytes } of waiting) this.#write(bytes);
    }
  }

  /** Remove the numbers, which this server does not store: a message that is sent again may be stored twice. */
  #dropNumbers() {
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
