// @curbstone/client, which server of several it takes: against sockets of the test's own. Prints its findings as JSON.
const timers = [];
globalThis.setTimeout = (fn) => timers.push(fn);
globalThis.clearTimeout = () => {};
globalThis.setInterval = () => 0;
globalThis.clearInterval = () => {};
const warnings = [];
console.warn = (text) => warnings.push(text);
const { Client } = await import("../../client/js/index.js");

const settled = () => new Promise((done) => setImmediate(done));
const sockets = [];
class Socket {
  readyState = 1;
  sent = [];
  constructor(url) {
    this.url = url;
    sockets.push(this);
    queueMicrotask(() => this.onopen());
  }
  send(data) {
    this.sent.push(new TextDecoder().decode(data));
  }
  close() {}
  say(text) {
    this.onmessage({ data: text });
  }
}

const client = new Client(["http://one", "https://two/mq"], { WebSocket: Socket });
client.subscribe("sold", () => {});
for (const term of [1, 2, 1, 2]) {
  await settled();
  const socket = sockets.at(-1);
  const before = timers.length;
  socket.say(`CONNECTED\nversion:1.2\nx-term:${term}\n\n\0`);
  await settled();
  if (timers.length === before) socket.onclose({ reason: "it ended" }); // it was taken
  timers.at(-1)();
}
await settled();
const subscribed = sockets.map((each) => each.sent.some((frame) => frame.startsWith("SUBSCRIBE")));
console.log(JSON.stringify({ urls: sockets.map((each) => each.url), subscribed, warnings }));
process.exit();
