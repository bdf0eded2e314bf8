// The server's public HTTP interface, which is all the console uses (see openapi.yaml).

/** What the session's cookie counts only with: no page of another origin can send it. */
const OURS = { 'x-curbstone-console': '1' }

/** Return the server's reply; what it refused is thrown in its own words. */
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
/** Return what the server has recorded over a `span`, hour or day, of itself or of `queues`. */
export const recorded = (span, queues, since = 0) => json('GET', `v2/stats/history?${new URLSearchParams({
  span, since, ...(queues ? { queue: queues.map(({ project, queue }) => `${project}/${queue}`).join() } : {}),
})}`)
export const info = name => json('GET', pathOf(name))
export const groups = name => json('GET', `${pathOf(name)}/groups`)
export const declare = (name, options) => call('PUT', pathOf(name), JSON.stringify(options))
export const remove = name => call('DELETE', pathOf(name))
export const purge = (name, keep) => json('POST', `${pathOf(name)}/purge`, { keep })
/** Restore settled messages: all that the log has, or those that `request` names. */
export const undo = (name, request) => json('POST', `${pathOf(name)}/undo`, request)
/** Have a queue deliver nothing (`pause`), or undo that (`resume`). */
export const halt = (name, verb) => json('POST', `${pathOf(name)}/${verb}`)
export const redrive = (name, request) => json('POST', `${pathOf(name)}/redrive`, request)
/** Return what the log says of one message: `events`, its `state`, and `next` where there was more to look through. */
export const history = (name, id) => json('GET', `${pathOf(name)}/messages/${encodeURIComponent(id)}/history`)

/** Say in sentences why nothing is delivered, or where a message is, and who takes from the queue. */
export const explain = (name, id) => json('GET', `${pathOf(name)}/explain${id ? `?${new URLSearchParams({ id })}` : ''}`)

/** Return the keys with the most messages waiting. */
export const keys = name => json('GET', `${pathOf(name)}/keys`)

const messagePath = (name, id) => `${pathOf(name)}/messages/${encodeURIComponent(id)}`

/** Settle one message for consumers without a group, whatever its state. */
export const removeMessage = (name, id) => call('DELETE', messagePath(name, id))

/** The batches of a queue that have not ended, the first by id. */
export const batches = name => json('GET', `${pathOf(name)}/batches?limit=100`)

/** Publish a message as it was peeked to another queue, without its unique name and its batch; the same again publishes nothing. */
export const copy = ({ unique, unique_until: until, replace, replace_max: most, batch, batch_size: size, batch_to: report, ...message }, to) => call('POST', `${pathOf(to)}/messages/batch`, JSON.stringify([message]), {
  'content-type': 'application/json', 'idempotency-key': `move-${message.id}`,
})

const inBase64 = text => btoa(String.fromCharCode(...new TextEncoder().encode(text)))

/** Begin a session, by a password or a token; the secret stays with the browser's cookies. */
export const login = (user, secret) => call('POST', 'v2/session', undefined, {
  authorization: user ? `Basic ${inBase64(`${user}:${secret}`)}` : `Bearer ${secret}`,
})
export const logout = () => call('DELETE', 'v2/session')
/** Return who one is, or null where one has to log in. */
export const who = () => json('GET', 'v2/session').catch(error => {
  if (error.status === 401) return null
  throw error
})
export const tokens = () => json('GET', 'v2/tokens').then(reply => reply.tokens)
export const revoke = id => call('DELETE', `v2/tokens/${id}`)
export const connections = () => json('GET', 'v2/connections').then(reply => reply.connections)
export const endConnection = id => call('DELETE', `v2/connections/${id}`)
/** Return who keeps a second copy of what the server has. */
export const standby = () => json('GET', 'v2/standby')
export const audit = () => json('GET', 'v2/audit').then(reply => reply.audit)

/** Send a message, as JSON of a batch; resolve to its id. */
export const send = (name, message) => call('POST', `${pathOf(name)}/messages/batch`, JSON.stringify([message]), {
  'content-type': 'application/json',
}).then(reply => reply.json()).then(({ ids }) => ids[0])

/** Look for a text in bodies and headers, or for what passes a filter, behind the message with the id `after`; `next` says where to continue. */
export const search = (name, text, filter, after) => json('GET',
  `${pathOf(name)}/search?${new URLSearchParams({ ...(text && { text }), ...(filter && { filter }), ...(after && { after }) })}`)

const bindingPath = ({ project, queue }, event) =>
  `v2/${encodeURIComponent(project)}/events/${encodeURIComponent(event)}/queues/${encodeURIComponent(queue)}`
export const bind = (name, event, filter) => call('PUT', bindingPath(name, event), JSON.stringify({ filter }), {
  'content-type': 'application/json',
})
export const unbind = (name, event) => call('DELETE', bindingPath(name, event))

/** Look at messages behind the one with the id `after`, without taking any. */
export async function peek(name, { limit, after, state }) {
  const query = new URLSearchParams({ limit, state })
  if (after) query.set('after', after)
  return (await json('GET', `${pathOf(name)}/messages?${query}`)).messages
}

/** Return what /readyz says: ready, or the reasons why not. */
export async function readiness() {
  try {
    const reply = await fetch('readyz', { cache: 'no-store' })
    return await reply.json()
  } catch {
    return { status: 'unreachable', detail: 'the server can’t be reached' }
  }
}
