// @curbstone/client by chance: a server that is full, refuses, is silent and loses connections, in a time of the test's own.
// Arguments: the first seed, and how many. Each history has its seed printed before it begins.
//
// Held: each publish ends once, rightly, and in order; where the server keeps numbers a message is stored once, and not where
// it was refused; no settling names a delivery of another connection; all that is stored is worked off; connections that
// never begin are given up, and there is time between two; what functions of the application throw ends nothing.
import assert from "node:assert";

const [first, count] = process.argv.slice(2).map(Number);
let random = () => 0;
let now = 0;
let timers = new Map();
let made = 0;
const setTimer = (fn, ms = 0, every = 0) => timers.set((made += 1), { at: now + ms, fn, every }) && made;
globalThis.setTimeout = (fn, ms) => setTimer(fn, ms);
globalThis.setInterval = (fn, ms) => setTimer(fn, ms, ms);
globalThis.clearTimeout = globalThis.clearInterval = (timer) => timers.delete(timer);
Date.now = () => now;
Math.random = () => random();
const { Client, Refused, Reject, Retry } = await import("../../client/js/index.js");

const QUEUES = ["a", "b"];
const STEPS = 300;
const PREFETCH = 4;
const BETWEEN_MS_MIN = 25;
const OURS = "thrown by the application";
process.on("uncaughtException", (error) => {
  if (error.message === OURS) return;
  console.error(error);
  process.exit(1);
});
console.warn = () => {};
const turn = () => new Promise((done) => setImmediate(done));
const below = (most) => Math.floor(random() * most);

/** A generator of numbers in [0, 1), the same for the same seed (mulberry32). */
function generator(seed) {
  let state = seed * 2654435761;
  return () => {
    state = (state + 0x6d2b79f5) | 0;
    let mixed = Math.imul(state ^ (state >>> 15), 1 | state);
    mixed = (mixed + Math.imul(mixed ^ (mixed >>> 7), 61 | mixed)) ^ mixed;
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 4294967296;
  };
}

async function advance(ms) {
  const end = now + ms;
  for (;;) {
    const [due, timer] = [...timers].reduce((best, each) => (each[1].at < best[1].at ? each : best), [0, { at: end + 1 }]);
    if (timer.at > end) break;
    now = Math.max(now, timer.at);
    if (timer.every) timer.at += timer.every;
    else timers.delete(due);
    timer.fn();
    await turn();
  }
  now = end;
}

/** Queues of texts. What is sent is carried out when the server gets round to it. */
class Server {
  sockets = [];
  full = new Set();
  stored = new Map(QUEUES.map((name) => [`/queue/p/${name}`, []]));
  ready = new Map(QUEUES.map((name) => [`/queue/p/${name}`, []]));
  settled = new Set();
  lastNumbers = new Map();
  deliveries = 0;
  openedAt = -BETWEEN_MS_MIN;

  constructor(keepsNumbers) {
    this.keepsNumbers = keepsNumbers;
  }

  carryOut(socket, { command, headers, body }) {
    if (command === "CONNECT") socket.tell("CONNECTED", { version: "1.2", "x-features": this.keepsNumbers ? "refusals,ids,numbers" : "refusals,ids" });
    else if (command === "SEND") this.send(socket, headers, body);
    else if (command === "SUBSCRIBE") socket.subscriptions.set(headers.id, { queue: headers.destination, window: Number(headers["prefetch-count"]) });
    else if (command === "UNSUBSCRIBE") socket.subscriptions.delete(headers.id);
    else this.settle(socket, command, headers);
  }

  send(socket, headers, body) {
    const queue = headers.destination;
    const line = `${queue} ${headers["x-producer"]}`;
    const number = Number(headers.receipt.split(".").at(-1));
    const last = this.lastNumbers.get(line) ?? 0;
    const answer = { "receipt-id": headers.receipt };
    assert.equal("x-producer" in headers, this.keepsNumbers);
    if (this.keepsNumbers && number <= last) answer["x-duplicate"] = "true";
    else if (this.keepsNumbers && Number(headers["x-after"] ?? number - 1) > last) {
      Object.assign(answer, { "x-error-code": 409, "x-error": "too early", "x-expected": last + 1 });
    } else if (this.full.has(queue)) Object.assign(answer, { "x-error-code": 507, "x-error": "full", "retry-after": 1 });
    else if (body.endsWith("!!")) {
      socket.tell("ERROR", { message: "far too loud", "x-error-code": 413, "receipt-id": headers.receipt });
      socket.isEnding = true; // what came behind it is lost
      return;
    } else if (body.endsWith("!")) Object.assign(answer, { "x-error-code": 413, "x-error": "too loud" });
    else {
      this.stored.get(queue).push(body);
      this.ready.get(queue).push(body);
      this.lastNumbers.set(line, number);
      answer["x-msg-id"] = body;
    }
    socket.tell("RECEIPT", answer);
  }

  settle(socket, command, headers) {
    const delivery = socket.unsettled.get(headers.id);
    assert(delivery, `${command} of a delivery that is none of this connection: ${headers.id}`);
    socket.unsettled.delete(headers.id);
    if (command === "ACK" || headers.requeue === "false") this.settled.add(delivery.body);
    else this.ready.get(delivery.queue).push(delivery.body);
  }

  deliver(socket) {
    for (const [id, { queue, window }] of socket.subscriptions) {
      if (queue.startsWith("/topic/")) {
        if (random() < 0.1) socket.tell("MESSAGE", { subscription: id, "message-id": "e", destination: queue }, "sold");
        continue;
      }
      const ready = this.ready.get(queue);
      while (ready.length && [...socket.unsettled.values()].filter((each) => each.id === id).length < window) {
        const ack = `k${(this.deliveries += 1)}`;
        const body = ready.shift();
        socket.unsettled.set(ack, { id, queue, body });
        socket.tell("MESSAGE", { subscription: id, "message-id": body, destination: queue, ack }, body);
      }
    }
  }

  /** Open what waits, read and answer some of what came, and let some of the answers arrive. */
  async step(socket) {
    if (socket.isClosed) return;
    if (!socket.readyState) {
      if (socket.isHanging) return;
      socket.readyState = 1;
      socket.onopen();
      await turn();
    }
    this.work(socket, below(8));
    if (!socket.isEnding) this.deliver(socket);
    const cut = below(socket.outbound.length + 1);
    const data = socket.outbound.slice(0, cut);
    socket.outbound = socket.outbound.slice(cut);
    if (data) socket.onmessage({ data });
    await turn();
    if (socket.isEnding && !socket.outbound) this.lose(socket);
  }

  lose(socket) {
    if (socket.isClosed) return;
    this.work(socket, below(socket.work.length + 1));
    socket.end();
  }

  work(socket, most) {
    for (let left = most; left && socket.work.length && !socket.isEnding; left -= 1) this.carryOut(socket, socket.work.shift());
  }

  /** A socket as browsers have it, with the server at its other end. */
  get WebSocket() {
    const server = this;
    return class {
      readyState = 0;
      work = [];
      subscriptions = new Map();
      unsettled = new Map();
      outbound = "";
      inbound = "";
      isHanging = random() < 0.1;

      constructor() {
        assert(now - server.openedAt >= BETWEEN_MS_MIN, "a connection was tried at once after another");
        server.openedAt = now;
        server.sockets.push(this);
      }

      send(data) {
        assert(this.readyState, "nothing can be sent before it is open");
        if (this.isClosed) return; // as in browsers
        const frames = (this.inbound + new TextDecoder().decode(data)).split("\0");
        this.inbound = frames.pop();
        for (const text of frames) {
          const [head, ...body] = text.replace(/^\n+/, "").split("\n\n");
          const [command, ...lines] = head.split("\n");
          this.work.push({ command, headers: Object.fromEntries(lines.map((line) => line.split(/:(.*)/))), body: body.join("\n\n") });
        }
      }

      tell(command, headers, body = "") {
        const lines = Object.entries(headers).map(([name, value]) => `${name}:${value}\n`);
        this.outbound += `${command}\n${lines.join("")}\n${body}\0\n`;
      }

      close() {
        server.lose(this);
      }

      end() {
        this.isClosed = true;
        this.readyState = 3;
        for (const { queue, body } of this.unsettled.values()) server.ready.get(queue).unshift(body);
        setTimeout(() => this.onclose(), 0);
      }
    };
  }
}

async function history(seed, keepsNumbers, onFull) {
  random = generator(seed);
  [now, timers] = [0, new Map()];
  const server = new Server(keepsNumbers);
  const thrown = (chance) => {
    if (random() < chance) throw new Error(OURS);
  };
  const token = async () => thrown(0.2);
  const client = new Client("http://server", { project: "p", onFull, token, WebSocket: server.WebSocket });
  client.subscribe("sold", () => thrown(0.5));
  const sent = [];
  const publish = () => {
    const queue = QUEUES[below(2)];
    const each = { queue: `/queue/p/${queue}`, body: `${queue}${sent.length}${["", "", "", "", "", "", "", "", "!", "!!"][below(10)]}`, ends: 0 };
    sent.push(each);
    client.publish(queue, each.body).then((stored) => Object.assign(each, { stored, ends: each.ends + 1 }), (error) => Object.assign(each, { error, ends: each.ends + 1 }));
  };
  const handler = async (message) => {
    await new Promise((done) => setTimeout(done, below(500)));
    const chance = random();
    if (chance < 0.1) throw new Retry(0);
    if (chance < 0.15) throw new Reject("no");
    assert.equal(message.text, message.id);
  };
  const work = (queue) => client.worker(queue, handler, { parallel: 2, prefetch: PREFETCH });
  const workers = QUEUES.map(work);

  for (let step = 0; step < STEPS; step += 1) {
    const chance = random();
    const socket = server.sockets.at(-1);
    if (chance < 0.3) for (let left = below(6); left; left -= 1) publish();
    else if (chance < 0.36) server.lose(socket);
    else if (chance < 0.42) server.full[random() < 0.5 ? "add" : "delete"](`/queue/p/${QUEUES[below(2)]}`);
    else if (chance < 0.44) {
      const which = below(2);
      workers[which].stop();
      workers[which] = work(QUEUES[which]);
    } else if (chance < 0.6) await advance(below(random() < 0.05 ? 30_000 : 700));
    else await server.step(socket);
    await turn();
  }

  server.full.clear();
  const isOver = () => sent.every((each) => each.ends) && server.settled.size === new Set([...server.stored.values()].flat()).size;
  for (let left = 50_000; left && !isOver(); left -= 1) {
    await server.step(server.sockets.at(-1));
    await advance(50);
  }
  assert(isOver(), `left: ${sent.filter((each) => !each.ends).map((each) => each.body)}`);
  for (const queue of server.stored.keys()) check(server, sent.filter((each) => each.queue === queue), server.stored.get(queue));
  const closing = client.close();
  await advance(10_000);
  await closing;
  await advance(60_000);
  assert.equal(timers.size, 0, "what was set going ends with the client");
}

function check(server, sent, stored) {
  for (const { body, stored: confirm, error, ends } of sent) {
    assert.equal(ends, 1);
    const copies = stored.filter((each) => each === body).length;
    if (error) assert(error instanceof Refused && [413, 507].includes(error.status), String(error));
    else assert(copies === 1 || (copies > 1 && confirm.maybeRepeated), `${body} is there ${copies} times`);
    if (body.endsWith("!")) assert(error, `${body} was to be refused`);
  }
  if (server.keepsNumbers) assert.deepEqual(stored, sent.filter((each) => !each.error).map((each) => each.body));
}

process.on("exit", (code) => code === 13 && console.log("nothing is left to happen, and the history is not over"));
for (let seed = first; seed < first + count; seed += 1) {
  console.log(`seed ${seed}`);
  await history(seed, seed % 3 > 0, seed % 2 ? "wait" : "raise");
}
console.log("all well");
