// stompjs in Node.js over wss with a login. Arguments: the WebSocket's URL, user, token. Prints its findings as JSON.
import { Client } from '@stomp/stompjs';
import { WebSocket } from 'ws';

Object.assign(globalThis, { WebSocket });
const [brokerURL, login, passcode] = process.argv.slice(2);

/** Resolve to what a client with this passcode hears first: its own message, or the ERROR. */
function heard(secret) {
  return new Promise((resolve) => {
    const client = new Client({ brokerURL, connectHeaders: { login, passcode: secret }, reconnectDelay: 0 });
    const end = async (facts) => {
      await client.deactivate();
      resolve(facts);
    };
    client.onStompError = (frame) => end({ error: frame.headers.message });
    client.onConnect = () => {
      client.subscribe('/queue/stompjs', (message) => {
        message.ack();
        end({ body: message.body });
      }, { ack: 'client-individual' });
      client.publish({ destination: '/queue/stompjs', body: 'over wss' });
    };
    client.activate();
  });
}

console.log(JSON.stringify([await heard(passcode), await heard(`${passcode}x`)]));
process.exit();
