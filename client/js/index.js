// The client of Curbstone for browsers, Node.js, Deno and Bun: STOMP 1.2 through the WebSocket /stomp.
//
// What is unconfirmed when the connection is lost goes out again on the next, first and in order, under the number it had in
// its queue; what the server has already it does not store again. A delivery belongs to its connection: settling it later
// does nothing, and the message comes again.

import { frame, join, Parser } from "./frames.js";

const BEAT_MS = 10_000;
const SILENT_MS_MAX = 20_000;
const RETRY_MS_MIN = 50;
const RETRY_MS_MAX = 5_000;
const REFUSED_RETRY_MS = 30_000;
const RENEW_AFTER = 0.8; // of the time that a login has left
const RENEW_MS_MIN = 1_000;
const RENEW_MS_MAX = 86_400_000;
const RENEW_AGAIN_MS = 5_000;
const LOOK_AGAIN_MS = 50;
const HANDLER_RETRY_S_MAX = 300;
const PREFIX = "x-msg-x-";
const PASSED = new Set(["correlation-id", "reply-to", "traceparent", "tracestate", "baggage"]);
const SERVERS = new Set([
  ...["subscription", "message-id", "destination", "ack", "content-length", "content-type", "timestamp"],
  ...["redelivered", "x-tries", "x-mature"],
]);

/** The server said no: nothing was stored. `status` as in HTTP. */
export class Refused extends Error {
  name = "Refused";

  constructor(text, status) {
    super(text);
    this.status = status;
  }
}

/** Given up before the answer came: it may have been stored, or not. */
export class Unknown extends Error {
  name = "Unknown";
}

/** Thrown by a handler: the message goes to the dead-letter queue, with this text as the reason. */
export class Reject extends Error {
  name = "Reject";
}

/** Thrown by a handler: the message comes again after so many seconds. */
export class Retry extends Error {
  name = "Retry";

  constructor(delay = 0, reason = `again in ${delay} s`) {
    super(reason);
    this.delay = delay;
  }
}

/** A message as it was delivered. */
export class Message {
  #raw;

  constructor({ headers, body }) {
    this.#raw = headers;
    this.body = body;
    this.id = headers["message-id"];
    this.tries = Number(headers["x-tries"] ?? 0);
    this.type = headers["content-type"] ?? "";
    this.timestamp = new Date(Number(headers.timestamp ?? 0));
  }

  /** What the application gave as headers. */
  get headers() {
    const named = Object.entries(this.#raw).filter(([name]) => !SERVERS.has(name));
    return Object.fromEntries(named.map(([name, value]) => [name.startsWith(PREFIX) ? name.slice(PREFIX.length) : name, value]));
  }

  get text() {
    return new TextDecoder().decode(this.body);
  }

  json() {
    return JSON.parse(this.text);
  }
}

/** A client of one server. It connects on first use, and again by itself whenever the connection is lost. */
export class Client {
  #url;
  #options;
  #socket = null;
  #isUp = false;
  #isClosed = false;
  #parser = new Parser();
  #retryMs = RETRY_MS_MIN;
  #notBeforeMs = 0; // the server wants no other try for so long
  #heardAt = 0;
  #beat = null;
  #renewal = null;
  #number = 0;
  #output = [];
  #bodyMax = Infinity;
  #producer = `js-${[0, 0].map(() => Math.random().toString(36).slice(2)).join("")}`; // a name that nobody else has
  #isNumbered = true; // whether the server keeps numbers, as far as is known
  #lanes = new Map(); // destination → { index, number }
  #unconfirmed = new Map(); // receipt → { headers, body, bytes, resolve, reject, ended, destination, number, expected, isRepeated }
  #held = new Map(); // destination → receipts that wait for room, in order
  #subscriptions = new Map(); // id → { destination, prefetch, ack, deliver }

  /**
   * `options`: project, token (text, or a function that may be async and is asked at each connection), onFull ("wait" or
   * "raise"), onRefused (called with Refused when the login is wrong), WebSocket.
   */
  constructor(url, options = {}) {
    const { protocol, host, pathname } = new URL(url);
    if (!/^(http|ws)s?:$/.test(protocol)) throw new TypeError("an address begins with http or https");
    this.#url = `${protocol.replace("http", "ws")}//${host}${pathname.replace(/\/$/, "")}/stomp`;
    this.#options = { project: "default", onFull: "wait", WebSocket: globalThis.WebSocket, ...options };
    if (!this.#options.WebSocket) throw new TypeError("no WebSocket here; give one: { WebSocket } from \"ws\"");
  }

  /** Publish to a queue. Resolves when it is on disk: { id, maybeRepeated, repeated }. Rejects with Refused or Unknown. */
  publish(queue, body, options = {}) {
    return this.#send(this.#destination("queue", queue), body, options);
  }

  /** Publish to an event: a copy for each queue bound to it and each subscriber. */
  publishEvent(event, body, options = {}) {
    return this.#send(this.#destination("topic", event), body, options);
  }

  /** Call `handler` with what is published to an event from now on. Returns { stop() }. */
  subscribe(event, handler) {
    return this.#subscribe(this.#destination("topic", event), { ack: "auto", prefetch: 100 }, handler);
  }

  /**
   * Call `handler` with each message of a queue, `parallel` at a time. It returns: the message is acked. It throws: the message
   * comes again after 1, 2, 4 … 300 s, give or take 15 %; see Reject and Retry. Returns { stop() }.
   */
  worker(queue, handler, { parallel = 1, prefetch = 2 * parallel } = {}) {
    const waiting = [];
    let running = 0;
    const next = () => {
      while (running < parallel && waiting.length) {
        const delivery = waiting.shift();
        if (delivery.socket !== this.#socket) continue; // its connection is gone, and it comes again
        running += 1;
        this.#handle(delivery, handler).finally(() => {
          running -= 1;
          next();
        });
      }
    };
    const ack = "client-individual";
    return this.#subscribe(this.#destination("queue", queue), { ack, prefetch }, (message, headers) => {
      waiting.push({ message, ack: headers.ack, socket: this.#socket });
      next();
    });
  }

  /** Wait until all that was published so far has ended, and disconnect. */
  async close(timeoutMs = 10_000) {
    const ends = [...this.#unconfirmed.values()].map((each) => each.ended);
    let timer;
    await Promise.race([Promise.allSettled(ends), new Promise((done) => (timer = setTimeout(done, timeoutMs)))]);
    clearTimeout(timer);
    this.#isClosed = true;
    for (const each of this.#unconfirmed.values()) each.reject(new Unknown("the client was closed before the confirm came"));
    this.#unconfirmed.clear();
    this.#socket?.close(1000);
  }

  // ---------------------------------------------------------------- publishing

  #destination(kind, name) {
    const parts = name.includes("/") ? name.split("/") : [this.#options.project, name];
    if (parts.length !== 2 || parts.includes("")) throw new TypeError(`a queue is named queue or project/queue, not ${name}`);
    return `/${kind}/${parts.join("/")}`;
  }

  #send(destination, body, { headers = {}, type, delay, ttl }) {
    const [bytes, kind] = encoded(body);
    const named = { destination, "content-length": bytes.length };
    if (type ?? kind) named["content-type"] = type ?? kind;
    if (delay) named["x-delta-t"] = Math.round(delay * 1000);
    if (ttl !== undefined) named.expiration = Math.round(ttl * 1000);
    for (const [name, value] of Object.entries(headers)) {
      named[PASSED.has(name.toLowerCase()) ? name.toLowerCase() : PREFIX + name] = value;
    }
    if (bytes.length > this.#bodyMax) {
      return Promise.reject(new Refused(`a body of ${bytes.length} bytes is larger than ${this.#bodyMax}`, 413));
    }
    if (this.#isClosed) return Promise.reject(new Unknown("the client is closed"));
    if (!this.#lanes.has(destination)) this.#lanes.set(destination, { index: this.#lanes.size + 1, number: 0 });
    const lane = this.#lanes.get(destination);
    const receipt = (named.receipt = `p${lane.index}.${(lane.number += 1)}`);
    if (this.#isNumbered && destination.startsWith("/queue/")) named["x-producer"] = this.#producer;
    const sending = { headers: named, body: bytes, bytes: frame("SEND", named, bytes), destination, number: lane.number };
    Object.assign(sending, { isRepeated: false, expected: 0 });
    sending.ended = new Promise((resolve, reject) => Object.assign(sending, { resolve, reject }));
    this.#unconfirmed.set(receipt, sending);
    if (this.#held.has(destination)) this.#held.get(destination).push(receipt);
    else this.#write(sending.bytes);
    return sending.ended;
  }

  #receipt({ headers }) {
    const receipt = headers["receipt-id"];
    if (receipt === "token") {
      if (headers["x-error-code"]) this.#renewIn(RENEW_AGAIN_MS);
      else this.#renewBefore(headers);
      return;
    }
    const sending = this.#unconfirmed.get(receipt);
    if (!sending) return;
    if (headers["x-expected"]) {
      sending.expected = Number(headers["x-expected"]);
      this.#hold(receipt, sending, 0);
      return;
    }
    if (headers["x-error-code"] === "507" && this.#options.onFull === "wait") {
      this.#hold(receipt, sending, Number(headers["retry-after"] ?? 1));
      return;
    }
    this.#unconfirmed.delete(receipt);
    if (headers["x-error-code"]) sending.reject(new Refused(headers["x-error"], Number(headers["x-error-code"])));
    else {
      const isNumbered = "x-producer" in sending.headers;
      const maybeRepeated = sending.isRepeated && !isNumbered;
      sending.resolve({ id: headers["x-msg-id"] ?? "", maybeRepeated, repeated: "x-duplicate" in headers });
    }
    const held = this.#held.get(sending.destination);
    if (held?.[0] !== receipt) return;
    if (headers["x-error-code"] && "x-producer" in sending.headers && held.length > 1) {
      held.shift(); // those behind it would come too early, but for the first
      this.#probe(sending.destination);
      return;
    }
    // The first of those that waited has ended: the others may go.
    this.#held.delete(sending.destination);
    for (const each of held.slice(1)) this.#write(this.#unconfirmed.get(each).bytes);
  }

  #hold(receipt, sending, seconds) {
    const held = this.#held.get(sending.destination) ?? [];
    if (!held.includes(receipt)) held.push(receipt);
    held.sort((a, b) => (this.#unconfirmed.get(a)?.number ?? 0) - (this.#unconfirmed.get(b)?.number ?? 0));
    const isFirst = held[0] === receipt;
    this.#held.set(sending.destination, held);
    if (isFirst) setTimeout(() => this.#held.get(sending.destination)?.[0] === receipt && this.#probe(sending.destination), seconds * 1000);
  }

  /** Send the first of what is held, to see whether it is taken now; not before all in front of it have ended. */
  #probe(destination) {
    const [receipt] = this.#held.get(destination);
    const sending = this.#unconfirmed.get(receipt);
    if (!sending) return;
    const first = [...this.#unconfirmed.values()].find((each) => each.destination === destination);
    if (first !== sending) {
      setTimeout(() => this.#held.get(destination)?.[0] === receipt && this.#probe(destination), LOOK_AGAIN_MS);
    } else if (sending.expected) {
      this.#write(frame("SEND", { ...sending.headers, "x-after": sending.expected - 1 }, sending.body));
    } else {
      this.#write(sending.bytes);
    }
  }

  /** The server keeps no numbers: what is sent again may be stored twice. */
  #goWithoutNumbers() {
    this.#isNumbered = false;
    for (const sending of this.#unconfirmed.values()) {
      delete sending.headers["x-producer"];
      sending.bytes = frame("SEND", sending.headers, sending.body);
    }
  }

  // ---------------------------------------------------------------- consuming

  #subscribe(destination, { ack, prefetch }, deliver) {
    const id = String((this.#number += 1));
    const headers = { id, destination, ack, "prefetch-count": prefetch };
    this.#subscriptions.set(id, { request: frame("SUBSCRIBE", headers), deliver });
    this.#write(this.#subscriptions.get(id).request);
    return {
      stop: () => {
        if (this.#subscriptions.delete(id)) this.#write(frame("UNSUBSCRIBE", { id }));
      },
    };
  }

  #message(received) {
    const { subscription, ack } = received.headers;
    const found = this.#subscriptions.get(subscription);
    if (found) found.deliver(new Message(received), received.headers);
    else if (ack) this.#write(frame("NACK", { id: ack, "x-delta-t": 0 })); // unsubscribed meanwhile
  }

  async #handle({ message, ack, socket }, handler) {
    let settling;
    try {
      await handler(message);
      settling = frame("ACK", { id: ack });
    } catch (error) {
      const headers = { id: ack, error: String(error?.message ?? error).slice(0, 1000) };
      if (error instanceof Reject) headers.requeue = "false";
      else headers["x-delta-t"] = Math.round(1000 * (error instanceof Retry ? error.delay : backOff(message.tries)));
      settling = frame("NACK", headers);
    }
    if (socket === this.#socket && this.#isUp) this.#write(settling);
  }

  // ---------------------------------------------------------------- the connection

  #write(bytes) {
    if (!this.#socket) this.#connect();
    if (!this.#isUp) return; // what matters is sent at CONNECTED
    if (this.#output.push(bytes) === 1) queueMicrotask(() => this.#flush());
  }

  #flush() {
    const output = this.#output;
    this.#output = [];
    // Cut, for a server takes no message that is larger than a body and its headers.
    if (output.length && this.#isUp) {
      const bytes = join(output);
      for (let at = 0; at < bytes.length; at += 65_536) this.#socket.send(bytes.subarray(at, at + 65_536));
    }
  }

  #connect() {
    if (this.#isClosed) return;
    const socket = new this.#options.WebSocket(this.#url, ["v12.stomp"]);
    socket.binaryType = "arraybuffer";
    this.#socket = socket;
    this.#parser = new Parser();
    socket.onopen = async () => {
      const { token } = this.#options;
      const secret = typeof token === "function" ? await token() : token;
      const headers = { "accept-version": "1.2", host: new URL(this.#url).hostname, "heart-beat": `${BEAT_MS},${BEAT_MS}` };
      headers["x-features"] = "refusals,ids,joined,numbers";
      if (secret) Object.assign(headers, { login: "", passcode: secret });
      if (socket === this.#socket && socket.readyState === 1) socket.send(frame("CONNECT", headers));
    };
    socket.onmessage = ({ data }) => socket === this.#socket && this.#received(data);
    socket.onerror = () => {}; // a close follows
    socket.onclose = () => socket === this.#socket && this.#lost();
  }

  #received(data) {
    this.#heardAt = Date.now();
    const bytes = typeof data === "string" ? new TextEncoder().encode(data) : new Uint8Array(data);
    for (const received of this.#parser.feed(bytes)) {
      if (received.command === "MESSAGE") this.#message(received);
      else if (received.command === "RECEIPT") this.#receipt(received);
      else if (received.command === "CONNECTED") this.#up(received);
      else if (received.command === "ERROR") this.#error(received);
    }
  }

  #up({ headers }) {
    this.#isUp = true;
    this.#bodyMax = Number(headers["x-body-max"] ?? Infinity);
    this.#retryMs = RETRY_MS_MIN;
    this.#beat = setInterval(() => {
      if (Date.now() - this.#heardAt > SILENT_MS_MAX) this.#lost();
      else this.#socket.send(new Uint8Array([10]));
    }, BEAT_MS / 2);
    this.#renewBefore(headers);
    if (this.#isNumbered && !(headers["x-features"] ?? "").split(",").includes("numbers")) this.#goWithoutNumbers();
    this.#held.clear();
    for (const { request } of this.#subscriptions.values()) this.#write(request);
    for (const { bytes } of this.#unconfirmed.values()) this.#write(bytes);
  }

  /** Log in again in time, where the login ends and there is a function to ask for another token. */
  #renewBefore({ "x-expires-in": leftMs }) {
    if (leftMs !== undefined && typeof this.#options.token === "function") this.#renewIn(Number(leftMs) * RENEW_AFTER);
  }

  #renewIn(ms) {
    const socket = this.#socket;
    this.#renewal = setTimeout(async () => {
      let secret;
      try {
        secret = await this.#options.token();
      } catch {} // the application's function failed; it is asked again as long as the login counts
      if (socket !== this.#socket || !this.#isUp) return;
      if (secret) this.#write(frame("SEND", { destination: "/session/token", receipt: "token" }, new TextEncoder().encode(secret)));
      else this.#renewIn(RENEW_AGAIN_MS);
    }, Math.min(Math.max(ms, RENEW_MS_MIN), RENEW_MS_MAX));
  }

  /** The server ends the connection. Of what it names the end is known; all else goes out again. */
  #error({ headers, body }) {
    const text = new TextDecoder().decode(body).trim() || headers.message;
    const refused = new Refused(text, Number(headers["x-error-code"] ?? 400));
    this.#notBeforeMs = 1000 * Number(headers["retry-after"] ?? 0);
    if (!this.#isUp && (refused.status === 401 || refused.status === 403)) this.#refuse(refused);
    const receipt = headers["receipt-id"];
    const sending = this.#unconfirmed.get(receipt);
    this.#unconfirmed.delete(receipt);
    sending?.reject(refused);
  }

  /** The login was looked at and is wrong: what waits for it is told, and a token that stays the same is not tried at once. */
  #refuse(refused) {
    if (typeof this.#options.token !== "function") this.#notBeforeMs = REFUSED_RETRY_MS;
    for (const each of this.#unconfirmed.values()) each.reject(refused);
    this.#unconfirmed.clear();
    this.#options.onRefused?.(refused);
  }

  #lost() {
    const socket = this.#socket;
    this.#socket = null;
    clearInterval(this.#beat);
    clearTimeout(this.#renewal);
    socket.close();
    if (this.#isUp) for (const sending of this.#unconfirmed.values()) sending.isRepeated = true;
    this.#isUp = false;
    this.#output = [];
    if (this.#isClosed) return;
    const wait = Math.max(this.#notBeforeMs, this.#retryMs * (0.5 + Math.random() / 2));
    this.#notBeforeMs = 0;
    this.#retryMs = Math.min(RETRY_MS_MAX, 2 * this.#retryMs);
    setTimeout(() => this.#socket ?? this.#connect(), wait);
  }
}

function encoded(body) {
  if (body instanceof Uint8Array) return [body, undefined];
  if (body instanceof ArrayBuffer) return [new Uint8Array(body), undefined];
  if (typeof body === "string") return [new TextEncoder().encode(body), "text/plain; charset=utf-8"];
  const text = JSON.stringify(body);
  if (text === undefined) throw new TypeError("a message is bytes, text or what JSON can say");
  return [new TextEncoder().encode(text), "application/json"];
}

function backOff(tries) {
  return Math.min(HANDLER_RETRY_S_MAX, 2 ** tries) * (0.85 + 0.3 * Math.random());
}
