export type Body = Uint8Array | ArrayBuffer | string | object | number | boolean | null;

export interface Stored {
  /** The id that the server gave the message; empty if the server did not name one, as for an event. */
  id: string;
  /**
   * Whether the message may be stored twice: it was sent again over another connection, and the server does not store the
   * numbers of messages.
   */
  maybeRepeated: boolean;
  /** Whether it was not stored, because the server has it, or another one with its unique name; `id` is that of the stored one. */
  repeated: boolean;
}

export interface PublishOptions {
  type?: string;
  headers?: Record<string, string>;
  /** How many seconds before the message is delivered. */
  delay?: number;
  /** How many seconds until the message expires. */
  ttl?: number;
  /** The ordering key. Messages with the same key are delivered in order, one at a time. */
  key?: string;
  /** From 0 to 9; 4 if it is not given. Messages of a higher priority are delivered first. */
  priority?: number;
  /** A unique name: while a message with this name is in the queue, no other one with it is stored. */
  unique?: string;
  /** "delivered": the name is free after the first delivery, and not only when the message is settled. */
  uniqueUntil?: "settled" | "delivered";
  /** A name: the message replaces the waiting one with this name. */
  replace?: string;
  /** For how many seconds that one and those it has replaced may have waited; after that it is not replaced. */
  replaceMax?: number;
  /** The id of a batch: when all of its messages are settled, the queue `batchTo` gets a report. */
  batch?: string;
  /** How many messages the batch has; at least one of its messages must have this. */
  batchSize?: number;
  /** The queue for the report, in the same project; at least one message of the batch must have this. */
  batchTo?: string;
  /**
   * A message that is published again under the same key, within the queue's `idempotency_window`, is stored once and has the
   * same id; with other content it is refused with status 422. 1 to 255 visible ASCII characters; not for events.
   */
  idempotencyKey?: string;
}

export interface WorkerOptions {
  /** The name of an independent reader of the queue. */
  group?: string;
  /** How many messages are handled at once; by default 1. */
  parallel?: number;
  /** How many unsettled messages the client holds; by default twice `parallel`. */
  prefetch?: number;
}

export interface ClientOptions {
  project?: string;
  token?: string | (() => string | Promise<string>);
  /** Called if the server refuses the login. All pending publishes are rejected with the same error. */
  onRefused?: (refused: Refused) => void;
  /** What publishing to a full queue does: wait until there is room (the default), or fail. */
  onFull?: "wait" | "raise";
  /** The WebSocket class to use if there is no global one, as in Node.js before version 22; for example of the package "ws". */
  WebSocket?: unknown;
}

export class Refused extends Error {
  constructor(text: string, status: number);
  /** The status, as in HTTP. */
  status: number;
}
export class Unknown extends Error {}
export class Reject extends Error {}
export class Retry extends Error {
  /** `delay` is in seconds. */
  constructor(delay?: number, reason?: string);
  delay: number;
}

export class Message {
  readonly body: Uint8Array;
  readonly id: string;
  /** How often the message was delivered before. */
  readonly tries: number;
  readonly type: string;
  /** The ordering key; empty if the message has none. */
  readonly key: string;
  /** From 0 to 9; 4 if the message was published without one. */
  readonly priority: number;
  /** Its unique name; empty if there is none. */
  readonly unique: string;
  /** The name of messages of which each replaces the waiting one; empty if there is none. */
  readonly replace: string;
  /** The id of its batch, or of the batch whose report it is; empty if there is none. */
  readonly batch: string;
  readonly timestamp: Date;
  readonly headers: Record<string, string>;
  readonly text: string;
  json(): any;
}

export interface Subscription {
  stop(): void;
}

export class Client {
  constructor(url: string | string[], options?: ClientOptions);
  publish(queue: string, body: Body, options?: PublishOptions): Promise<Stored>;
  publishEvent(event: string, body: Body, options?: PublishOptions): Promise<Stored>;
  subscribe(
    event: string,
    handler: (message: Message) => void,
    options?: { filter?: string },
  ): Subscription;
  worker(
    queue: string,
    handler: (message: Message) => unknown,
    options?: WorkerOptions,
  ): Subscription;
  /** Take no more messages, wait until handlers and publishes have ended, and disconnect. */
  close(timeoutMs?: number): Promise<void>;
}
