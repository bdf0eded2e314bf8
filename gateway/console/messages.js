// The messages of a queue, peeked page by page, each opened with a click.

import * as api from './api.js'
import { Bulk, death } from './bulk.js'
import { ask, bytes, h, notice, number, put, table, time } from './dom.js'
import { headersOf, messageFields, messageIn } from './forms.js'
import { messageHistory } from './message_history.js'

const LIMIT = 50
const PREVIEW_CHARS = 120
const STATES = { '': 'all', rdy: 'ready', wip: 'unacked', delayed: 'delayed' }
const COLUMNS = [['', 'box'], ['Id', 'text wide'], ['State', 'text'], ['Tries', 'text wide'], ['Published, UTC', 'text wide'],
  ['Type', 'text wider'], ['Size', 'text wider'], ['Body', 'text preview'], ['', 'open']]

export class MessageList {
  /** `found` is called with the messages after each load. */
  constructor(name, found, text = '') {
    this.name = name
    this.found = found
    this.last = ''
    this.shown = []
    this.state = h('select', { 'aria-label': 'State of the messages shown', change: () => this.load() },
      Object.entries(STATES).map(([value, text]) => h('option', { value }, text)))
    this.bulk = new Bulk(this)
    this.rows = h('tbody')
    this.table = table(COLUMNS, this.rows, 'Messages')
    this.table.classList.add('messages')
    this.table.querySelector('thead td').append(this.bulk.all)
    this.nothing = h('p', { class: 'empty' }, 'No messages.')
    this.more = h('button', { type: 'button', click: () => this.loadMore() }, 'More')
    this.again = h('button', { type: 'button', click: () => this.load() }, 'Refresh')
    this.text = h('input', { type: 'search', placeholder: 'Search bodies and headers', 'aria-label': 'Search bodies and headers', value: text })
    this.passing = h('input', { placeholder: 'Filter: priority > 5', 'aria-label': 'Filter on headers' })
    this.looked = h('p', { class: 'looked', role: 'status' })
    this.element = h('section', {},
      h('div', { class: 'bar' }, h('h2', {}, 'Messages'), this.bulk.cause,
        h('form', { class: 'search', submit: event => { event.preventDefault(); this.load() } }, this.text, this.passing, h('button', {}, 'Search')),
        this.state, this.again),
      this.bulk.bar, this.table, this.nothing, this.looked, h('p', {}, this.more))
  }

  /** Show the first messages, or the first matches. */
  async load() {
    this.shown = []
    this.total = { messages: 0, bytes: 0 }
    await this.loadMore('')
  }

  /** Show the messages after the last one seen, or from the beginning. */
  async loadMore(after = this.last) {
    const [text, filter] = [this.text.value.trim(), this.passing.value.trim()]
    const isSearch = Boolean(text || filter)
    const { messages, next } = isSearch ? await this.search(text, filter, after) : await this.peek(after)
    this.shown.push(...messages.map(message => [message, row(message, this)]))
    this.last = next ?? messages.at(-1)?.id ?? after
    this.more.hidden = !next
    put(this.more, isSearch ? 'Search on' : 'More')
    this.bulk.offer(this.shown.map(([message]) => message))
    this.filter()
    put(this.nothing, isSearch ? 'Nothing found.' : 'No messages.')
    put(this.looked, isSearch ? `Searched ${number(this.total.messages)} messages, ${bytes(this.total.bytes)}${next ? '; there are more' : ''}.` : '')
    this.found(this.shown.map(([message]) => message))
  }

  async search(text, filter, after) {
    const { messages, looked, next } = await api.search(this.name, text, filter, after)
    this.total.messages += looked.messages
    this.total.bytes += looked.bytes
    return { messages: messages.filter(({ state }) => ['', state].includes(this.state.value)), next }
  }

  /** Return messages, and the last id if there are more: large messages end a reply before the limit. */
  async peek(after) {
    const wanted = { after, state: this.state.value }
    const messages = await api.peek(this.name, { limit: LIMIT, ...wanted })
    const last = messages.at(-1)?.id
    const isMore = last && (messages.length === LIMIT || (await api.peek(this.name, { ...wanted, limit: 1, after: last })).length)
    return { messages, next: isMore ? last : undefined }
  }

  /** Show the rows with the chosen cause. */
  filter() {
    for (const [message, line] of this.shown) line.hidden = !this.bulk.isWanted(message)
    this.rows.replaceChildren(...this.shown.map(([, line]) => line))
    this.table.hidden = !this.shown.length
    this.nothing.hidden = Boolean(this.shown.length)
    this.bulk.draw()
  }

  /** Reload, and restore the keyboard focus. */
  async reload() {
    await this.load()
    this.again.focus()
  }

  /** Redrive one dead letter to the queue where it died. */
  async redrive(message) {
    const { stayed } = await api.redrive(this.name, { id: message.id })
    notice(Object.keys(stayed)[0] ?? `${message.id} redriven to ${message.dead.queue}`)
    await this.reload()
  }

  /** Move one message to another queue: a dead letter in one step, any other in two. */
  async move(message) {
    const data = await ask('Move one message', [
      h('p', {}, message.dead ? 'The dead letter is moved in one step.'
        : 'It is published there first, with a new id, and then removed here. A consumer may receive it in between, too.'),
      h('label', {}, 'To', h('input', { name: 'to', required: true, autofocus: true, placeholder: 'queue or project/queue' })),
    ], 'Move')
    if (!data) return
    const to = data.get('to').trim()
    if (message.dead) {
      const { stayed } = await api.redrive(this.name, { id: message.id, to })
      notice(Object.keys(stayed)[0] ?? `${message.id} moved to ${to}`)
    } else {
      const [queue, project = this.name.project] = to.split('/').reverse()
      await api.copy(message, { project, queue })
      await api.removeMessage(this.name, message.id)
      notice(`${message.id} moved to ${to}`)
    }
    await this.reload()
  }

  /** Send an edited copy of a message, and delete the original if chosen. */
  async resend(message) {
    const home = message.dead?.queue ?? `${this.name.project}/${this.name.queue}`
    const data = await ask('Edit and resend', [
      h('label', {}, 'To', h('input', { name: 'to', required: true, value: home })),
      messageFields(message),
      h('label', { class: 'check' }, h('input', { name: 'remove', type: 'checkbox', checked: Boolean(message.dead) }), ' Delete the original'),
    ], 'Send')
    if (!data) return
    const [queue, project = this.name.project] = data.get('to').trim().split('/').reverse()
    const id = await api.send({ project, queue }, messageIn(data, message.encoding))
    if (data.get('remove') !== null) await api.removeMessage(this.name, message.id)
    notice(`${id} is in ${project}/${queue}`)
    await this.reload()
  }

  async remove(message) {
    const data = await ask('Delete one message?', h('p', {}, `${message.id} is settled, in any state; named groups keep their copies.`),
      'Delete', { danger: true })
    if (!data) return
    await api.removeMessage(this.name, message.id)
    notice(`${message.id} deleted`)
    await this.reload()
  }
}

function size(message) {
  if (message.encoding === 'base64') return Math.floor(message.message.replace(/=+$/, '').length * 3 / 4)
  return new TextEncoder().encode(message.message).length
}

function row(message, list) {
  const texts = [message.id, STATES[message.state], message.tries, time(message.timestamp), message['Content-Type'],
    bytes(size(message)), message.message.slice(0, PREVIEW_CHARS)]
  const open = h('button', { type: 'button', 'aria-expanded': 'false', title: 'Show all of it' }, 'Open')
  const cells = texts.map((text, index) => h('td', { class: COLUMNS[index + 1][1] }, String(text),
    index === 1 && message.dead ? h('span', { class: 'badge bad' }, 'dead') : null,
    index === texts.length - 1 && message.dead ? h('small', { class: 'death', title: death(message.dead) }, death(message.dead)) : null))
  const box = h('input', { type: 'checkbox', 'aria-label': `Select ${message.id}`, change: () => list.bulk.draw() })
  const line = h('tr', {}, h('td', { class: 'box' }, box), cells, h('td', { class: 'open' }, open))
  line.box = box
  let opened = null
  open.addEventListener('click', () => {
    if (opened) {
      opened.remove()
      opened = null
    } else {
      opened = h('tr', { class: 'opened' }, h('td', { colspan: COLUMNS.length }, details(message, list)))
      line.after(opened)
    }
    open.setAttribute('aria-expanded', String(Boolean(opened)))
    open.textContent = opened ? 'Close' : 'Open'
  })
  return line
}

function details(message, list) {
  const metadata = [['id', message.id], ['published', time(message.timestamp)], ['Content-Type', message['Content-Type']],
    ['tries', message.tries], ...headersOf(message)]
  if (message.key) metadata.push(['key', message.key])
  if (message.priority !== undefined) metadata.push(['priority', message.priority])
  if (message.unique) metadata.push(['unique name', `${message.unique}, until ${message.unique_until ?? 'settled'}`])
  if (message.replace) metadata.push(['replaces', message.replace])
  if (message.batch) metadata.push(['batch', message.batch])
  if (message.groups) metadata.push(['groups', message.groups.join(', ')])
  if (message.expiry) metadata.push(['expires', time(message.expiry)])
  if (message.due) metadata.push(['due', time(message.due)])
  for (const [name, value] of Object.entries(message.dead ?? {})) metadata.push([`dead ${name}`, name === 'time' ? time(value) : value])
  if (message.encoding) metadata.push(['encoding', message.encoding])
  const story = h('div', { 'aria-live': 'polite' })
  const button = (text, act, danger) => h('button', { type: 'button', class: danger ? 'danger' : null, click: act }, text)
  return [
    h('div', { class: 'bar' },
      message.dead ? button('Redrive', () => list.redrive(message)) : null,
      button('Move one …', () => list.move(message)),
      button('Edit and resend …', () => list.resend(message)),
      button('History', async () => story.replaceChildren(...(await messageHistory(list.name, message)).filter(Boolean))),
      button('Delete one …', () => list.remove(message), true)),
    story,
    h('dl', { class: 'options' }, metadata.flatMap(([name, value]) => [h('dt', {}, name), h('dd', {}, String(value))])),
    h('pre', { tabindex: 0, 'aria-label': 'Body' }, formatted(message)),
  ]
}

function formatted(message) {
  if (!/\bjson\b/.test(message['Content-Type']) || message.encoding) return message.message
  try {
    return JSON.stringify(JSON.parse(message.message), null, 2)
  } catch {
    return message.message
  }
}
