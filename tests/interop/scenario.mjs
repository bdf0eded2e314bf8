// What stompjs is put through, in Node.js and in a browser. Every wait is for an event; the test has the deadline.

export class Waiting {
  // Things that arrive, and those who wait for them.
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

export function check(condition, text) {
  if (!condition) throw new Error(text);
}

const BINARY = new Uint8Array([0, 255, 254, 10, 0, 13, 128]);
// What a header value can hold. 1.0 has no escapes, and stompjs 7.5 escapes nothing in 1.1 either.
const HEADERS = { '1.2': 'grün: a:b\nc\rd', '1.1': 'grün: a:b', '1.0': 'grün: a:b' };
const COUNT = 200;

// Resolves with the facts; rejects as soon as the server sends an ERROR that is not asked for.
export function scenario(options) {
  return new Promise((resolve, reject) => {
    play({ ...options, unexpected: (text) => reject(new Error(text)) }).then(resolve, reject);
  });
}

// Resolves once a connection has lived for ten heart-beats: either side would give up a silent one by then. Where the
// machine is so busy that one of them takes the other for silent, the client connects again, and ten more are waited for.
function heartBeats(Client, options) {
  return new Promise((resolve) => {
    let pongs = 0;
    const client = new Client({
      ...options,
      heartbeatIncoming: 200,
      heartbeatOutgoing: 200,
      onConnect: () => (pongs = 0),
      debug: (text) => {
        if (text.startsWith('<<< PONG') && (pongs += 1) === 10) client.deactivate().then(resolve);
      },
    });
    client.activate();
  });
}

async function play({ Client, url, tell, versions, binary, unexpected }) {
  const facts = { connects: 0, duplicates: 0 };
  let connected = new Waiting();
  const errors = new Waiting();
  let wantsError = false;
  let receipts = 0;
  const options = {
    brokerURL: url,
    stompVersions: versions,
    forceBinaryWSFrames: binary,
    reconnectDelay: 50,
    connectionTimeout: 60000,
  };
  const client = new Client({
    ...options,
    heartbeatIncoming: 30000,
    heartbeatOutgoing: 30000,
    onConnect: (frame) => {
      facts.connects += 1;
      connected.push(frame);
    },
    onStompError: (frame) => (wantsError ? errors.push(frame) : unexpected(frame.headers.message)),
  });

  const settled = (send) =>
    new Promise((resolve) => {
      const receipt = `r${(receipts += 1)}`;
      client.watchForReceipt(receipt, resolve);
      send({ receipt });
    });
  const publish = (destination, body, headers = {}) =>
    settled((more) => client.publish({ destination, body, headers: { ...headers, ...more } }));
  const subscribe = (destination, headers = {}) => {
    const got = new Waiting();
    const subscription = client.subscribe(destination, (message) => got.push(message), {
      ack: 'client-individual',
      ...headers,
    });
    return { next: () => got.next(), end: () => subscription.unsubscribe() };
  };

  client.activate();
  facts.version = (await connected.next()).headers.version;

  // A message with a receipt, headers and text.
  const value = HEADERS[facts.version];
  await publish('/queue/a', 'hellö', { k: value, empty: '' });
  const a = subscribe('/queue/a');
  let message = await a.next();
  check(message.body === 'hellö', `body: ${message.body}`);
  check(message.headers.k === value, `k: ${message.headers.k}`);
  check(message.headers.empty === '', 'an empty header');

  // NACK, which 1.0 does not have: the same message again; ACK: gone.
  if (facts.version !== '1.0') {
    const id = message.headers['message-id'];
    message.nack({});
    message = await a.next();
    check(message.headers['message-id'] === id && message.headers.redelivered === 'true', 'redelivered');
    check(message.headers['x-tries'] === '1', `x-tries: ${message.headers['x-tries']}`);
  }
  await settled((more) => message.ack(more));

  // Binary bodies, which are not text even for a client that speaks text.
  await settled((more) => client.publish({ destination: '/queue/a', binaryBody: BINARY, headers: more }));
  message = await a.next();
  check(String(message.binaryBody) === String(BINARY), `binary: ${message.binaryBody}`);
  message.ack();

  // Transactions: nothing of the aborted one, all of the committed one in order, and nothing before COMMIT.
  const aborted = client.begin();
  client.publish({ destination: '/queue/a', body: 'aborted', headers: { transaction: aborted.id } });
  aborted.abort();
  const transaction = client.begin();
  for (const body of ['t1', 't2']) {
    client.publish({ destination: '/queue/a', body, headers: { transaction: transaction.id } });
  }
  await publish('/queue/a', 'before');
  message = await a.next();
  check(message.body === 'before', `before COMMIT came ${message.body}`);
  message.ack({ transaction: transaction.id });
  await settled((more) => {
    more.transaction = transaction.id;
    client._stompHandler._transmit({ command: 'COMMIT', headers: more });
  });
  for (const body of ['t1', 't2']) {
    message = await a.next();
    check(message.body === body, `after COMMIT came ${message.body}`);
    message.ack();
  }

  // Heart-beats in both directions, which 1.0 does not have.
  if (facts.version !== '1.0') await heartBeats(Client, options);
  a.end();

  // The server is killed while messages are on their way; what was confirmed must be there, the rest is sent again.
  const confirmed = new Set();
  const send = (n) => publish('/queue/crash', `m${n}`).then(() => confirmed.add(n));
  connected = new Waiting();
  let asked = false;
  for (let n = 0; n < COUNT && client.connected; n += 1) {
    send(n);
    if (n >= 50 && !asked) {
      while (confirmed.size < 20) await new Promise((resolve) => setTimeout(resolve, 1));
      asked = true;
      tell('kill').catch((error) => unexpected(String(error)));
    }
    if (n % 10 === 9) await new Promise((resolve) => setTimeout(resolve, 1));
  }
  await connected.next();
  facts.confirmedBefore = confirmed.size;
  await Promise.all([...Array(COUNT).keys()].filter((n) => !confirmed.has(n)).map(send));
  const crash = subscribe('/queue/crash', { 'x-wsize': '50' });
  const seen = new Set();
  while (seen.size < COUNT) {
    message = await crash.next();
    facts.duplicates += seen.has(message.body) ? 1 : 0;
    seen.add(message.body);
    message.ack();
  }

  // What is wrong comes as an ERROR before the connection ends, and the client hears it.
  wantsError = true;
  client.publish({ destination: '/nowhere', body: 'x' });
  facts.error = (await errors.next()).headers.message;
  await client.deactivate();
  return facts;
}
