// @curbstone/client in Node.js. Arguments: the server's URL, the test's URL.
import { WebSocket } from 'ws';
import * as library from '../../client/js/index.js';
import { run } from './curbstone_client.mjs';

const [url, control] = process.argv.slice(2);
const tell = (what, facts) =>
  fetch(`${control}/tell`, { method: 'POST', body: JSON.stringify({ what, facts }) });
try {
  await tell('done', await run(library, url, { WebSocket }, () => tell('kill')));
} catch (error) {
  await tell('failed', { error: String(error.stack) });
}
process.exit();
