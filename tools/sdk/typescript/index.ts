import createClient, { type Client, type ClientOptions } from "openapi-fetch";
import type { components, paths } from "./schema.js";

export type { components, operations, paths } from "./schema.js";
export type Schemas = components["schemas"];
export type Curbstone = Client<paths>;

/** What logs in: an API token, a session or a JWT; a function is asked at each call. */
export type Token = string | (() => string | Promise<string>);

/** Returns a client of the server at `baseUrl`; its calls are typed by the contract. */
export function curbstone({ token, ...options }: ClientOptions & { baseUrl: string; token?: Token }): Curbstone {
  const client = createClient<paths>(options);
  if (token !== undefined) {
    client.use({
      async onRequest({ request }) {
        request.headers.set("Authorization", `Bearer ${typeof token === "function" ? await token() : token}`);
        return request;
      },
    });
  }
  return client;
}

/** For `bodySerializer` where a body is to be sent as it is, such as a message. */
export const asItIs = (body: unknown): BodyInit => body as BodyInit;
