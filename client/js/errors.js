// How a publish ends badly, and what a handler throws.

/** The server said no: nothing was stored. `status` as in HTTP. */
export class Refused extends Error {
  name = "Refused";

  constructor(text, status) {
    super(text);
    this.status = status;
  }
}

/** Given up before the answer arrived: it may have been stored, or not. */
export class Unknown extends Error {
  name = "Unknown";
}

/** Thrown by a handler: the message moves to the dead-letter queue, with this text as the reason. */
export class Reject extends Error {
  name = "Reject";
}

/** Thrown by a handler: the message is delivered again after so many seconds. */
export class Retry extends Error {
  name = "Retry";

  constructor(delay = 0, reason = `again in ${delay} s`) {
    super(reason);
    this.delay = delay;
  }
}
