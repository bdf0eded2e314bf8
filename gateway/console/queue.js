// One queue: its figures, options, groups and messages, and the operations on it.

import * as api from './api.js'
import { Chart, SpanChoice } from './chart.js'
import { ask, bytes, counted, h, notice, number, put, table, time } from './dom.js'
import { messageFields, messageIn, optionFields, optionsIn } from './forms.js'
import { Holders } from './holders.js'
import { CapBar } from './list.js'
import { MessageList } from './messages.js'
import { fillCharts } from './recorded.js'

const SECONDS = new Set(['ttl', 'nack_delay', 'nack_delay_max', 'lease', 'unused', 'undo', 'idempotency_window'])
const SIZES = new Set(['cap', 'max_message_size'])

/** How many polls per query of the queue's consumers; seldom if the server has to scan delayed messages for it. */
const HOLDERS_EVERY = 3
const HOLDERS_EVERY_DELAYED = 30

/** Title, text, and smaller text of each card. */
const CARDS = [
  ['Ready', ({ figures }) => number(figures.messages_ready)],
  ['Unacked', ({ figures }) => number(figures.messages_unacked)],
  ['Delayed', ({ figures }) => number(figures.messages_delayed)],
  ['Consumers', ({ figures }) => number(figures.consumers)],
  ['Oldest message', ({ figures }) => duration(figures.oldest_message_age_seconds)],
  ['Time until full', ({ figures }) => untilFull(figures.seconds_to_full),
    ({ figures }) => (figures.seconds_to_full === null ? 'not growing' : '')],
  ['Largest message that fits', ({ figures }) => bytes(figures.available_bytes), ({ figures }) => refused(figures)],
  ['On disk, of cap', ({ figures }) => bytes(figures.disk_bytes), ({ figures }) => `${(100 * figures.cap_used_ratio).toFixed(0)}\u00a0%`],
]

const untilFull = seconds => (seconds === null ? '–' : seconds === 0 ? 'full' : duration(seconds))
const refused = ({ messages_refused_last_minute: count }) => (count ? `${number(count)} refused in the last minute` : '')

const UNITS = [[86400, 'd'], [3600, 'h'], [60, 'min'], [1, 's']]

/** Return a readable duration, in the largest unit that fits. */
function duration(seconds) {
  if (!seconds) return '–'
  const [size, unit] = UNITS.find(([each]) => seconds >= each) ?? UNITS.at(-1)
  return `${number(Math.round(seconds / size * 10) / 10)} ${unit}`
}

export class QueuePage {
  constructor(name, history, text) {
    this.name = name
    this.history = history
    this.polls = 0
    this.values = CARDS.map(() => [h('strong'), h('small')])
    this.cap = new CapBar()
    this.cards = h('div', { class: 'cards' }, CARDS.map(([title], index) => h('div', { class: 'figure' }, h('h2', {}, title),
      this.values[index], index === CARDS.length - 1 ? h('div', {}, this.cap.element) : null)))
    this.charts = [
      new Chart('Messages', [['ready', 'ready'], ['unacked', 'unacked'], ['delayed', 'delayed']]),
      new Chart('A second', [['in', 'in'], ['out', 'out'], ['ack', 'acknowledged']]),
    ]
    this.spans = new SpanChoice(() => this.draw())
    this.about = h('details', {}, h('summary', {}, 'Options, groups, batches and events'))
    this.trouble = h('p', { class: 'trouble' })
    this.holders = new Holders(name)
    this.messages = new MessageList(name, messages => { this.redriveButton.hidden = !messages.some(message => message.dead) }, text)
    const button = (text, act, danger) => h('button', { type: 'button', class: danger ? 'danger' : null, click: act }, text)
    this.halt = button('Pause', () => this.pause())
    this.redriveButton = button('Redrive …', () => this.redrive())
    this.redriveButton.hidden = true
    this.element = h('div', {},
      h('div', { class: 'bar' }, h('h2', {}, h('a', { href: '#' }, 'Queues'), ' / ', h('a', { href: `#${encodeURIComponent(name.project)}` }, name.project), `/${name.queue}`),
        button('Send …', () => this.send()), this.redriveButton, this.halt,
        button('Undo …', () => this.undo()), button('Purge …', () => this.purge(), true), button('Delete …', () => this.remove(), true)),
      this.trouble, this.cards, this.spans.element, h('div', { class: 'charts' }, this.charts.map(chart => chart.element)),
      this.holders.element, this.messages.element, this.about)
    this.load()
    const known = history.of(`${name.project}/${name.queue}`)
    fillCharts(known.series, name).then(() => {
      known.recordedUntil = performance.now() / 1000
      this.draw()
    })
  }

  /** The parameters of the next poll. */
  wanted() {
    return { project: this.name.project, search: `${this.name.project}/${this.name.queue}` }
  }

  /** Draw the newest poll. */
  update() {
    this.queue = this.history.queues.get(`${this.name.project}/${this.name.queue}`)
    if (!this.queue) return
    CARDS.forEach(([, text, small], index) => {
      put(this.values[index][0], text(this.queue))
      put(this.values[index][1], small ? small(this.queue) : '')
    })
    this.cap.draw(this.queue.figures)
    this.draw()
    this.polls += 1
    const every = this.queue.figures.messages_delayed ? HOLDERS_EVERY_DELAYED : HOLDERS_EVERY
    if (this.polls % every === 0) this.holders.load().catch(() => {}) // the next poll reports the error
  }

  draw() {
    if (this.queue) this.charts.forEach(chart => chart.draw(this.queue.series, this.spans.span))
  }

  /** Load the options and other figures that change seldom, and the first messages. */
  async load() {
    try {
      const noKeys = error => { // a cluster does not count keys
        if (error.status === 501) return { total: 0, keys: [] }
        throw error
      }
      const [info, { groups }, keys] = await Promise.all([
        api.info(this.name), api.groups(this.name), api.keys(this.name).catch(noKeys), this.holders.load(),
      ])
      const { batches } = info.batches ? await api.batches(this.name) : { batches: [] }
      const { paused: isPaused, publish_paused: isClosed } = info.options
      const limited = info.held_back ? [`limited: ${info.held_back} ready ${info.held_back === 1 ? 'message is' : 'messages are'} held back by ${info.limited_by === 'keys' ? 'their keys' : info.limited_by}`] : []
      const paused = [...(isPaused ? ['paused: nothing is delivered'] : []), ...(isClosed ? ['paused: no messages are accepted'] : [])]
      put(this.halt, paused.length ? 'Resume' : 'Pause')
      this.trouble.replaceChildren(...[...(info.damaged ?? []).map(text => `damaged: ${text}`), ...paused, ...limited]
        .map(text => h('span', { class: 'badge bad' }, text)))
      this.about.replaceChildren(this.about.firstChild, options(info.options),
        h('p', {}, h('button', { type: 'button', click: () => this.edit(info.options) }, 'Edit options …')),
        info.by_priority ? priorityTable(info.by_priority) : '', keys.total ? keyTable(keys) : '', groups.length ? groupTable(groups) : '',
        batches.length ? batchTable(batches) : '', this.events(info.bindings, info.filters ?? {}))
      await this.messages.load()
    } catch (error) {
      if (error.status === 404) {
        this.showMissing()
        return
      }
      this.trouble.replaceChildren(h('span', { class: 'badge bad' }, error.message))
    }
  }

  /** Replace the page by a note that the queue does not exist. */
  showMissing() {
    const { project, queue } = this.name
    this.element.replaceChildren(
      h('div', { class: 'bar' }, h('h2', {}, h('a', { href: '#' }, 'Queues'), ` / ${project}/${queue}`)),
      h('div', { class: 'empty' }, h('p', {}, `There is no queue ${project}/${queue}. It was deleted, or never created.`),
        h('a', { href: `#${encodeURIComponent(project)}` }, `The queues of ${project}`)))
  }

  /** Return a section that shows and changes the queue's bindings and their filters. */
  events(bindings, filters) {
    const button = (text, act) => h('button', { type: 'button', click: act }, text)
    const change = act => async () => { await act(); await this.load() }
    return h('section', { class: 'events' }, h('h3', {}, 'Events'),
      bindings.length ? h('ul', {}, bindings.map(event => h('li', {}, event, filters[event] ? h('code', {}, filters[event]) : '', ' ',
        button('Unbind', change(() => api.unbind(this.name, event))))))
        : h('p', {}, 'It is bound to no event.'),
      button('Bind …', change(async () => {
        const data = await ask('Bind to an event', [
          h('p', {}, 'The queue gets a copy of each later message to the event. * stands for one word, # for any number.'),
          h('label', {}, 'Event', h('input', { name: 'event', required: true, autofocus: true, placeholder: 'orders.*' })),
          h('label', {}, 'Filter on headers', h('input', { name: 'filter', placeholder: "region = 'eu' AND total > 100" })),
        ], 'Bind')
        if (data) await api.bind(this.name, data.get('event').trim(), data.get('filter').trim())
      })))
  }

  async edit(options) {
    const data = await ask(`Options of ${this.name.queue}`, optionFields(options), 'Save')
    if (!data) return
    const changes = optionsIn(data, options)
    await api.declare(this.name, changes)
    notice(`${counted(Object.keys(changes).length, 'option')} changed`)
    await this.load()
  }

  async send() {
    const data = await ask(`Send to ${this.name.queue}`, messageFields(), 'Send')
    if (!data) return
    const id = await api.send(this.name, messageIn(data))
    notice(`${id} is on disk`)
    await this.load()
  }

  /** Pause the queue, or resume it if it is paused. */
  async pause() {
    const { paused } = await api.halt(this.name, this.halt.textContent.toLowerCase())
    notice(`${this.name.queue} ${paused ? 'is paused: nothing is delivered' : 'delivers again'}`)
    await this.load()
  }

  async redrive() {
    const data = await ask('Redrive dead letters', [
      h('p', {}, 'Each is moved to the queue where it died, or to the one named here. Other messages stay.'),
      h('label', {}, 'To (empty: where each one died)', h('input', { name: 'to', placeholder: 'queue or project/queue' })),
      h('label', {}, 'At most', h('input', { name: 'limit', type: 'number', min: 1, value: 1000, required: true })),
    ], 'Redrive')
    if (!data) return
    const request = { limit: Number(data.get('limit')) }
    if (data.get('to')) request.to = data.get('to')
    const { moved, stayed } = await api.redrive(this.name, request)
    const reasons = Object.entries(stayed).map(([why, count]) => `; ${counted(count, 'stays', 'stay')}: ${why}`)
    notice(`${counted(moved, 'message')} redriven${reasons.join('')}`)
    await this.load()
  }

  /** Restore messages that were acked, popped or purged. */
  async undo() {
    const data = await ask('Undo', [
      h('p', {}, 'Messages that were acked, popped or purged last return to their places, as far as the log still has them.'),
      h('label', {}, 'At most', h('input', { name: 'limit', type: 'number', min: 1, max: 10000, value: 1000, required: true })),
      h('label', {}, 'Settled within, in seconds (empty: at any time)', h('input', { name: 'within', type: 'number', min: 0, step: 'any' })),
    ], 'Bring back')
    if (!data) return
    const request = { limit: Number(data.get('limit')) }
    if (data.get('within')) request.within = Number(data.get('within'))
    const { restored, more, damaged } = await api.undo(this.name, request)
    const rest = damaged ? '; part of the log is damaged: messages settled before it stay settled' : ''
    notice(`${counted(restored, 'message')} restored${more ? '; there are more' : ''}${rest}`)
    await this.load()
  }

  async purge() {
    const data = await ask(`Purge ${this.name.queue}?`, [
      h('p', {}, 'All ready and delayed messages are dropped and their bytes are erased. Messages in flight stay.'),
      h('label', { class: 'check' }, h('input', { name: 'keep', type: 'checkbox' }),
        ' Erase nothing: the purge can be undone as long as the room is not needed'),
    ], 'Purge', { danger: true, match: this.name.queue })
    if (!data) return
    const { purged } = await api.purge(this.name, data.get('keep') !== null)
    notice(`${counted(purged, 'message')} purged`)
    await this.load()
  }

  async remove() {
    const data = await ask(`Delete ${this.name.queue}?`, h('p', {}, 'The queue is deleted with all its messages, and its consumers are disconnected from it.'),
      'Delete', { danger: true, match: this.name.queue })
    if (!data) return
    await api.remove(this.name)
    notice(`${this.name.project}/${this.name.queue} deleted`)
    location.hash = ''
  }
}

function options(values) {
  const text = (name, value) => {
    if (SIZES.has(name)) return `${bytes(value)} (${number(value)})`
    if (SECONDS.has(name)) return value ? `${value} s` : 'none'
    if (name === 'schema' && value) return JSON.stringify(value)
    if (Array.isArray(value)) return value.join(', ') || 'none'
    return value === '' || value === null ? 'none' : value === 0 ? 'no limit' : String(value)
  }
  return h('dl', { class: 'options' }, Object.entries(values).flatMap(([name, value]) => [h('dt', {}, name), h('dd', {}, text(name, value))]))
}

function priorityTable(counts) {
  const rows = Object.entries(counts).sort(([a], [b]) => b - a).map(([priority, count]) =>
    h('tr', {}, h('th', { scope: 'row' }, priority), h('td', {}, number(count))))
  return table([['Priority', 'text'], 'Not settled'], h('tbody', {}, rows), 'Priorities')
}

function keyTable({ total, keys }) {
  const rows = keys.map(key => h('tr', {}, h('th', { scope: 'row' }, key.key || '(none)'), h('td', {}, number(key.waiting)),
    h('td', {}, number(key.in_flight)), h('td', { class: 'text' }, key.next_ms ? time(key.next_ms).slice(0, 19) : '–')))
  const more = total > keys.length ? h('p', {}, `${counted(total - keys.length, 'other key')}`) : ''
  return h('div', {}, table([['Key', 'text'], 'Waiting', 'In flight', ['Next delivery, UTC', 'text']], h('tbody', {}, rows), 'Keys'), more)
}

function batchTable(batches) {
  const rows = batches.map(batch => h('tr', {}, h('th', { scope: 'row' }, batch.batch), h('td', {}, `${number(batch.stored)} of ${batch.size ? number(batch.size) : '?'}`),
    h('td', {}, number(batch.pending)), h('td', {}, number(batch.dead)), h('td', { class: 'text' }, batch.to ?? '?'), h('td', { class: 'text' }, batch.refusal ?? '')))
  return table([['Batch', 'text'], 'Stored', 'Pending', 'Dead', ['Report to', 'text'], ['Refused', 'text']], h('tbody', {}, rows), 'Open batches')
}

function groupTable(groups) {
  const rows = groups.map(group => h('tr', {}, h('th', { scope: 'row' }, group.declared ? group.group : `${group.group} (not declared)`),
    h('td', {}, number(group.pending)),
    h('td', {}, `${number(group.position)} of ${number(group.next)}`), h('td', {}, number(group.lost)), h('td', {}, group.on_full)))
  return table([['Group', 'text'], 'Pending', 'Position', 'Lost', 'When full'], h('tbody', {}, rows), 'Groups')
}
