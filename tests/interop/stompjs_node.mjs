// stompjs in Node.js. Arguments: the WebSocket's URL, the test's URL, versions, and whether to send binary.
import { Client, Versions } from '@stomp/stompjs';
import { WebSocket } from 'ws';
import { scenario } from './scenario.mjs';

Object.assign(globalThis, { WebSocket });
const [url, control, versions, kind] = process.argv.slice(2);
const tell = (what, facts) =>
  fetch(`${control}/tell`, { method: 'POST', body: JSON.stringify({ what, facts }) });
try {
  const facts = await scenario({
    Client,
    url,
    tell,
    versions: new Versions(versions.split(',')),
    binary: kind === 'binary',
  });
  await tell('done', facts);
} catch (error) {
  await tell('failed', { error: String(error.stack) });
}
process.exit();
