// The client of Curbstone for browsers, Node.js, Deno and Bun: STOMP 1.2 through the WebSocket /stomp.
//
// A delivery belongs to its connection: settling it later does nothing, and the message is redelivered. publishing.js has how
// published messages survive reconnects.

import { Refused, Reject, Retry, Unknown } from "./errors.js";
import { frame, join, Parser } from "./frames.js";
import { Publisher } from "./publishing.js";

export { Refused, Reject, Retry, Unknown };

const BEAT_MS = 10_000;
const SILENT_MS_MAX = 20_000;
const RETRY_MS_MIN = 50;
const RETRY_MS_MAX = 5_000;
const REFUSED_RETRY_MS = 30_000;
const RENEW_AFTER = 0.8; // of the remaining time of a login
const RENEW_MS_MIN = 1_000;
const RENEW_MS_MAX = 86_400_000;
const RENEW_AGAIN_MS = 5_000;
const HANDLER_RETRY_S_MAX = 300;
const PREFIX = "x-msg-x-";
const KEY = "idempotency-key";
const PASSED = new Set(["correlation-id", "reply-to", "traceparent", "tracestate", "baggage"]);
const SERVERS = new Set([
  ...["subscription", "message-id", "destination", "ack", "content-length", "content-type", "timestamp"],
  ...["redelivered", "x-tries", "x-mature", "x-key", "priority", "x-unique", "x-unique-until", "x-replace", "x-replace-max"],
  ...["x-batch", "x-batch-size", "x-batch-to"],
]);

/** A delivered message. */
export class Message {
  #raw;

  constructor({ headers, body }) {
    this.#raw = headers;
    this.body = body;
    this.id = headers["message-id"];
    this.tries = Number(headers["x-tries"] ?? 0);
    this.type = headers["content-type"] ?? "";
    this.key = headers["x-key"] ?? "";
    this.unique = headers["x-unique"] ?? "";
    this.replace = headers["x-replace"] ?? "";
    this.batch = headers["x-batch"] ?? "";
    this.priority = Math.min(/^\d+$/.test(headers.priority) ? Number(headers.priority) : 4, 9);
    this.timestamp = new Date(Number(headers.timestamp ?? 0));
  }

  /** The headers of the application. */
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

/** A client of one server, which may have several addresses. It connects on first use, and reconnects when the connection is lost. */
export class Client {
  #urls;
  #turn = 0; // the index of the current one
  #term = 0; // the highest term of the servers that it was connected to
  #options;
  #socket = null;
  #isUp = false;
  #isClosed = false;
  #parser = new Parser();
  #retryMs = RETRY_MS_MIN;
  #notBeforeMs = 0; // the server's Retry-After
  #why = ""; // why the connection ends, if known
  #receivedAt = 0;
  #beat = null;
  #retry = null; // the timer, while not connected
  #renewal = null;
  #number = 0;
  #output = [];
  #bodyMax = Infinity;
  #publisher;
  #subscriptions = new Map(); // id → { request, deliver, stop }
  #handling = new Set(); // the running handlers of workers

  /**
   * `url`: an address, or a list of addresses that are tried in turn. `options`: project, token (text, or a function that may be async and is asked at each connection), onFull ("wait" or
   * "raise"), onRefused (called with Refused when the login is wrong), WebSocket.
   */
  constructor(url, options = {}) {
    this.#urls = [url].flat().map((each) => {
      const { protocol, host, pathname } = new URL(each);
      if (!/^(http|ws)s?:$/.test(protocol)) throw new TypeError("an address begins with http or https");
      return `${protocol.replace("http", "ws")}//${host}${pathname.replace(/\/$/, "")}/stomp`;
    });
    if (!this.#urls.length) throw new TypeError("no address");
    this.#options = { project: "default", onFull: "wait", WebSocket: globalThis.WebSocket, ...options };
    if (!this.#options.WebSocket) throw new TypeError("no WebSocket here; give one: { WebSocket } from \"ws\"");
    this.#publisher = new Publisher((bytes) => this.#write(bytes), this.#options.onFull === "wait");
  }

  /** Publish to a queue. Resolves when it is on disk: { id, maybeRepeated, repeated }. Rejects with Refused or Unknown. */
  publish(queue, body, options = {}) {
    return this.#send(this.#destination("queue", queue), body, options);
  }

  /** Publish to an event: a copy for each queue bound to it and each subscriber. */
  publishEvent(event, body, options = {}) {
    return this.#send(this.#destination("topic", event), body, options);
  }

  /**
   * Call `handler` with each message that is published to an event from now on; with a `filter`, such as "region = 'eu'", only with
   * those whose headers match it. Returns { stop() }.
   */
  subscribe(event, handler, { filter } = {}) {
    return this.#subscribe(this.#destination("topic", event), { ack: "auto", prefetch: 100, filter }, handler);
  }

  /**
   * Call `handler` with each message of a queue, `parallel` at a time. If it returns, the message is acked. If it throws, the
   * error is reported to the console, and the message is redelivered after 1, 2, 4 … 300 s (± 15 %); see Reject and Retry.
   * `group` names a consumer group of the queue. Returns { stop() }.
   */
  worker(queue, handler, { group, parallel = 1, prefetch = 2 * parallel } = {}) {
    const waiting = [];
    let running = 0;
    const next = () => {
      while (running < parallel && waiting.length) {
        const delivery = waiting.shift();
        if (delivery.socket !== this.#socket) continue; // its connection is lost, and it is redelivered
        running += 1;
        const handling = this.#handle(queue, delivery, handler).finally(() => {
          this.#handling.delete(handling);
          running -= 1;
          next();
        });
        this.#handling.add(handling);
      }
    };
    const giveBack = () => {
      for (const { ack, socket } of waiting.splice(0)) this.#settle(socket, frame("NACK", { id: ack, "x-delta-t": 0 }));
    };
    const ack = "client-individual";
    const deliver = (message, headers) => {
      waiting.push({ message, ack: headers.ack, socket: this.#socket });
      next();
    };
    return this.#subscribe(this.#destination("queue", queue), { ack, prefetch, group }, deliver, giveBack);
  }

  /** Take no more messages, wait for running handlers and unconfirmed messages, and disconnect. */
  async close(timeoutMs = 10_000) {
    for (const { stop } of this.#subscriptions.values()) stop();
    const done = Promise.allSettled(this.#handling).then(() => Promise.allSettled(this.#publisher.pending()));
    let timer;
    await Promise.race([done, new Promise((late) => (timer = setTimeout(late, timeoutMs)))]);
    clearTimeout(timer);
    this.#flush();
    this.#isClosed = true;
    clearTimeout(this.#retry);
    this.#publisher.close();
    this.#socket?.close(1000);
  }

  // ---------------------------------------------------------------- publishing

  #destination(kind, name) {
    const parts = name.includes("/") ? name.split("/") : [this.#options.project, name];
    if (parts.length !== 2 || parts.includes("")) throw new TypeError(`a queue is named queue or project/queue, not ${name}`);
    return `/${kind}/${parts.join("/")}`;
  }

  #send(destination, body, { headers = {}, type, delay, ttl, key, priority, idempotencyKey, ...more }) {
    const { unique, uniqueUntil, replace, replaceMax, batch, batchSize, batchTo } = more;
    const [bytes, kind] = encoded(body);
    const named = { "content-length": bytes.length };
    if (type ?? kind) named["content-type"] = type ?? kind;
    if (delay) named["x-delta-t"] = Math.round(delay * 1000);
    if (key !== undefined) named["x-key"] = key;
    if (priority !== undefined) named.priority = priority;
    if (unique !== undefined) named["x-unique"] = unique;
    if (uniqueUntil !== undefined) named["x-unique-until"] = uniqueUntil;
    if (replace !== undefined) named["x-replace"] = replace;
    if (replaceMax !== undefined) named["x-replace-max"] = Math.round(replaceMax * 1000);
    if (batch !== undefined) named["x-batch"] = batch;
    if (batchSize !== undefined) named["x-batch-size"] = batchSize;
    if (batchTo !== undefined) named["x-batch-to"] = batchTo;
    if (idempotencyKey !== undefined) named[KEY] = checkedKey(destination, idempotencyKey);
    if (ttl !== undefined) named.expiration = Math.round(ttl * 1000);
    for (const [name, value] of Object.entries(headers)) {
      named[PASSED.has(name.toLowerCase()) ? name.toLowerCase() : PREFIX + name] = value;
    }
    if (bytes.length > this.#bodyMax) {
      return Promise.reject(new Refused(`a body of ${bytes.length} bytes is larger than ${this.#bodyMax}`, 413));
    }
    if (this.#isClosed) return Promise.reject(new Unknown("the client is closed"));
    return this.#publisher.send(destination, named, bytes);
  }

  // ---------------------------------------------------------------- consuming

  #subscribe(destination, { ack, prefetch, group, filter }, deliver, ended = () => {}) {
    const id = String((this.#number += 1));
    const named = { id, destination, ack, "prefetch-count": prefetch, ...(group && { "x-ks-group": group }), ...(filter && { selector: filter }) };
    const request = frame("SUBSCRIBE", named);
    const stop = () => {
      if (!this.#subscriptions.delete(id)) return;
      if (this.#isUp) this.#write(frame("UNSUBSCRIBE", { id }));
      ended();
    };
    this.#subscriptions.set(id, { request, deliver, stop });
    this.#write(request);
    return { stop };
  }

  #message(received) {
    const { subscription, ack } = received.headers;
    const found = this.#subscriptions.get(subscription);
    if (found) callOut(() => found.deliver(new Message(received), received.headers));
    else if (ack) this.#write(frame("NACK", { id: ack, "x-delta-t": 0 })); // unsubscribed in the meantime
  }

  async #handle(queue, { message, ack, socket }, handler) {
    let settling;
    try {
      await handler(message);
      settling = frame("ACK", { id: ack });
    } catch (error) {
      if (!(error instanceof Reject || error instanceof Retry)) {
        console.error(`@curbstone/client: ${queue}: the handler failed for message ${message.id}:`, error);
      }
      const headers = { id: ack, error: String(error?.message ?? error).slice(0, 1000) };
      if (error instanceof Reject) headers.requeue = "false";
      else headers["x-delta-t"] = Math.round(1000 * (error instanceof Retry ? error.delay : backOff(message.tries)));
      settling = frame("NACK", headers);
    }
    this.#settle(socket, settling);
  }

  /** Settle a delivery, unless its connection is lost: then it is redelivered. */
  #settle(socket, bytes) {
    if (socket === this.#socket && this.#isUp) this.#write(bytes);
  }

  // ---------------------------------------------------------------- the connection

  #write(bytes) {
    if (!this.#socket && !this.#retry) this.#connect();
    if (!this.#isUp) return; // pending frames are sent at CONNECTED
    if (this.#output.push(bytes) === 1) queueMicrotask(() => this.#flush());
  }

  #flush() {
    const output = this.#output;
    this.#output = [];
    // Split, because a server accepts no message that is larger than a body with its headers.
    if (output.length && this.#isUp) {
      const bytes = join(output);
      for (let at = 0; at < bytes.length; at += 65_536) this.#socket.send(bytes.subarray(at, at + 65_536));
    }
  }

  get #url() {
    return this.#urls[this.#turn % this.#urls.length];
  }

  #connect() {
    this.#retry = null;
    if (this.#isClosed) return;
    const socket = new this.#options.WebSocket(this.#url, ["v12.stomp"]);
    socket.binaryType = "arraybuffer";
    this.#socket = socket;
    this.#parser = new Parser();
    this.#why = "";
    this.#receivedAt = Date.now();
    this.#beat = setInterval(() => this.#tick(), BEAT_MS / 2);
    socket.onopen = () => this.#greet(socket);
    socket.onmessage = ({ data }) => socket === this.#socket && this.#received(data);
    socket.onerror = ({ message } = {}) => (this.#why ||= message ?? ""); // a close follows
    socket.onclose = ({ code, reason } = {}) => socket === this.#socket && this.#lost(reason || `it was closed with code ${code}`);
  }

  async #greet(socket) {
    const { token } = this.#options;
    const headers = { "accept-version": "1.2", host: new URL(this.#url).hostname, "heart-beat": `${BEAT_MS},${BEAT_MS}` };
    headers["x-features"] = "refusals,ids,joined,numbers";
    try {
      const secret = typeof token === "function" ? await token() : token;
      if (secret) Object.assign(headers, { login: "", passcode: secret });
    } catch (error) {
      if (socket === this.#socket) this.#lost(`no token: ${error?.message ?? error}`);
      return;
    }
    if (socket === this.#socket && socket.readyState === 1) socket.send(frame("CONNECT", headers));
  }

  /** Send a heart-beat, and close a connection over which nothing arrives, also during its handshake. */
  #tick() {
    if (Date.now() - this.#receivedAt > SILENT_MS_MAX) this.#lost(`nothing received from the server for ${SILENT_MS_MAX / 1000} s`);
    else if (this.#isUp) this.#socket.send(new Uint8Array([10]));
  }

  #received(data) {
    this.#receivedAt = Date.now();
    const bytes = typeof data === "string" ? new TextEncoder().encode(data) : new Uint8Array(data);
    for (const received of this.#parser.feed(bytes)) {
      if (received.command === "MESSAGE") this.#message(received);
      else if (received.command === "RECEIPT") this.#receipt(received.headers);
      else if (received.command === "CONNECTED") this.#up(received);
      else if (received.command === "ERROR") this.#error(received);
    }
  }

  #receipt(headers) {
    if (headers["receipt-id"] !== "token") this.#publisher.receipt(headers);
    else if (headers["x-error-code"]) this.#renewIn(RENEW_AGAIN_MS);
    else this.#renewBefore(headers);
  }

  #up({ headers }) {
    const term = Number(headers["x-term"] ?? 0);
    if (0 < term && term < this.#term) {
      this.#why = `another server, of term ${this.#term}, has replaced it, which has term ${term}`;
      return this.#lost(this.#why);
    }
    this.#term = Math.max(this.#term, term);
    this.#isUp = true;
    this.#bodyMax = Number(headers["x-body-max"] ?? Infinity);
    this.#retryMs = RETRY_MS_MIN;
    this.#renewBefore(headers);
    for (const { request } of this.#subscriptions.values()) this.#write(request);
    this.#publisher.connected((headers["x-features"] ?? "").split(",").includes("numbers"));
  }

  /** Renew the login in time, if it expires and a function can return another token. */
  #renewBefore({ "x-expires-in": leftMs }) {
    if (leftMs !== undefined && typeof this.#options.token === "function") this.#renewIn(Number(leftMs) * RENEW_AFTER);
  }

  #renewIn(ms) {
    const socket = this.#socket;
    this.#renewal = setTimeout(async () => {
      let secret;
      try {
        secret = await this.#options.token();
      } catch {} // the application's function failed; it is called again while the login is valid
      if (socket !== this.#socket || !this.#isUp) return;
      if (secret) this.#write(frame("SEND", { destination: "/session/token", receipt: "token" }, new TextEncoder().encode(secret)));
      else this.#renewIn(RENEW_AGAIN_MS);
    }, Math.min(Math.max(ms, RENEW_MS_MIN), RENEW_MS_MAX));
  }

  /** The server ends the connection. The message that it names has failed; all others are sent again. */
  #error({ headers, body }) {
    const text = new TextDecoder().decode(body).trim() || headers.message;
    const refused = new Refused(text, Number(headers["x-error-code"] ?? 400));
    this.#why ||= text;
    this.#notBeforeMs = 1000 * Number(headers["retry-after"] ?? 0);
    if (!this.#isUp && (refused.status === 401 || refused.status === 403)) this.#refuse(refused);
    this.#publisher.refused(headers["receipt-id"], refused);
  }

  /** The login is wrong: pending calls fail, and an unchanged token is not tried again at once. */
  #refuse(refused) {
    if (typeof this.#options.token !== "function") this.#notBeforeMs = REFUSED_RETRY_MS;
    this.#publisher.rejectAll(refused);
    callOut(() => this.#options.onRefused?.(refused));
  }

  #lost(why) {
    const socket = this.#socket;
    const what = this.#isUp ? "lost the connection" : "can't connect";
    this.#socket = null;
    clearInterval(this.#beat);
    clearTimeout(this.#renewal);
    socket.close();
    if (this.#isUp) this.#publisher.disconnected();
    this.#isUp = false;
    this.#output = [];
    if (this.#isClosed) return;
    const wait = Math.max(this.#notBeforeMs, this.#retryMs * (0.5 + Math.random() / 2));
    this.#notBeforeMs = 0;
    console.warn(`@curbstone/client: ${what} to ${this.#url}: ${this.#why || why}; next attempt in ${(wait / 1000).toFixed(1)} s`);
    this.#turn++;
    this.#retryMs = Math.min(RETRY_MS_MAX, 2 * this.#retryMs);
    this.#retry = setTimeout(() => this.#connect(), wait);
  }
}

/** Call the application's callback. An exception is reported as uncaught, and the next frames are read. */
function callOut(call) {
  try {
    call();
  } catch (error) {
    queueMicrotask(() => {
      throw error;
    });
  }
}

function checkedKey(destination, key) {
  if (!destination.startsWith("/queue/")) throw new TypeError("an idempotencyKey is for a queue: a message of an event has none");
  if (!/^[!-~]{1,255}$/.test(key)) throw new TypeError(`an idempotencyKey is 1 to 255 visible ASCII characters, not ${key}`);
  return key;
}

function encoded(body) {
  if (body instanceof Uint8Array) return [body, undefined];
  if (body instanceof ArrayBuffer) return [new Uint8Array(body), undefined];
  if (typeof body === "string") return [new TextEncoder().encode(body), "text/plain; charset=utf-8"];
  const text = JSON.stringify(body);
  if (text === undefined) throw new TypeError("a message must be bytes, text or a JSON value");
  return [new TextEncoder().encode(text), "application/json"];
}

function backOff(tries) {
  return Math.min(HANDLER_RETRY_S_MAX, 2 ** tries) * (0.85 + 0.3 * Math.random());
}
