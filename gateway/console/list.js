// All queues in a table that can be sorted and filtered.

import * as api from './api.js'
import { ask, bytes, h, notice, number } from './dom.js'
import { KEPT } from './figures.js'
import { sparkline } from './sparkline.js'

/** How many queues are shown at once. Of more the server says which: those with the most of what is sorted by. */
const SHOWN = 500

/** Title, value, and what the server sorts by. */
const COLUMNS = [
  ['Queue', course => `${course.figures.project}/${course.figures.queue}`, 'name'],
  ['Ready', course => course.figures.messages_ready, 'messages_ready'],
  ['Unacked', course => course.figures.messages_unacked, 'messages_unacked'],
  ['Delayed', course => course.figures.messages_delayed, 'messages_delayed'],
  ['Consumers', course => course.figures.consumers, 'consumers'],
  ['In /s', course => course.rates.in, 'messages_published'],
  ['Out /s', course => course.rates.out, 'messages_delivered'],
  ['Ack /s', course => course.rates.ack, 'messages_acknowledged'],
  ['On disk, of cap', course => course.figures.cap_used_ratio, 'cap_used_ratio'],
]

const href = ({ project, queue }) => `#${encodeURIComponent(project)}/${encodeURIComponent(queue)}`

/** How much of the cap is taken, as a bar. */
export function capBar(ratio) {
  const fill = h('i', { class: ratio > 0.95 ? 'full' : ratio > 0.75 ? 'high' : null })
  fill.style.width = `${Math.min(100 * ratio, 100)}%`
  return h('span', { class: 'cap', title: `${(100 * ratio).toFixed(1)} % of the cap` }, fill)
}

export class QueueList {
  constructor(history) {
    this.history = history
    this.column = 0
    this.isDescending = false
    this.filter = h('input', { type: 'search', placeholder: 'Filter', 'aria-label': 'Filter queues by name', input: () => this.update() })
    this.heads = COLUMNS.map(([title], index) => h('th', { scope: 'col' },
      h('button', { type: 'button', click: () => this.sortBy(index) }, title)))
    this.rows = h('tbody')
    this.title = h('h2', {}, 'Queues')
    this.element = h('div', {},
      h('div', { class: 'bar' }, this.title, this.filter, h('button', { type: 'button', click: () => this.make() }, 'New queue …')),
      h('div', { class: 'scroll' }, h('table', {},
        h('thead', {}, h('tr', {}, this.heads, h('th', { scope: 'col' }, 'Depth, 5 min'))), this.rows)))
  }

  /** What to ask the server for. */
  wanted() {
    return { search: this.filter.value.trim(), order: COLUMNS[this.column][2], limit: SHOWN }
  }

  sortBy(column) {
    this.isDescending = column === this.column ? !this.isDescending : column > 0
    this.column = column
    this.update()
  }

  update() {
    const wanted = this.filter.value.trim().toLowerCase()
    const value = COLUMNS[this.column][1]
    const all = [...this.history.queues.values()]
    const shown = all.filter(course => COLUMNS[0][1](course).toLowerCase().includes(wanted))
    shown.sort((a, b) => (value(a) < value(b) ? -1 : value(a) > value(b) ? 1 : 0) * (this.isDescending ? -1 : 1))
    this.heads.forEach((head, index) => {
      if (index === this.column) head.setAttribute('aria-sort', this.isDescending ? 'descending' : 'ascending')
      else head.removeAttribute('aria-sort')
    })
    const { count, chosen } = this.history.look ?? { count: 0, chosen: 0 }
    const only = chosen > SHOWN ? `, ${number(SHOWN)} of ${number(chosen)} shown: ${this.column ? 'those with the most' : 'the first'}` : ''
    this.title.textContent = `${number(count)} queues${only}`
    this.rows.replaceChildren(...(shown.length ? shown.map(row) : [h('tr', {}, h('td', { class: 'empty', colspan: COLUMNS.length + 1 },
      wanted ? 'No queue of that name.' : 'No queues yet. One begins to exist when something is sent to it over STOMP, or here.'))]))
  }

  async make() {
    const data = await ask('New queue', [
      h('label', {}, 'Project', h('input', { name: 'project', value: 'default', required: true })),
      h('label', {}, 'Name', h('input', { name: 'queue', required: true, autofocus: true })),
      h('label', {}, 'Cap in bytes (empty: the server’s default)', h('input', { name: 'cap', type: 'number', min: 65536 })),
    ], 'Create')
    if (!data) return
    const name = { project: data.get('project'), queue: data.get('queue') }
    await api.declare(name, data.get('cap') ? { cap: Number(data.get('cap')) } : {})
    notice(`${name.project}/${name.queue} is there`)
    location.hash = href(name)
  }
}

function row(course) {
  const { figures, rates, depth } = course
  const count = value => h('td', { class: value ? null : 'zero' }, number(value))
  return h('tr', {},
    h('td', {}, h('a', { href: href(figures) }, `${figures.project}/${figures.queue}`)),
    count(figures.messages_ready), count(figures.messages_unacked), count(figures.messages_delayed), count(figures.consumers),
    count(rates.in), count(rates.out), count(rates.ack),
    h('td', {}, bytes(figures.disk_bytes), capBar(figures.cap_used_ratio)),
    h('td', { class: 'depth' }, sparkline(depth, 'Depth', KEPT)))
}
