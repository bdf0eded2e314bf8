// Bulk operations: selecting messages, grouping dead letters by error, and redriving or deleting the selected ones.

import * as api from './api.js'
import { ask, counted, h, notice, number, put } from './dom.js'

const NO_ERROR = 'no error was given'

/** Return a key for the cause of a death, which groups dead letters. */
export const causeOf = ({ reason, error }) => `${reason}: ${error || NO_ERROR}`

/** Return why and where a message died. The error is first, because the end may be cut off. */
export function death({ queue, reason, tries, error }) {
  const times = tries ? ` after ${counted(tries, 'delivery', 'deliveries')}` : ''
  return `${error ? `${error} – ` : ''}${reason} in ${queue}${times}`
}

export class Bulk {
  /** `list` is the list of messages: it has `name`, the `shown` rows as [message, row], and `reload`. */
  constructor(list) {
    this.list = list
    this.cause = h('select', { 'aria-label': 'Cause of death', hidden: true, change: () => list.filter() })
    this.count = h('span', { role: 'status' })
    const button = (text, act, name) => h('button', { type: 'button', class: name, click: act }, text)
    this.redriveButton = button('Redrive selected', () => this.redrive())
    this.bar = h('div', { class: 'bar selected', hidden: true }, this.count, this.redriveButton,
      button('Delete selected …', () => this.remove(), 'danger'))
    this.all = h('input', { type: 'checkbox', 'aria-label': 'Select all that are shown', change: () => this.selectAll() })
  }

  get selected() {
    return this.list.shown.filter(([, line]) => !line.hidden && line.box.checked).map(([message]) => message)
  }

  selectAll() {
    for (const [, line] of this.list.shown) if (!line.hidden) line.box.checked = this.all.checked
    this.draw()
  }

  /** Update the choice of causes from the dead letters among the messages. */
  offer(messages) {
    const counts = new Map()
    for (const { dead } of messages) if (dead) counts.set(causeOf(dead), (counts.get(causeOf(dead)) ?? 0) + 1)
    const chosen = this.cause.value
    this.cause.replaceChildren(h('option', { value: '' }, 'all causes'),
      ...[...counts].sort((a, b) => b[1] - a[1]).map(([cause, count]) => h('option', { value: cause }, `${number(count)} × ${cause.slice(0, 80)}`)))
    this.cause.value = counts.has(chosen) ? chosen : ''
    this.cause.hidden = !counts.size
  }

  /** Return whether a message has the chosen cause. */
  isWanted({ dead }) {
    return !this.cause.value || (dead && causeOf(dead) === this.cause.value)
  }

  draw() {
    const { selected } = this
    this.bar.hidden = !selected.length
    put(this.count, `${number(selected.length)} selected`)
    this.redriveButton.hidden = !selected.some(message => message.dead)
    const shown = this.list.shown.filter(([, line]) => !line.hidden)
    this.all.checked = Boolean(shown.length) && selected.length === shown.length
  }

  /** Send the selected dead letters back where they died. */
  async redrive() {
    const letters = this.selected.filter(message => message.dead)
    let moved = 0
    const reasons = new Set()
    for (const { id } of letters) {
      const reply = await api.redrive(this.list.name, { id }).catch(error => ({ moved: 0, stayed: { [error.message]: 1 } }))
      moved += reply.moved
      for (const reason of Object.keys(reply.stayed)) reasons.add(reason)
    }
    notice(`${number(moved)} of ${number(letters.length)} redriven${[...reasons].map(reason => `; ${reason}`).join('')}`, moved < letters.length)
    await this.list.reload()
  }

  async remove() {
    const { selected } = this
    const data = await ask(`Delete ${counted(selected.length, 'message')}?`,
      h('p', {}, 'They are settled, in any state; named groups keep their copies.'), 'Delete', { danger: true })
    if (!data) return
    let gone = 0
    for (const { id } of selected) gone += await api.removeMessage(this.list.name, id).then(() => 1, () => 0)
    notice(`${number(gone)} of ${number(selected.length)} deleted`, gone < selected.length)
    await this.list.reload()
  }
}
