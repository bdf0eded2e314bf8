// Forms: the options of a queue, and a message to send.

import { h } from './dom.js'

/** Name, label, and kind of each option that a form can set. Pausing has its own button. */
const OPTIONS = [
  ['cap', 'Cap (bytes, or for example 10MiB)', 'size'],
  ['max_tries', 'Deliveries until a message is dead (0: no limit)', 'number'],
  ['dead_letter', 'Dead-letter queue', 'text'],
  ['ttl', 'Messages expire after, in seconds (0: never)', 'number'],
  ['lease', 'Lease, in seconds', 'number'],
  ['nack_delay', 'Delay of a nacked message, in seconds', 'number'],
  ['nack_delay_max', 'Longest such delay, if it grows with each try, in seconds', 'number'],
  ['max_message_size', 'Largest message (bytes, or for example 1MiB)', 'size'],
  ['overflow', 'When the queue is full', ['refuse', 'drop-oldest']],
  ['unused', 'Delete the queue when unused for, in seconds (empty: never)', 'nullable'],
  ['undo', 'Keep settled messages for an undo, in seconds', 'number'],
  ['idempotency_window', 'Remember idempotency keys, in seconds', 'number'],
  ['oldest_every', 'One of this many deliveries goes to the oldest message, whatever its priority (0: none)', 'number'],
  ['in_flight', 'Most messages of a group in flight (0: no limit)', 'number'],
  ['rate', 'Most deliveries of a group a second (0: no limit)', 'number'],
  ['burst', 'Most deliveries at once after a pause (0: those of a second)', 'number'],
  ['key_limit', 'Most messages of a key in flight (1: in order, 0: no limit)', 'number'],
  ['key_rate', 'Most deliveries of a key a second (0: no limit)', 'number'],
  ['key_burst', 'Most deliveries of a key at once after a pause (0: those of a second)', 'number'],
  ['fair', 'The key with the fewest messages in flight is next', 'flag'],
  ['groups', 'Declared groups, separated by commas', 'list'],
  ['schema', 'JSON Schema of bodies', 'json'],
]

/** The values of empty fields for an existing queue; the other fields are required. */
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

/** Return fields for the options of a queue, or of a new one, whose empty fields take the server's defaults. */
export function optionFields(options = null) {
  return OPTIONS.filter(([name]) => !options || name in options).map(([name, label, kind]) =>
    h('label', {}, label, field(name, kind, shown(options?.[name], kind))))
}

/** Return the options that a form changes. */
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

/** Names in JSON that are not headers of the message's producer. */
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
      // Not filled from the other message: while that one waits, this one would not be stored.
      h('label', {}, 'Unique name', h('input', { name: 'unique', maxlength: 256 })),
      h('label', {}, 'Replaces the waiting one named', h('input', { name: 'replace', maxlength: 256 })),
      h('label', {}, 'Delay, in seconds', h('input', { name: 'delay', type: 'number', min: 0, step: 'any' })),
      h('label', {}, 'ttl, in seconds', h('input', { name: 'ttl', type: 'number', min: 0, step: 'any' }))),
  ]
}

/** Return the message of a form as JSON for a batch; throw an Error for a bad header. */
export function messageIn(data, encoding = undefined) {
  const message = { 'Content-Type': data.get('type'), message: data.get('body') }
  if (encoding) message.encoding = encoding
  for (const name of ['key', 'unique', 'replace']) if (data.get(name)) message[name] = data.get(name)
  for (const name of ['priority', 'delay', 'ttl']) if (data.get(name)) message[name] = Number(data.get(name))
  for (const line of data.get('headers').split('\n').filter(each => each.trim())) {
    const [, name, value] = /^\s*([^:\s]+)\s*:\s*(.*?)\s*$/.exec(line) ?? []
    if (!name) throw new Error(`bad header ${JSON.stringify(line)}: expected name: value`)
    message[/^x-msg-/i.test(name) || !/^x-/i.test(name) ? named(name) : `x-msg-${name}`] = value
  }
  return message
}

/** Headers of CloudEvents and of traces have their own names, all others begin with x-msg-x-. */
const named = name => (/^(ce-|x-msg-|traceparent$|tracestate$|content-encoding$)/i.test(name) ? name : `x-msg-x-${name}`)
