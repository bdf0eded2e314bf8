import createClient, { type Client, type ClientOptions } from "openapi-fetch";
import type { components, paths } from "./schema.js";

export type { components, operations, paths } from "./schema.js";
export type Schemas = components["schemas"];
export type Curbstone = Client<paths>;

/** Returns a client of the server at `baseUrl`; its calls are typed by the contract. */
export function curbstone(options: ClientOptions & { baseUrl: string }): Curbstone {
  return createClient<paths>(options);
}

/** For `bodySerializer` where a body is to be sent as it is, such as a message. */
export const asItIs = (body: unknown): BodyInit => body as BodyInit;
