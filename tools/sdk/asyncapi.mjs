// Checks AsyncAPI documents with AsyncAPI's own parser: against the schema of their version, and the rules that a
// schema can't say. Prints a list for each: what is wrong, one text each, and last what it is.
import { readFileSync } from "node:fs";
import { Parser } from "@asyncapi/parser";

const SERIOUS = 1; // errors and warnings; the rest is advice, as to use the latest version

for (const file of process.argv.slice(2)) {
  const { document, diagnostics } = await new Parser().parse(readFileSync(file, "utf8"));
  const found = diagnostics.filter(({ severity }) => severity <= SERIOUS);
  const said = found.map(
    ({ path, message, code, range }) => `line ${range.start.line + 1}, ${path.join(".")}: ${message} (${code})`,
  );
  said.push(document ? `AsyncAPI ${document.version()}, operations: ${document.operations().length}` : "no document");
  console.log(JSON.stringify(said));
}
