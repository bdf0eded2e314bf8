// Who takes from a queue, and what each of them holds; and why nothing is delivered, in the server's own sentences.

import * as api from './api.js'
import { h, number, put, sync, table, time } from './dom.js'

const STATES = { ready: 'has room', full: 'full', held: 'does not read', leased: 'leased' }
const KINDS = { consumer: 'Consumer', leases: 'Leases' }

export class Holders {
  constructor(name) {
    this.name = name
    this.sentences = h('ul', { class: 'sentences' })
    this.rows = h('tbody')
    this.table = table([['Who', 'text'], ['Group', 'text'], 'Holds', 'At most', ['State', 'text'], ['Until, UTC', 'text wide']],
      this.rows, 'Consumers and leases')
    this.element = h('section', {}, h('div', { class: 'bar' }, h('h2', {}, 'Who takes from it')), this.sentences, this.table)
    this.table.hidden = true
  }

  /** Ask again, and draw what changed. */
  async load() {
    const { sentences, holders } = await api.explain(this.name)
    sync(this.sentences, sentences, text => text, text => h('li', {}, text), () => {})
    const counts = new Map()
    const numbered = holders.map(holder => {
      const kind = `${holder.kind} ${holder.group}`
      counts.set(kind, (counts.get(kind) ?? 0) + 1)
      return { ...holder, key: `${kind} ${counts.get(kind)}`, number: counts.get(kind) }
    })
    sync(this.rows, numbered, holder => holder.key, () => h('tr', {}, Array.from({ length: 6 }, (_, index) =>
      h('td', { class: index === 2 || index === 3 ? null : index === 5 ? 'text wide' : 'text' }))), fill)
    this.table.hidden = !holders.length
  }
}

function fill(line, holder) {
  const texts = [
    holder.kind === 'consumer' ? `${KINDS.consumer} ${holder.number}` : KINDS[holder.kind], holder.group || '–',
    number(holder.unsettled), holder.window ? number(holder.window) : '–', STATES[holder.state] ?? holder.state,
    holder.until_ms ? `first ends ${time(holder.until_ms).slice(0, 19)}` : '–',
  ]
  texts.forEach((text, index) => put(line.cells[index], text))
}
