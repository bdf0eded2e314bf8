// Curbstone from Node.js without a library: make a queue, put a message in, take it and say that it is done.
// With the library it is shorter, and connects again by itself: client/js.
const queue = `${process.env.CURBSTONE_URL ?? "http://127.0.0.1:8080"}/v2/demo/queues/hello-javascript`;

async function call(method, path, body, type = "application/json") {
  const reply = await fetch(queue + path, { method, body, headers: body ? { "Content-Type": type } : {} });
  const answer = await reply.text();
  if (!reply.ok) throw new Error(answer);
  return answer && JSON.parse(answer);
}

await call("PUT", "");
await call("POST", "/messages", "hello", "text/plain"); // on disk when it resolves
const { messages } = await call("POST", "/messages/lease", JSON.stringify({ wait: 10, seconds: 60 }));
for (const { message, ackId } of messages) {
  console.log("got", message);
  await call("POST", "/messages/ack", JSON.stringify({ ackIds: [ackId] })); // without it the message is delivered again after 60 s
}
