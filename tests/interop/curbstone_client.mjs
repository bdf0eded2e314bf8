// @curbstone/client in Node.js and on a page: publish, be refused, work, retry, hear an event, and outlive a crash.

const until = async (condition) => {
  for (let turn = 0; !condition(); turn += 1) {
    if (turn > 3000) throw new Error(`never true: ${condition}`);
    await new Promise((done) => setTimeout(done, 10));
  }
};

export async function run({ Client, Reject, Retry, Refused }, url, options, crash) {
  const client = new Client(url, { project: "shop", ...options });
  const seen = [];
  const worker = client.worker(
    "orders",
    (message) => {
      seen.push([message.text, message.tries, message.id]);
      if (message.text === "reject") throw new Reject("bad");
      if (message.text === "retry" && !message.tries) throw new Retry(0);
      if (message.text === "0") Object.assign(facts, { first: { headers: message.headers, type: message.type, key: message.key, id: message.id } });
    },
    { parallel: 4 },
  );
  const facts = { agent: globalThis.navigator?.userAgent ?? "" };
  const stored = await client.publish("orders", "0", { headers: { customer: "7:\n" }, key: "customer 7" });
  facts.id = stored.id;
  facts.json = await new Promise((done) => {
    client.worker("json", (message) => done(message.json()));
    client.publish("json", { total: 12, text: "ä\0" });
  });
  facts.refused = await client.publish("orders", new Uint8Array(2_000_000)).catch((error) => [error instanceof Refused, error.status]);
  await Promise.all(["reject", "retry"].map((text) => client.publish("orders", text)));

  const kept = [];
  client.worker("kept", (message) => kept.push(message.text));
  const bodies = ["a", "x".repeat(2000), "b", "x".repeat(2000), "c"];
  const ends = await Promise.all(bodies.map((body) => client.publish("kept", body).then(() => 0, (error) => error.status)));
  await until(() => kept.length === 3);
  Object.assign(facts, { kept: kept.join(""), ends });

  const heard = [];
  const filtered = [];
  client.subscribe("sold", (message) => filtered.push(message.json().id), { filter: "region = 'eu'" });
  client.subscribe("sold", (message) => heard.push(message.json()));
  while (!heard.length) {
    await client.publishEvent("sold", { id: 7 });
    await new Promise((done) => setTimeout(done, 20));
  }
  facts.heard = heard[0];
  for (const [id, region] of [[8, "us"], [9, "eu"]]) await client.publishEvent("sold", { id }, { headers: { region } });
  await until(() => filtered.length);
  facts.filtered = filtered;

  for (const [text, priority] of [["none"], ["low", 0], ["high", 9]]) await client.publish("ranked", text, { priority });
  const ranked = [];
  client.worker("ranked", (message) => ranked.push([message.text, message.priority]));
  await until(() => ranked.length === 3);
  facts.ranked = ranked;

  const named = [];
  for (const text of ["stored", "left out"]) named.push(await client.publish("named", text, { unique: "a" }));
  for (const text of ["old", "new"]) await client.publish("replaced", text, { replace: "a", replaceMax: 30 });
  const left = [];
  client.worker("replaced", (message) => left.push([message.text, message.replace]));
  await until(() => left.length);
  facts.left = left;
  facts.named = [named.map(({ repeated }) => repeated), named[0].id === named[1].id];

  const sending = Array.from({ length: 200 }, (_, n) => client.publish("orders", String(n + 1)));
  await Promise.any(sending);
  await crash();
  const confirms = await Promise.all(sending);
  facts.confirmed = confirms.length;
  facts.maybeRepeated = confirms.some((each) => each.maybeRepeated);
  const last = await client.publish("orders", "last");
  facts.isRepeated = last.maybeRepeated;
  await until(() => new Set(seen.map(([text]) => text)).size === 204);
  facts.twice = new Set(seen.map(([, , id]) => id)).size - new Set(seen.map(([text]) => text)).size;
  facts.tries = seen.filter(([text]) => text === "retry").map(([, tries]) => tries);
  worker.stop();
  await client.close();
  facts.afterClose = await client.publish("orders", "x").catch((error) => error.name);
  return facts;
}
