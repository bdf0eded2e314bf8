// STOMP 1.2 as a client writes and reads it: bytes and frames, nothing else.

const encoder = new TextEncoder();
const decoder = new TextDecoder();

const ESCAPES = { "\\": "\\\\", "\n": "\\n", "\r": "\\r", ":": "\\c" };
const UNESCAPES = { "\\\\": "\\", "\\n": "\n", "\\r": "\r", "\\c": ":" };

export function escape(text) {
  return String(text).replace(/[\\\n\r:]/g, (c) => ESCAPES[c]);
}

export function unescape(text) {
  return text.includes("\\") ? text.replace(/\\[\\nrc]/g, (pair) => UNESCAPES[pair]) : text;
}

/** Return a frame as bytes. Headers of CONNECT are not escaped (§ Value Encoding). */
export function frame(command, headers, body = new Uint8Array()) {
  const written = command === "CONNECT" ? String : escape;
  const lines = Object.entries(headers).map(([name, value]) => `${written(name)}:${written(value)}\n`);
  const head = encoder.encode(`${command}\n${lines.join("")}\n`);
  const bytes = new Uint8Array(head.length + body.length + 1);
  bytes.set(head);
  bytes.set(body, head.length);
  return bytes;
}

/** Return these bytes as one piece. */
export function join(pieces) {
  if (pieces.length === 1) return pieces[0];
  const bytes = new Uint8Array(pieces.reduce((size, piece) => size + piece.length, 0));
  let at = 0;
  for (const piece of pieces) {
    bytes.set(piece, at);
    at += piece.length;
  }
  return bytes;
}

/** Cuts a server's bytes into frames, wherever its messages begin and end. */
export class Parser {
  #rest = new Uint8Array();

  /** Return the frames that these bytes complete: { command, headers, body }. */
  feed(data) {
    const bytes = this.#rest.length ? join([this.#rest, data]) : data;
    const frames = [];
    let at = 0;
    for (;;) {
      while (bytes[at] === 10 || bytes[at] === 13) at += 1; // heart-beats, and the line end behind a NUL
      const blank = endOfHead(bytes, at);
      if (blank < 0) break;
      const [command, ...lines] = decoder.decode(bytes.subarray(at, blank)).split("\n");
      const headers = {};
      for (const line of lines) {
        const colon = line.indexOf(":");
        const name = unescape(line.slice(0, colon));
        if (!Object.hasOwn(headers, name)) headers[name] = unescape(line.slice(colon + 1));
      }
      const start = blank + 2;
      const length = headers["content-length"];
      const end = length === undefined ? bytes.indexOf(0, start) : start + Number(length);
      if (end < 0 || end >= bytes.length) break;
      frames.push({ command, headers, body: bytes.slice(start, end) });
      at = end + 1;
    }
    this.#rest = bytes.slice(at);
    return frames;
  }
}

function endOfHead(bytes, from) {
  for (let at = bytes.indexOf(10, from); at >= 0; at = bytes.indexOf(10, at + 1)) {
    if (bytes[at + 1] === 10) return at;
  }
  return -1;
}
