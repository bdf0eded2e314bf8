// A queue's consumers and leases, and the server's sentences on why nothing is delivered.

import * as api from './api.js'
import { h, number, put, sync, table, time } from './dom.js'

const STATES = { ready: 'has room', full: 'full', held: 'does not read', leaving: 'ending', leased: 'leased' }
const KINDS = { consumer: 'Consumer', leases: 'Leases' }
export const PROTOCOLS = {
  stomp: 'STOMP', 'stomp-websocket': 'STOMP, WebSocket', websocket: 'WebSocket', mqks: 'MQKS', http: 'HTTP', mq: 'MQ', sse: 'SSE',
}

/** Title, class and text of each column. */
const COLUMNS = [
  ['Client', 'text', holder => `${KINDS[holder.kind]} ${holder.number}`],
  ['Id', 'text wider', holder => [holder.client, holder.subscription].filter(Boolean).join(' / ') || '–'],
  ['Protocol', 'text', holder => PROTOCOLS[holder.protocol] ?? holder.protocol ?? '–'],
  ['Address', 'text wide', holder => holder.peer ?? '–'],
  ['User', 'text wide', holder => holder.user ?? '–'],
  ['Group', 'text', holder => holder.group || '–'],
  ['Holds', '', holder => number(holder.unsettled)],
  ['At most', 'wide', holder => (holder.window ? number(holder.window) : '–')],
  ['Oldest held, UTC', 'text wide', holder => (holder.oldest_ms ? time(holder.oldest_ms).slice(0, 19) : '–')],
  ['State', 'text', holder => STATES[holder.state] ?? holder.state],
  ['First ends, UTC', 'text wider', holder => (holder.until_ms ? time(holder.until_ms).slice(0, 19) : '–')],
]

export class Holders {
  constructor(name) {
    this.name = name
    this.sentences = h('ul', { class: 'sentences' })
    this.rows = h('tbody')
    this.table = table(COLUMNS.map(([title, kind]) => [title, kind]), this.rows, 'Consumers and leases')
    this.element = h('section', {}, h('div', { class: 'bar' }, h('h2', {}, 'Consumers and leases')), this.sentences, this.table)
    this.table.hidden = true
  }

  /** Poll, and draw the changes. */
  async load() {
    const { sentences, holders } = await api.explain(this.name)
    sync(this.sentences, sentences, text => text, text => h('li', {}, text), () => {})
    const counts = new Map()
    const numbered = holders.map(holder => {
      const kind = `${holder.kind} ${holder.group}`
      counts.set(kind, (counts.get(kind) ?? 0) + 1)
      return { ...holder, key: `${kind} ${counts.get(kind)}`, number: counts.get(kind) }
    })
    sync(this.rows, numbered, holder => holder.key,
      () => h('tr', {}, COLUMNS.map(([, kind]) => h('td', { class: kind || null }))), fill)
    this.table.hidden = !holders.length
  }
}

function fill(line, holder) {
  COLUMNS.forEach(([, , text], index) => put(line.cells[index], text(holder)))
}
