// Messages of a queue, looked at and not taken: a page at a time, each opened with a click.

import * as api from './api.js'
import { ask, bytes, h, notice, table, time } from './dom.js'
import { life } from './life.js'

const LIMIT = 50
const PREVIEW_CHARS = 120
const FIELDS = new Set(['Content-Type', 'timestamp', 'redelivered', 'id', 'tries', 'state', 'due', 'encoding', 'message', 'dead'])
const STATES = { '': 'all', rdy: 'ready', wip: 'unacked', delayed: 'delayed' }
const COLUMNS = [['Id', 'text'], ['State', 'text'], ['Tries', 'text wide'], ['Published, UTC', 'text wide'], ['Type', 'text wider'],
  ['Size', 'text wider'], ['Body', 'text preview'], ['', '']]

export class MessageList {
  constructor(name) {
    this.name = name
    this.last = ''
    this.state = h('select', { 'aria-label': 'State of the messages shown', change: () => this.load() },
      Object.entries(STATES).map(([value, text]) => h('option', { value }, text)))
    this.rows = h('tbody')
    this.table = table(COLUMNS, this.rows, 'Messages')
    this.nothing = h('p', { class: 'empty' }, 'Nothing here.')
    this.more = h('button', { type: 'button', click: () => this.load(this.last) }, 'More')
    this.again = h('button', { type: 'button', click: () => this.load() }, 'Refresh')
    this.element = h('section', {},
      h('div', { class: 'bar' }, h('h2', {}, 'Messages'), this.state, this.again),
      this.table, this.nothing, h('p', {}, this.more))
  }

  /** Show the messages behind the one with the id `after`, or from the beginning. */
  async load(after = '') {
    const found = await api.peek(this.name, { limit: LIMIT, after, state: this.state.value })
    if (!after) this.rows.replaceChildren()
    this.rows.append(...found.map(message => row(message, this)))
    this.last = found.at(-1)?.id ?? after
    this.more.hidden = found.length < LIMIT
    this.table.hidden = !this.rows.children.length
    this.nothing.hidden = !this.table.hidden
  }

  /** Show what is there now, with the keyboard where it can go on. */
  async reload() {
    await this.load()
    this.again.focus()
  }

  /** Send one dead letter back where it came from. */
  async redrive(message) {
    const { stayed } = await api.redrive(this.name, { id: message.id })
    notice(Object.keys(stayed)[0] ?? `${message.id} went back to ${message.dead.queue}`)
    await this.reload()
  }

  /** Put one message into another queue: a dead letter in one step, any other in two. */
  async move(message) {
    const data = await ask('Move one message', [
      h('p', {}, message.dead ? 'The dead letter goes there in one step.'
        : 'It is published there first, with a new id, and then removed here. Whoever takes it in between has it, too.'),
      h('label', {}, 'To', h('input', { name: 'to', required: true, autofocus: true, placeholder: 'queue or project/queue' })),
    ], 'Move')
    if (!data) return
    const to = data.get('to').trim()
    if (message.dead) {
      const { stayed } = await api.redrive(this.name, { id: message.id, to })
      notice(Object.keys(stayed)[0] ?? `${message.id} went to ${to}`)
    } else {
      const [queue, project = this.name.project] = to.split('/').reverse()
      await api.copy(message, { project, queue })
      await api.removeMessage(this.name, message.id)
      notice(`${message.id} went to ${to}`)
    }
    await this.reload()
  }

  async remove(message) {
    const data = await ask('Delete one message?', h('p', {}, `${message.id} is settled as if it were done, wherever it is; named groups keep theirs.`),
      'Delete', { danger: true })
    if (!data) return
    await api.removeMessage(this.name, message.id)
    notice(`${message.id} is gone`)
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
  const cells = texts.map((text, index) => h('td', { class: COLUMNS[index][1] }, String(text),
    index === 1 && message.dead ? h('span', { class: 'badge bad' }, 'dead') : null))
  const line = h('tr', {}, cells, h('td', {}, open))
  let opened = null
  open.addEventListener('click', () => {
    if (opened) {
      opened.remove()
      opened = null
    } else {
      opened = h('tr', { class: 'opened' }, h('td', { colspan: COLUMNS.length }, whole(message, list)))
      line.after(opened)
    }
    open.setAttribute('aria-expanded', String(Boolean(opened)))
    open.textContent = opened ? 'Close' : 'Open'
  })
  return line
}

function whole(message, list) {
  const metadata = [['id', message.id], ['published', time(message.timestamp)], ['Content-Type', message['Content-Type']],
    ['tries', message.tries], ...Object.entries(message).filter(([name]) => !FIELDS.has(name))]
  if (message.due) metadata.push(['due', time(message.due)])
  for (const [name, value] of Object.entries(message.dead ?? {})) metadata.push([`dead ${name}`, name === 'time' ? time(value) : value])
  if (message.encoding) metadata.push(['encoding', message.encoding])
  const story = h('div', { 'aria-live': 'polite' })
  const button = (text, act, danger) => h('button', { type: 'button', class: danger ? 'danger' : null, click: act }, text)
  return [
    h('div', { class: 'bar' },
      message.dead ? button('Redrive', () => list.redrive(message)) : null,
      button('Move one …', () => list.move(message)),
      button('History', async () => story.replaceChildren(...(await life(list.name, message)).filter(Boolean))),
      button('Delete one …', () => list.remove(message), true)),
    story,
    h('dl', { class: 'options' }, metadata.flatMap(([name, value]) => [h('dt', {}, name), h('dd', {}, String(value))])),
    h('pre', { tabindex: 0, 'aria-label': 'Body' }, pretty(message)),
  ]
}

function pretty(message) {
  if (!/\bjson\b/.test(message['Content-Type']) || message.encoding) return message.message
  try {
    return JSON.stringify(JSON.parse(message.message), null, 2)
  } catch {
    return message.message
  }
}
