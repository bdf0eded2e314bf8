// Messages of a queue, looked at and not taken: a page at a time, each opened with a click.

import * as api from './api.js'
import { bytes, h, notice } from './dom.js'

const LIMIT = 50
const PREVIEW_CHARS = 120
const COLUMNS = 8
const FIELDS = new Set(['Content-Type', 'timestamp', 'redelivered', 'id', 'tries', 'state', 'due', 'encoding', 'message', 'dead'])
const STATES = { '': 'all', rdy: 'ready', wip: 'unacked', delayed: 'delayed' }

const time = ms => new Date(ms).toISOString().replace('T', ' ').replace('Z', '')

export class MessageList {
  constructor(name) {
    this.name = name
    this.last = ''
    this.state = h('select', { 'aria-label': 'State', change: () => this.load() },
      Object.entries(STATES).map(([value, text]) => h('option', { value }, text)))
    this.rows = h('tbody')
    this.more = h('button', { type: 'button', click: () => this.load(this.last) }, 'More')
    const heads = ['Id', 'State', 'Tries', 'Published, UTC', 'Type', 'Size'].map(title => h('th', { scope: 'col', class: 'text' }, title))
    this.element = h('section', {},
      h('div', { class: 'bar' }, h('h2', {}, 'Messages'), this.state,
        h('button', { type: 'button', click: () => this.load() }, 'Look again')),
      h('div', { class: 'scroll' }, h('table', {},
        h('thead', {}, h('tr', {}, heads, h('th', { scope: 'col', class: 'text' }, 'Body'), h('td'))), this.rows)),
      h('p', {}, this.more))
  }

  /** Show the messages behind the one with the id `after`, or from the beginning. */
  async load(after = '') {
    const found = await api.peek(this.name, { limit: LIMIT, after, state: this.state.value })
    if (!after) this.rows.replaceChildren()
    this.rows.append(...found.map(message => row(message, this)))
    this.last = found.at(-1)?.id ?? after
    this.more.hidden = found.length < LIMIT
    if (!this.rows.children.length) this.rows.append(h('tr', {}, h('td', { class: 'empty', colspan: COLUMNS }, 'Nothing here.')))
  }

  /** Show what happened to a message, in place of the button. */
  async history(message, button) {
    const { events } = await api.history(this.name, message.id)
    const lines = events.map(({ event, time: at, ...more }) => h('li', {}, `${time(at)} ${event} ${JSON.stringify(more)}`))
    button.replaceWith(h('ol', {}, lines))
  }

  /** Send one dead letter back where it came from. */
  async redrive(message) {
    const { stayed } = await api.redrive(this.name, { id: message.id })
    notice(Object.keys(stayed)[0] ?? `${message.id} went back to ${message.dead.queue}`)
    await this.load()
  }
}

function size(message) {
  if (message.encoding === 'base64') return Math.floor(message.message.replace(/=+$/, '').length * 3 / 4)
  return new TextEncoder().encode(message.message).length
}

function row(message, list) {
  const cells = [message.id, STATES[message.state], message.tries, time(message.timestamp), message['Content-Type'], bytes(size(message))]
  const open = h('button', { type: 'button', 'aria-expanded': 'false', title: 'Show all of it' }, 'Open')
  const line = h('tr', {}, cells.map((cell, index) => h('td', { class: 'text' }, String(cell), index === 1 && message.dead
    ? h('span', { class: 'badge bad' }, 'dead') : null)),
  h('td', { class: 'text preview' }, message.message.slice(0, PREVIEW_CHARS)), h('td', {}, open))
  let opened = null
  open.addEventListener('click', () => {
    if (opened) {
      opened.remove()
      opened = null
    } else {
      opened = h('tr', { class: 'opened' }, h('td', { colspan: COLUMNS }, whole(message, list)))
      line.after(opened)
    }
    open.setAttribute('aria-expanded', String(Boolean(opened)))
    open.textContent = opened ? 'Close' : 'Open'
  })
  return line
}

function whole(message, list) {
  const metadata = Object.entries(message).filter(([name]) => !FIELDS.has(name))
  if (message.due) metadata.push(['due', time(message.due)])
  for (const [name, value] of Object.entries(message.dead ?? {})) metadata.push([`dead ${name}`, name === 'time' ? time(value) : value])
  if (message.encoding) metadata.push(['encoding', message.encoding])
  return [
    h('p', {}, h('button', { type: 'button', click: event => list.history(message, event.target) }, 'History'),
      message.dead ? h('button', { type: 'button', click: () => list.redrive(message) }, 'Redrive') : null),
    h('dl', { class: 'options' }, metadata.flatMap(([name, value]) => [h('dt', {}, name), h('dd', {}, String(value))])),
    h('pre', {}, pretty(message)),
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
