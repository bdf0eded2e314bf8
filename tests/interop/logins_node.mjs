// @curbstone/client, how it logs in: against a socket and a clock of the test's own. Prints its findings as JSON.
const timers = [];
globalThis.setTimeout = (fn, ms) => timers.push({ fn, ms });
globalThis.clearTimeout = (number) => number && delete timers[number - 1];
globalThis.setInterval = () => 0;
globalThis.clearInterval = () => {};
console.warn = () => {}; // the findings alone are printed
const { Client } = await import("../../client/js/index.js");

const settled = () => new Promise((done) => setImmediate(done));
const sockets = [];
class Socket {
  readyState = 1;
  sent = [];
  constructor() {
    sockets.push(this);
    queueMicrotask(() => this.onopen());
  }
  send(data) {
    this.sent.push(new TextDecoder().decode(data));
  }
  close() {
    this.onclose?.();
  }
  say(text) {
    this.onmessage({ data: text });
  }
}

const tokens = ["one", "two"];
const client = new Client("http://x", { WebSocket: Socket, token: async () => tokens.shift() });
client.subscribe("sold", () => {});
await settled();
sockets[0].say("CONNECTED\nversion:1.2\nx-expires-in:100000\n\n\0");
await settled();
const first = timers.at(-1);
await first.fn();
await settled();
const renewal = sockets[0].sent.at(-1);
sockets[0].say("RECEIPT\nreceipt-id:token\nx-expires-in:50000\n\n\0");
const second = timers.at(-1).ms;
sockets[0].say("RECEIPT\nreceipt-id:token\nx-error-code:401\nx-error:no\n\n\0");
const again = timers.at(-1).ms;

const refused = [];
const other = new Client("http://x", { WebSocket: Socket, token: "wrong", onRefused: (error) => refused.push(error.status) });
const published = other.publish("q", "x").catch((error) => [error.name, error.status]);
await settled();
sockets[1].say("ERROR\nmessage:the login failed\nx-error-code:401\n\nthe login failed\0");
sockets[1].onclose();
const afterWrong = timers.at(-1).ms;
timers.at(-1).fn();
await settled();
sockets[2].say("ERROR\nmessage:later\nx-error-code:429\nretry-after:17\n\nlater\0");
sockets[2].onclose();
const afterThrottled = timers.at(-1).ms;
console.log(JSON.stringify({ first: first.ms, renewal, second, again, refused, published: await published, afterWrong, afterThrottled }));
process.exit();
