// What @curbstone/client reports to the console, and what is stored once. Arguments: the server's URL, one where nothing listens.
import { WebSocket } from 'ws';
import { Client, Reject } from '../../client/js/index.js';

const [url, nowhere] = process.argv.slice(2);
const said = [];
console.warn = (...parts) => said.push(['warn', ...parts]);
console.error = (...parts) => said.push(['error', ...parts]);
const until = async (condition) => {
  while (!condition()) await new Promise((done) => setTimeout(done, 10));
};
const warned = (text) => said.filter(([how, what]) => how === 'warn' && what.includes(text)).map(([, what]) => what);
const facts = {};

const lonely = new Client(nowhere, { WebSocket });
lonely.publish('jobs', 'x').catch(() => {});
await until(() => warned("can't connect").length > 1);
facts.cantConnect = warned("can't connect")[0];
await lonely.close(0);
said.length = 0;

const client = new Client(url, { project: 'shop', WebSocket });
const handled = [];
client.worker('broken', (message) => {
  handled.push(message.text);
  if (message.text === 'reject') throw new Reject('no');
  throw new RangeError('a bug');
});
for (const text of ['reject', 'bug']) await client.publish('broken', text);
await until(() => handled.length === 2 && said.length);
facts.errors = said.map(([how, text, error]) => [how, text.replace(/message .*:/, 'message:'), error.name, error.stack.includes('reports_node')]);
said.length = 0;

const sending = Array.from({ length: 40 }, () => client.publish('full', new Uint8Array(5000)));
await until(() => warned('waits until there is room').length);
const worker = client.worker('full', () => {}, { parallel: 5 });
await Promise.all(sending);
worker.stop();
facts.full = warned('waits until there is room');

const first = await client.publish('keyed', { total: 12 }, { idempotencyKey: 'order-7' });
const again = await client.publish('keyed', { total: 12 }, { idempotencyKey: 'order-7' });
facts.isSame = first.id !== '' && first.id === again.id;
facts.reused = await client.publish('keyed', 'other', { idempotencyKey: 'order-7' }).catch((error) => error.status);
await client.publish('keyed', 'without a key');
const refusals = [() => client.publish('keyed', 'x', { idempotencyKey: 'two words' }), () => client.publishEvent('sold', 'x', { idempotencyKey: 'k' })];
facts.refused = refusals.map((publish) => {
  try {
    publish();
  } catch (error) {
    return error.name;
  }
});
const audited = [];
client.worker('keyed', (message) => audited.push(message.text), { group: 'audit' });
await until(() => audited.length === 2);
facts.audited = audited;
await client.close();
console.log(JSON.stringify(facts));
process.exit();
