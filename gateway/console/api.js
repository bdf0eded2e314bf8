// The server's public HTTP interface; the console uses nothing else (see openapi.yaml).

/** The header that the session's cookie needs: no page of another origin can send it. */
const OURS = { 'x-curbstone-console': '1' }

/** Return the server's reply; throw its error text if it refused. */
async function call(method, path, body, headers = {}) {
  let reply
  try {
    reply = await fetch(path, { method, body, headers: { ...OURS, ...headers }, cache: 'no-store' })
  } catch {
    throw new Error('the server can’t be reached')
  }
  if (reply.ok) return reply
  const text = await reply.text()
  let reason = text
  try {
    reason = JSON.parse(text).detail
  } catch { /* it was not JSON: shown as it is */ }
  throw Object.assign(new Error(`${reason} (${reply.status})`), { status: reply.status })
}

const json = (method, path, value) =>
  call(method, path, value === undefined ? undefined : JSON.stringify(value)).then(reply => reply.json())

const pathOf = ({ project, queue }) => `v2/${encodeURIComponent(project)}/queues/${encodeURIComponent(queue)}`

export const stats = wanted => json('GET', `v2/stats?${new URLSearchParams(wanted)}`)
/** Return the recorded history of the server, or of `queues`, over a `span`: hour or day. */
export const recorded = (span, queues, since = 0) => json('GET', `v2/stats/history?${new URLSearchParams({
  span, since, ...(queues ? { queue: queues.map(({ project, queue }) => `${project}/${queue}`).join() } : {}),
})}`)
export const info = name => json('GET', pathOf(name))
export const groups = name => json('GET', `${pathOf(name)}/groups`)
export const declare = (name, options) => call('PUT', pathOf(name), JSON.stringify(options))
export const remove = name => call('DELETE', pathOf(name))
export const purge = (name, keep) => json('POST', `${pathOf(name)}/purge`, { keep })
/** Restore settled messages: all that the log has, or those in `request`. */
export const undo = (name, request) => json('POST', `${pathOf(name)}/undo`, request)
/** Pause or resume a queue's deliveries. */
export const halt = (name, verb) => json('POST', `${pathOf(name)}/${verb}`)
export const redrive = (name, request) => json('POST', `${pathOf(name)}/redrive`, request)
/** Return the history of one message: `events`, its `state`, and `next` if the search was incomplete. */
export const history = (name, id) => json('GET', `${pathOf(name)}/messages/${encodeURIComponent(id)}/history`)

/** Return sentences on why nothing is delivered, or on the state of a message, and the queue's consumers. */
export const explain = (name, id) => json('GET', `${pathOf(name)}/explain${id ? `?${new URLSearchParams({ id })}` : ''}`)

/** Return the keys with the most messages waiting. */
export const keys = name => json('GET', `${pathOf(name)}/keys`)

const messagePath = (name, id) => `${pathOf(name)}/messages/${encodeURIComponent(id)}`

/** Settle one message, in any state, for consumers without a group. */
export const removeMessage = (name, id) => call('DELETE', messagePath(name, id))

/** Return the first open batches of a queue, by id. */
export const batches = name => json('GET', `${pathOf(name)}/batches?limit=100`)

/** Publish a peeked message to another queue, without its unique name and its batch; repeating the call publishes nothing. */
export const copy = ({ unique, unique_until: until, replace, replace_max: most, batch, batch_size: size, batch_to: report, ...message }, to) => call('POST', `${pathOf(to)}/messages/batch`, JSON.stringify([message]), {
  'content-type': 'application/json', 'idempotency-key': `move-${message.id}`,
})

const inBase64 = text => btoa(String.fromCharCode(...new TextEncoder().encode(text)))

/** Begin a session, by a password or a token; the secret stays with the browser's cookies. */
export const login = (user, secret) => call('POST', 'v2/session', undefined, {
  authorization: user ? `Basic ${inBase64(`${user}:${secret}`)}` : `Bearer ${secret}`,
})
export const logout = () => call('DELETE', 'v2/session')
/** Return the session's user, or null if a login is needed. */
export const who = () => json('GET', 'v2/session').catch(error => {
  if (error.status === 401) return null
  throw error
})
export const tokens = () => json('GET', 'v2/tokens').then(reply => reply.tokens)
export const revoke = id => call('DELETE', `v2/tokens/${id}`)
export const connections = () => json('GET', 'v2/connections').then(reply => reply.connections)
export const endConnection = id => call('DELETE', `v2/connections/${id}`)
/** Return the followers of the server. */
export const standby = () => json('GET', 'v2/standby')
export const audit = () => json('GET', 'v2/audit').then(reply => reply.audit)

/** Send a message, as JSON of a batch; resolve to its id. */
export const send = (name, message) => call('POST', `${pathOf(name)}/messages/batch`, JSON.stringify([message]), {
  'content-type': 'application/json',
}).then(reply => reply.json()).then(({ ids }) => ids[0])

/** Search after the message with the id `after` for a text in bodies and headers, or by a filter; `next` is where to continue. */
export const search = (name, text, filter, after) => json('GET',
  `${pathOf(name)}/search?${new URLSearchParams({ ...(text && { text }), ...(filter && { filter }), ...(after && { after }) })}`)

const bindingPath = ({ project, queue }, event) =>
  `v2/${encodeURIComponent(project)}/events/${encodeURIComponent(event)}/queues/${encodeURIComponent(queue)}`
export const bind = (name, event, filter) => call('PUT', bindingPath(name, event), JSON.stringify({ filter }), {
  'content-type': 'application/json',
})
export const unbind = (name, event) => call('DELETE', bindingPath(name, event))

/** Peek at the messages after the one with the id `after`. */
export async function peek(name, { limit, after, state }) {
  const query = new URLSearchParams({ limit, state })
  if (after) query.set('after', after)
  return (await json('GET', `${pathOf(name)}/messages?${query}`)).messages
}

/** Return the reply of /readyz: ready, or the reasons why not. */
export async function readiness() {
  try {
    const reply = await fetch('readyz', { cache: 'no-store' })
    return await reply.json()
  } catch {
    return { status: 'unreachable', detail: 'the server can’t be reached' }
  }
}
