// All queues in a table with pages, which can be sorted and filtered.

import * as api from './api.js'
import { Spark } from './chart.js'
import { ask, bytes, counted, h, notice, number, put, sync, table } from './dom.js'
import { optionFields, optionsIn } from './forms.js'

/** The queues of a page. If there are more, the server sorts them, the largest values first. */
const PAGE = 100

/** Title, value, the server's sort key, and the class for narrow screens. */
const COLUMNS = [
  ['Queue', queue => nameOf(queue.figures), 'name', ''],
  ['Ready', queue => queue.figures.messages_ready, 'messages_ready', ''],
  ['Unacked', queue => queue.figures.messages_unacked, 'messages_unacked', ''],
  ['Delayed', queue => queue.figures.messages_delayed, 'messages_delayed', 'wide'],
  ['Consumers', queue => queue.figures.consumers, 'consumers', 'wide'],
  ['In /s', queue => queue.figures.messages_published_per_second, 'messages_published_per_second', 'wide'],
  ['Out /s', queue => queue.figures.messages_delivered_per_second, 'messages_delivered_per_second', 'wide'],
  ['Ack /s', queue => queue.figures.messages_acknowledged_per_second, 'messages_acknowledged_per_second', 'wider'],
  ['On disk, of cap', queue => queue.figures.cap_used_ratio, 'cap_used_ratio', ''],
]

const nameOf = ({ project, queue }) => `${project}/${queue}`
const href = ({ project, queue }) => `#${encodeURIComponent(project)}/${encodeURIComponent(queue)}`

/** The used and the reserved part of the cap, as a bar. */
export class CapBar {
  constructor() {
    this.fill = h('i')
    this.reserved = h('i', { class: 'reserved' })
    this.element = h('span', { class: 'cap' }, this.fill, this.reserved)
  }

  draw(figures) {
    const ratio = figures.cap_used_ratio
    const isFull = figures.messages_refused_last_minute > 0 || figures.available_bytes === 0
    this.fill.className = isFull ? 'full' : ratio > 0.75 ? 'high' : ''
    this.fill.style.width = `${Math.min(100 * ratio, 100)}%`
    this.reserved.style.width = `${Math.min(100 * figures.reserved_bytes / figures.cap_bytes, 100)}%`
    this.element.title = `${(100 * ratio).toFixed(1)} % of the cap is used; ${bytes(figures.reserved_bytes)} are reserved`
  }
}

export class QueueList {
  /** `project` is the project of the shown queues, or empty for all. */
  constructor(history, refresh, project = '') {
    this.history = history
    this.project = project
    this.refresh = refresh
    this.column = 0
    this.isDescending = false
    this.offset = 0
    this.filter = h('input', { type: 'search', placeholder: 'Filter', 'aria-label': 'Filter queues by name', input: () => this.turn(0) })
    this.heads = COLUMNS.map(([title, , , name], index) => h('th', { scope: 'col', class: name },
      h('button', { type: 'button', click: () => this.sortBy(index) }, title)))
    this.rows = h('tbody')
    this.titleText = h('span', {}, 'Queues')
    this.title = h('h2', {}, project ? [h('a', { href: '#' }, 'Queues'), ' / '] : null, this.titleText)
    this.table = table([], this.rows, 'Queues')
    this.table.querySelector('thead tr').append(...this.heads, h('th', { scope: 'col', class: 'wider' }, 'Depth'))
    this.nothing = h('p', { class: 'empty', hidden: true })
    this.before = h('button', { type: 'button', click: () => this.turn(this.offset - PAGE) }, '‹ Previous')
    this.after = h('button', { type: 'button', click: () => this.turn(this.offset + PAGE) }, 'Next ›')
    this.where = h('span', { role: 'status' })
    this.pager = h('nav', { class: 'pager', 'aria-label': 'Pages of queues', hidden: true }, this.before, this.where, this.after)
    this.element = h('div', {},
      h('div', { class: 'bar' }, this.title, this.filter, h('button', { type: 'button', click: () => this.create() }, 'New queue …')),
      this.table, this.nothing, this.pager)
  }

  /** The parameters of the next poll. */
  wanted() {
    return { ...(this.project ? { project: this.project } : {}), search: this.filter.value.trim(), order: COLUMNS[this.column][2], limit: PAGE, offset: this.offset }
  }

  sortBy(column) {
    this.isDescending = column === this.column ? !this.isDescending : column > 0
    this.column = column
    this.turn(0)
  }

  /** Show another page, or the first one of a new selection. */
  turn(offset) {
    this.offset = Math.max(offset, 0)
    this.update()
    this.refresh()
  }

  update() {
    const { count, chosen } = this.history.poll ?? { count: 0, chosen: 0 }
    const wanted = this.filter.value.trim().toLowerCase()
    const [, value] = COLUMNS[this.column]
    const shown = [...this.history.queues.values()].filter(({ figures }) => nameOf(figures).toLowerCase().includes(wanted) && [figures.project, ''].includes(this.project))
    const isAll = chosen <= PAGE
    if (isAll) shown.sort((a, b) => (value(a) < value(b) ? -1 : value(a) > value(b) ? 1 : 0) * (this.isDescending ? -1 : 1))
    else this.isDescending = this.column > 0 // as the server does
    this.heads.forEach((head, index) => {
      if (index === this.column) head.setAttribute('aria-sort', this.isDescending ? 'descending' : 'ascending')
      else head.removeAttribute('aria-sort')
    })
    const all = this.project ? chosen : count
    put(this.titleText, `${counted(all, 'queue')}${this.project ? ` of ${this.project}` : ''}`)
    sync(this.rows, shown, queue => nameOf(queue.figures), row, (line, queue) => line.draw(queue))
    this.table.hidden = !shown.length
    this.nothing.hidden = Boolean(shown.length)
    put(this.nothing, wanted ? 'No queue of that name.' : 'No queues yet. Create one here or with `curbstone queue create`; a STOMP client creates one by using it.')
    this.pager.hidden = isAll && !this.offset
    this.before.disabled = !this.offset
    this.after.disabled = this.offset + PAGE >= chosen
    put(this.where, `${number(Math.min(this.offset + 1, chosen))} to ${number(Math.min(this.offset + PAGE, chosen))} of ${number(chosen)}`)
  }

  async create() {
    const data = await ask('New queue', [
      h('label', {}, 'Project', h('input', { name: 'project', value: this.project || 'default', required: true })),
      h('label', {}, 'Name', h('input', { name: 'queue', required: true, autofocus: true })),
      h('p', {}, 'Empty fields take the server’s defaults.'), optionFields(),
    ], 'Create')
    if (!data) return
    const name = { project: data.get('project'), queue: data.get('queue') }
    await api.declare(name, optionsIn(data))
    notice(`${nameOf(name)} created`)
    location.hash = href(name)
  }
}

/** Return a row; its `draw` fills the cells. */
function row({ figures }) {
  const cells = COLUMNS.slice(1, -1).map(([, , , name]) => h('td', { class: name }))
  const size = h('span')
  const bar = new CapBar()
  const spark = new Spark('ready')
  const line = h('tr', {}, h('th', { scope: 'row' }, h('a', { href: href(figures) }, nameOf(figures))), cells,
    h('td', {}, size, bar.element), h('td', { class: 'wider' }, spark.element))
  line.draw = queue => {
    COLUMNS.slice(1, -1).forEach(([, value], index) => {
      put(cells[index], number(value(queue)))
      cells[index].classList.toggle('zero', !value(queue))
    })
    put(size, bytes(queue.figures.disk_bytes))
    bar.draw(queue.figures)
    spark.draw(queue.series.ready.values(0))
  }
  return line
}
