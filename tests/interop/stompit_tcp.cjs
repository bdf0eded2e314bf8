// stompit over TCP. Arguments: the server's host and port, and the test's URL.
'use strict';
const { promisify } = require('node:util');
const stompit = require('stompit');

const [host, port, control] = process.argv.slice(2);
const tell = (what, facts) =>
  fetch(`${control}/tell`, { method: 'POST', body: JSON.stringify({ what, facts }) });
const BINARY = Buffer.from([0, 255, 254, 10, 0, 13, 128]);
const COUNT = 200;

function check(condition, text) {
  if (!condition) throw new Error(text);
}

class Waiting {
  constructor() {
    this.items = [];
    this.waiters = [];
  }

  push(item) {
    const waiter = this.waiters.shift();
    if (waiter) waiter(item);
    else this.items.push(item);
  }

  next() {
    return this.items.length
      ? Promise.resolve(this.items.shift())
      : new Promise((resolve) => this.waiters.push(resolve));
  }
}

function send(client, headers, body) {
  return new Promise((resolve, reject) => {
    const frame = client.send(headers, { onReceipt: resolve, onError: reject });
    frame.end(body);
  });
}

function subscribe(client, destination, headers = {}) {
  const got = new Waiting();
  client.subscribe({ destination, ack: 'client-individual', ...headers }, (error, message) => {
    if (error) return; // the connection ended; who connects again knows
    const parts = [];
    message.on('data', (part) => parts.push(part));
    message.on('end', () => got.push({ message, headers: message.headers, body: Buffer.concat(parts) }));
  });
  return got;
}

const settle = (client, how, message, headers) =>
  new Promise((resolve) => client[how](message, headers, { onReceipt: resolve }));

async function exercise(client, facts) {
  facts.version = client.headers.version;
  await send(client, { destination: '/queue/a', k: 'a:b\nc\\d', empty: '' }, 'hellö');
  const a = subscribe(client, '/queue/a');
  let got = await a.next();
  check(got.body.toString() === 'hellö', `body: ${got.body}`);
  check(got.headers.k === 'a:b\nc\\d' && got.headers.empty === '', `k: ${got.headers.k}`);
  const id = got.headers['message-id'];
  await settle(client, 'nack', got.message, {});
  got = await a.next();
  check(got.headers['message-id'] === id && got.headers.redelivered === 'true', 'redelivered');
  await settle(client, 'ack', got.message, {});

  await send(client, { destination: '/queue/a', 'content-length': BINARY.length }, BINARY);
  got = await a.next();
  check(got.body.equals(BINARY), `binary: ${got.body.toString('hex')}`);
  client.ack(got.message);

  const aborted = client.begin();
  aborted.send({ destination: '/queue/a' }).end('aborted');
  aborted.abort();
  const transaction = client.begin();
  for (const body of ['t1', 't2']) transaction.send({ destination: '/queue/a' }).end(body);
  await send(client, { destination: '/queue/a' }, 'before');
  got = await a.next();
  check(got.body.toString() === 'before', `before COMMIT came ${got.body}`);
  client.ack(got.message, { transaction: transaction.id });
  await new Promise((resolve) => transaction.commit({ onReceipt: resolve }));
  for (const body of ['t1', 't2']) {
    got = await a.next();
    check(got.body.toString() === body, `after COMMIT came ${got.body}`);
    await settle(client, 'ack', got.message, {});
  }
}

async function crash(connect, first, facts) {
  const confirmed = new Set();
  const publish = (client, n) =>
    send(client, { destination: '/queue/crash' }, `m${n}`).then(() => confirmed.add(n));
  const lost = new Promise((resolve) => first.on('error', resolve));
  let alive = true;
  lost.then(() => (alive = false));
  for (let n = 0; n < COUNT && alive; n += 1) {
    publish(first, n).catch(() => {});
    if (n === 50) {
      while (confirmed.size < 20) await new Promise((resolve) => setTimeout(resolve, 1));
      tell('kill');
    }
    if (n % 10 === 9) await new Promise((resolve) => setTimeout(resolve, 1));
  }
  await lost;
  facts.confirmedBefore = confirmed.size;
  const client = await connect();
  facts.connects += 1;
  client.setMaxListeners(0);
  await Promise.all([...Array(COUNT).keys()].filter((n) => !confirmed.has(n)).map((n) => publish(client, n)));
  const got = subscribe(client, '/queue/crash', { 'prefetch-count': '50' });
  const seen = new Set();
  while (seen.size < COUNT) {
    const { message, body } = await got.next();
    facts.duplicates += seen.has(String(body)) ? 1 : 0;
    seen.add(String(body));
    await settle(client, 'ack', message, {});
  }
  return client;
}

// An idle connection lives on: either side would give up a silent one in two seconds. stompit forgives the server a
// tenth of a second, so a busy machine may need more than one.
async function heartBeats(connect) {
  for (;;) {
    const client = await connect('200,200');
    const lost = new Promise((resolve) => client.on('error', () => resolve(true)));
    const held = new Promise((resolve) => setTimeout(resolve, 2000, false));
    if (await Promise.race([lost, held])) continue;
    client.destroy();
    return client.headers['heart-beat'];
  }
}

async function main() {
  const facts = { connects: 1, duplicates: 0 };
  const connect = (heartBeat = '30000,30000') => {
    const connectHeaders = { 'heart-beat': heartBeat };
    const servers = new stompit.ConnectFailover([{ host, port: Number(port), connectHeaders }], {
      maxReconnectDelay: 100,
    });
    return new Promise((resolve, reject) =>
      servers.connect((error, client) => (error ? reject(error) : resolve(client))),
    );
  };
  facts.heartBeat = await heartBeats(connect);
  const first = await connect();
  first.setMaxListeners(0);
  first.on('error', () => {});
  await exercise(first, facts);
  const client = await crash(connect, first, facts);
  // stompit 1.0 reports an ERROR that has a body twice: to the client's listeners, and on a stream of its own, where
  // nobody can listen, so that the process would end. Which of the two has the server's words depends on the turn.
  const failed = new Waiting();
  process.on('uncaughtException', (error) => failed.push(error));
  client.on('error', (error) => failed.push(error));
  client.send({ destination: '/nowhere' }).end('x');
  let error = await failed.next();
  while (!error.longMessage) error = await failed.next();
  facts.error = error.message;
  facts.longError = error.longMessage;
  const last = await connect();
  await promisify(last.disconnect.bind(last))();
  return facts;
}

main()
  .then((facts) => tell('done', facts), (error) => tell('failed', { error: String(error.stack) }))
  .then(() => process.exit());
