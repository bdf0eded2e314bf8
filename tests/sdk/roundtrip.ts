// What a user of the TypeScript client does: log in, create, publish, lease, ack, pop, settle several, undo, delete.
import { asItIs, curbstone, type Schemas } from "./index.js";

declare const process: { argv: string[]; exitCode: number };

function check(holds: boolean, what: string): void {
  if (!holds) throw new Error(what);
}

const baseUrl = process.argv[2] ?? "";
const client = curbstone({ baseUrl, token: async () => process.argv[3] ?? "" });
const params = { path: { project: "sdk", queue: "typescript" } } as const;
const QUEUE = "/v2/{project}/queues/{queue}" as const;
const MESSAGES = "/v2/{project}/queues/{queue}/messages" as const;

const stranger = await curbstone({ baseUrl }).GET(QUEUE, { params });
check(stranger.error?.status === 401, "no login");

const created = await client.PUT(QUEUE, { params, body: { max_tries: 5 } });
check(created.response.status === 201, "create");

const published = await client.POST(MESSAGES, {
  params,
  body: "Grüße",
  bodySerializer: asItIs,
  headers: { "Content-Type": "text/plain; charset=utf-8", "x-msg-x-color": "blue" },
});
check(published.response.status === 201, "publish");
const id = published.response.headers.get("x-msg-id");

const batch: Schemas["BatchMessage"][] = [{ message: "AAH/", encoding: "base64" }];
const many = await client.POST("/v2/{project}/queues/{queue}/messages/batch", { params, body: batch });
check(many.data?.ids.length === 1, "batch");

const leased = await client.POST("/v2/{project}/queues/{queue}/messages/lease", { params, body: { count: 1, seconds: 60 } });
const message = leased.data?.messages[0];
if (message === undefined) throw new Error("lease");
const tries: number = message.tries;
check(message.id === id && message.message === "Grüße" && tries === 0, "leased message");
check(message["x-msg-x-color"] === "blue", "metadata");

const peeked = await client.GET(MESSAGES, { params: { ...params, query: { state: "wip" } } });
check(typeof peeked.data === "object" && peeked.data.messages.length === 1, "peek");

const acked = await client.POST("/v2/{project}/queues/{queue}/messages/ack", { params, body: { ackIds: [message.ackId] } });
check(acked.data?.settled === 1 && acked.data.stale.length === 0, "ack");

const popped = await client.DELETE(MESSAGES, { params, parseAs: "arrayBuffer" });
check(popped.response.status === 200, "pop");
check(String(new Uint8Array(popped.data as ArrayBuffer)) === "0,1,255", "popped bytes");
check((await client.DELETE(MESSAGES, { params })).response.status === 204, "pop of nothing");

const pair: Schemas["BatchMessage"][] = [{ message: "a" }, { message: "b" }];
await client.POST("/v2/{project}/queues/{queue}/messages/batch", { params, body: pair });
const both = await client.POST("/v2/{project}/queues/{queue}/messages/lease", { params, body: { count: 2, seconds: 60 } });
const first = both.data?.messages[0]?.ackId;
const second = both.data?.messages[1]?.ackId;
if (first === undefined || second === undefined) throw new Error("lease of two");
const ends: Schemas["SettleRequest"] = { ack: [first, "none"], nack: [{ ackId: second, delay: 0, error: "later" }] };
const ended = await client.POST("/v2/{project}/queues/{queue}/messages/settle", { params, body: ends });
check(ended.data?.settled === 2 && String(ended.data.stale) === "none", "settle several");

const undone = await client.POST("/v2/{project}/queues/{queue}/undo", { params, body: { limit: 1, group: "" } });
check(undone.data?.restored === 1 && undone.data.more && !undone.data.damaged, "undo");
for (const body of ["a", "b"]) {
  const next = await client.DELETE(MESSAGES, { params, parseAs: "text" });
  check(next.data === body, "what returned is at its old place");
}

const info = await client.GET(QUEUE, { params });
check(info.data?.rdy === 0 && info.data.options.max_tries === 5, "info");

const missing = await client.GET(QUEUE, { params: { path: { project: "sdk", queue: "none" } } });
check(missing.error?.status === 404 && missing.error.message !== "", "problem");

check((await client.DELETE(QUEUE, { params })).response.status === 204, "delete");
console.log("done");
