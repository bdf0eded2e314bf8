// One queue: its figures, options and groups, its messages, and what can be done with it.

import * as api from './api.js'
import { ask, bytes, h, notice, number } from './dom.js'
import { KEPT } from './figures.js'
import { capBar } from './list.js'
import { MessageList } from './messages.js'
import { sparkline } from './sparkline.js'

const SECONDS = new Set(['ttl', 'nack_delay', 'nack_delay_max', 'lease', 'unused'])
const SIZES = new Set(['cap', 'max_message_size'])

export class QueuePage {
  constructor(name, history) {
    this.name = name
    this.history = history
    this.cards = h('div', { class: 'cards' })
    this.about = h('details', {}, h('summary', {}, 'Options and groups'))
    this.damage = h('p')
    this.messages = new MessageList(name)
    const button = (text, act, danger) => h('button', { type: 'button', class: danger ? 'danger' : null, click: act }, text)
    this.element = h('div', {},
      h('div', { class: 'bar' }, h('h2', {}, h('a', { href: '#' }, 'Queues'), ` / ${name.project}/${name.queue}`),
        button('Send …', () => this.send()), button('Redrive …', () => this.redrive()),
        button('Purge …', () => this.purge(), true), button('Delete …', () => this.remove(), true)),
      this.damage, this.cards, this.about, this.messages.element)
    this.load()
  }

  /** What to ask the server for. */
  wanted() {
    return { project: this.name.project, search: `${this.name.project}/${this.name.queue}` }
  }

  /** Draw what the newest look says. */
  update() {
    const course = this.history.queues.get(`${this.name.project}/${this.name.queue}`)
    if (!course) return
    const { figures, rates, depth } = course
    const card = (title, value, ...more) => h('div', { class: 'figure' }, h('h2', {}, title), h('strong', {}, value), more)
    this.cards.replaceChildren(
      card('Ready', number(figures.messages_ready), h('div', { class: 'depth' }, sparkline(depth, 'Depth', KEPT))),
      card('Unacked', number(figures.messages_unacked)), card('Delayed', number(figures.messages_delayed)),
      card('Consumers', number(figures.consumers)),
      card('In', number(rates.in), h('small', {}, '/s')), card('Out', number(rates.out), h('small', {}, '/s')),
      card('Acknowledged', number(rates.ack), h('small', {}, '/s')),
      card('On disk', bytes(figures.disk_bytes), h('small', {}, `of ${bytes(figures.cap_bytes)}`), h('div', {}, capBar(figures.cap_used_ratio))))
  }

  /** Ask for what changes seldom, and for the first messages. */
  async load() {
    try {
      const [info, { groups }] = await Promise.all([api.info(this.name), api.groups(this.name)])
      this.damage.replaceChildren(...(info.damaged ?? []).map(text => h('span', { class: 'badge bad' }, `damaged: ${text}`)))
      this.about.replaceChildren(this.about.firstChild, options(info.options), groups.length ? groupTable(groups) : '')
      await this.messages.load()
    } catch (error) {
      this.cards.replaceChildren(h('p', { class: 'empty' }, error.message))
    }
  }

  async send() {
    const data = await ask(`Send to ${this.name.queue}`, [
      h('label', {}, 'Content-Type', h('input', { name: 'type', value: 'text/plain', required: true })),
      h('label', {}, 'Body', h('textarea', { name: 'body', autofocus: true })),
    ], 'Send')
    if (!data) return
    const id = await api.send(this.name, data.get('body'), data.get('type'))
    notice(`${id} is on disk`)
    await this.load()
  }

  async redrive() {
    const data = await ask('Redrive dead letters', [
      h('p', {}, 'Each goes back to the queue where it died, or to the one named here. Other messages stay.'),
      h('label', {}, 'To (empty: where each came from)', h('input', { name: 'to', placeholder: 'queue or project/queue' })),
      h('label', {}, 'At most', h('input', { name: 'limit', type: 'number', min: 1, value: 1000, required: true })),
    ], 'Redrive')
    if (!data) return
    const request = { limit: Number(data.get('limit')) }
    if (data.get('to')) request.to = data.get('to')
    const { moved, stayed } = await api.redrive(this.name, request)
    const reasons = Object.entries(stayed).map(([why, count]) => `; ${number(count)} stay: ${why}`)
    notice(`${number(moved)} messages went back${reasons.join('')}`)
    await this.load()
  }

  async purge() {
    const data = await ask(`Purge ${this.name.queue}?`,
      h('p', {}, 'Everything ready or delayed is dropped and its bytes are erased. What is delivered and unsettled stays.'),
      'Purge', { danger: true, match: this.name.queue })
    if (!data) return
    const { purged } = await api.purge(this.name)
    notice(`${number(purged)} messages are gone`)
    await this.load()
  }

  async remove() {
    const data = await ask(`Delete ${this.name.queue}?`, h('p', {}, 'The queue goes with all its messages; its consumers are told.'),
      'Delete', { danger: true, match: this.name.queue })
    if (!data) return
    await api.remove(this.name)
    notice(`${this.name.project}/${this.name.queue} is deleted`)
    location.hash = ''
  }
}

function options(values) {
  const text = (name, value) => {
    if (SIZES.has(name)) return `${bytes(value)} (${number(value)})`
    if (SECONDS.has(name)) return value ? `${value} s` : 'none'
    if (Array.isArray(value)) return value.join(', ') || 'none'
    return value === '' || value === null ? 'none' : value === 0 ? 'no limit' : String(value)
  }
  return h('dl', { class: 'options' }, Object.entries(values).flatMap(([name, value]) => [h('dt', {}, name), h('dd', {}, text(name, value))]))
}

function groupTable(groups) {
  const heads = ['Group', 'Pending', 'Position', 'Lost', 'When full'].map(title => h('th', { scope: 'col' }, title))
  const rows = groups.map(group => h('tr', {}, h('td', {}, group.declared ? group.group : `${group.group} (not declared)`),
    h('td', {}, number(group.pending)),
    h('td', {}, `${number(group.position)} of ${number(group.next)}`), h('td', {}, number(group.lost)), h('td', {}, group.on_full)))
  return h('div', { class: 'scroll' }, h('table', {}, h('thead', {}, h('tr', {}, heads)), h('tbody', {}, rows)))
}
