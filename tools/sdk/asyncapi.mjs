// Checks an AsyncAPI document with AsyncAPI's own parser: against the schema of its version, and the rules that a
// schema can't say. Prints what is wrong, one line each; then the exit code is 1.
import { readFileSync } from "node:fs";
import { Parser } from "@asyncapi/parser";

const SERIOUS = 1; // errors and warnings; the rest is advice, as to use the latest version

const { document, diagnostics } = await new Parser().parse(readFileSync(process.argv[2], "utf8"));
const found = diagnostics.filter(({ severity }) => severity <= SERIOUS);
for (const { path, message, code, range } of found) {
  console.log(`line ${range.start.line + 1}, ${path.join(".")}: ${message} (${code})`);
}
console.log(document ? `AsyncAPI ${document.version()}, operations: ${document.operations().length}` : "no document");
process.exitCode = found.length || !document ? 1 : 0;
