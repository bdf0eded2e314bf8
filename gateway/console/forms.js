// Forms: the options of a queue, and a message to send.

import { h } from './dom.js'

/** Name, label, and kind of each option that a form can set. Pausing has a button of its own. */
const OPTIONS = [
  ['cap', 'Cap (bytes, or as 10MiB)', 'size'],
  ['max_tries', 'Deliveries until a message is dead (0: no limit)', 'number'],
  ['dead_letter', 'Dead-letter queue', 'text'],
  ['ttl', 'Messages expire after, in seconds (0: never)', 'number'],
  ['lease', 'Lease, in seconds', 'number'],
  ['nack_delay', 'Delay of a nacked message, in seconds', 'number'],
  ['nack_delay_max', 'Longest such delay, if it grows with each try, in seconds', 'number'],
  ['max_message_size', 'Largest message (bytes, or as 1MiB)', 'size'],
  ['overflow', 'When the queue is full', ['refuse', 'drop-oldest']],
  ['unused', 'Delete the queue when unused for so many seconds (empty: never)', 'nullable'],
  ['undo', 'Keep settled messages for an undo, in seconds', 'number'],
  ['idempotency_window', 'Remember idempotency keys, in seconds', 'number'],
  ['oldest_every', 'Each delivery of so many goes to the oldest message, whatever its priority (0: none)', 'number'],
  ['in_flight', 'Most messages of a group that are delivered and not settled (0: no limit)', 'number'],
  ['rate', 'Most deliveries of a group a second (0: no limit)', 'number'],
  ['burst', 'Most deliveries at once after a pause (0: those of a second)', 'number'],
  ['key_limit', 'Most messages of a key that are delivered and not settled (1: in order, 0: no limit)', 'number'],
  ['key_rate', 'Most deliveries of a key a second (0: no limit)', 'number'],
  ['key_burst', 'Most deliveries of a key at once after a pause (0: those of a second)', 'number'],
  ['fair', 'The key with the fewest messages in flight is next', 'flag'],
  ['groups', 'Declared groups, separated by commas', 'list'],
  ['schema', 'JSON Schema of bodies', 'json'],
]

/** What an empty field stands for where the queue exists; the others have to be filled in. */
const EMPTY = { text: '', nullable: null, list: [], json: null }

function shown(value, kind) {
  if (value === null || value === undefined) return ''
  if (kind === 'list') return value.join(', ')
  return kind === 'json' ? JSON.stringify(value, null, 2) : String(value)
}

function parsed(text, kind) {
  if (text === '') return EMPTY[kind]
  if (kind === 'flag') return text === 'true'
  if (kind === 'list') return text.split(',').map(each => each.trim()).filter(Boolean)
  if (kind === 'json') return JSON.parse(text)
  return (kind === 'number' || kind === 'nullable' || kind === 'size') && !Number.isNaN(Number(text)) ? Number(text) : text
}

function field(name, kind, text) {
  if (Array.isArray(kind)) return h('select', { name }, kind.map(each => h('option', { value: each, selected: each === text }, each)))
  if (kind === 'json') {
    const area = h('textarea', { name, spellcheck: 'false' })
    area.value = text
    return area
  }
  if (kind === 'flag') return h('select', { name }, ['false', 'true'].map(each => h('option', { value: each, selected: each === text }, each === 'true' ? 'yes' : 'no')))
  const type = kind === 'number' || kind === 'nullable' ? { type: 'number', min: 0, step: 'any' } : {}
  return h('input', { name, value: text, ...type })
}

/** Return fields for the options of a queue, or for those of a new one, where what is left empty is the server's default. */
export function optionFields(options = null) {
  return OPTIONS.filter(([name]) => !options || name in options).map(([name, label, kind]) =>
    h('label', {}, label, field(name, kind, shown(options?.[name], kind))))
}

/** Return the options that a form sets, and only those that change something. */
export function optionsIn(data, options = null) {
  const changes = {}
  for (const [name, , kind] of OPTIONS) {
    const text = (data.get(name) ?? '').trim()
    if (data.get(name) === null || text === shown(options?.[name], kind)) continue
    if (!options && text === (Array.isArray(kind) ? kind[0] : kind === 'flag' ? 'false' : '')) continue
    const value = parsed(text, kind)
    if (value !== undefined) changes[name] = value
  }
  return changes
}

/** Names that JSON has for what is not a header of the message's producer. */
const OWN_FIELDS = new Set(['message', 'encoding', 'Content-Type', 'key', 'timestamp', 'redelivered', 'id', 'tries', 'state', 'due',
  'dead', 'expiry', 'groups', 'priority', 'unique', 'unique_until', 'replace', 'replace_max', 'batch', 'batch_size',
  'batch_to'])

export const headersOf = message => Object.entries(message).filter(([name]) => !OWN_FIELDS.has(name))

/** Return the fields of a message to send, filled in from another. */
export function messageFields(message = {}) {
  const headers = h('textarea', { name: 'headers', class: 'low', placeholder: 'x-tenant: shop', spellcheck: 'false' })
  headers.value = headersOf(message).map(([name, value]) => `${name.replace(/^x-msg-/, '')}: ${value}`).join('\n')
  const body = h('textarea', { name: 'body', autofocus: true, spellcheck: 'false' })
  body.value = message.message ?? ''
  return [
    h('label', {}, 'Content-Type', h('input', { name: 'type', value: message['Content-Type'] ?? 'text/plain', required: true })),
    h('label', {}, message.encoding ? `Body, in ${message.encoding}` : 'Body', body),
    h('label', {}, 'Headers, one a line', headers),
    h('div', { class: 'pair' },
      h('label', {}, 'Ordering key', h('input', { name: 'key', value: message.key ?? '' })),
      h('label', {}, 'Priority, 0 to 9', h('input', { name: 'priority', type: 'number', min: 0, max: 9, value: message.priority ?? '' })),
      // Not that of the other message: as long as it waits, this one would not be stored.
      h('label', {}, 'Unique name', h('input', { name: 'unique', maxlength: 256 })),
      h('label', {}, 'Replaces the one that waits, named', h('input', { name: 'replace', maxlength: 256 })),
      h('label', {}, 'Delay, in seconds', h('input', { name: 'delay', type: 'number', min: 0, step: 'any' })),
      h('label', {}, 'ttl, in seconds', h('input', { name: 'ttl', type: 'number', min: 0, step: 'any' }))),
  ]
}

/** Return the message of a form as JSON for a batch; throw an Error for a header that is none. */
export function messageIn(data, encoding = undefined) {
  const message = { 'Content-Type': data.get('type'), message: data.get('body') }
  if (encoding) message.encoding = encoding
  for (const name of ['key', 'unique', 'replace']) if (data.get(name)) message[name] = data.get(name)
  for (const name of ['priority', 'delay', 'ttl']) if (data.get(name)) message[name] = Number(data.get(name))
  for (const line of data.get('headers').split('\n').filter(each => each.trim())) {
    const [, name, value] = /^\s*([^:\s]+)\s*:\s*(.*?)\s*$/.exec(line) ?? []
    if (!name) throw new Error(`bad header ${JSON.stringify(line)}: name: value is wanted`)
    message[/^x-msg-/i.test(name) || !/^x-/i.test(name) ? named(name) : `x-msg-${name}`] = value
  }
  return message
}

/** Headers of CloudEvents and of traces travel under their own names, all others begin with x-msg-x-. */
const named = name => (/^(ce-|x-msg-|traceparent$|tracestate$|content-encoding$)/i.test(name) ? name : `x-msg-x-${name}`)
