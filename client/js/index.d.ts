export type Body = Uint8Array | ArrayBuffer | string | object | number | boolean | null;

export interface Stored {
  /** The server's; empty where it did not say, as for an event. */
  id: string;
  /** It was sent again over another connection, and the server keeps no numbers: it may be there twice. */
  maybeRepeated: boolean;
  /** The server had it already, and did not store it again. */
  repeated: boolean;
}

export interface PublishOptions {
  type?: string;
  headers?: Record<string, string>;
  /** Seconds. */
  delay?: number;
  /** Seconds. */
  ttl?: number;
  /** Messages of one key are delivered one at a time, in order. */
  key?: string;
}

export interface ClientOptions {
  project?: string;
  token?: string | (() => string | Promise<string>);
  /** Called when the server found the login wrong; what was being published is rejected with the same. */
  onRefused?: (refused: Refused) => void;
  /** What publishing to a full queue does; "wait" if missing. */
  onFull?: "wait" | "raise";
  /** Where there is none, as in Node.js before 22: that of "ws". */
  WebSocket?: unknown;
}

export class Refused extends Error {
  constructor(text: string, status: number);
  /** As in HTTP. */
  status: number;
}
export class Unknown extends Error {}
export class Reject extends Error {}
export class Retry extends Error {
  /** Seconds. */
  constructor(delay?: number, reason?: string);
  delay: number;
}

export class Message {
  readonly body: Uint8Array;
  readonly id: string;
  /** How often it was handed out before. */
  readonly tries: number;
  readonly type: string;
  /** Its ordering key; empty where it has none. */
  readonly key: string;
  readonly timestamp: Date;
  readonly headers: Record<string, string>;
  readonly text: string;
  json(): any;
}

export interface Subscription {
  stop(): void;
}

export class Client {
  constructor(url: string, options?: ClientOptions);
  publish(queue: string, body: Body, options?: PublishOptions): Promise<Stored>;
  publishEvent(event: string, body: Body, options?: PublishOptions): Promise<Stored>;
  subscribe(event: string, handler: (message: Message) => void): Subscription;
  worker(
    queue: string,
    handler: (message: Message) => unknown,
    options?: { parallel?: number; prefetch?: number },
  ): Subscription;
  /** Take nothing more, wait until what is in hand is done and what was published has ended, and disconnect. */
  close(timeoutMs?: number): Promise<void>;
}
