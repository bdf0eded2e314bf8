// The followers of the server: its standby and histories, and how far behind each one is.

import * as api from './api.js'
import { bytes, h, put, sync, table } from './dom.js'

/** The values of `confirms` of /v2/standby: a description, and whether it is a problem. */
const CONFIRMS = {
  local: ['Confirms do not wait for a standby', false],
  sync: ['In sync: confirmed messages are on both disks', false],
  joining: ['The standby is joining: confirms wait for it', false],
  waiting: ['The standby is disconnected, and nothing is confirmed', true],
  alone: ['No standby: confirmed messages are on this disk only', true],
}
const COLUMNS = [['Follower', 'text'], ['Kind', 'text'], ['State', 'text'], ['Unsent'], ['Unacknowledged'], ['Since', 'text']]

const stateOf = each => {
  if (each.copying) return 'receives a copy'
  if (!each.standby) return 'follows'
  return each.usable ? 'can take over' : 'incomplete'
}

export class Followers {
  constructor() {
    this.isOff = false // replication is off, or the user may not see it
    this.confirms = h('span', { class: 'badge' })
    this.rows = h('tbody')
    this.table = table(COLUMNS, this.rows, 'Followers')
    this.nobody = h('p', { class: 'empty', hidden: true }, 'The server has no followers.')
    this.element = h('section', { id: 'followers', hidden: true },
      h('h2', {}, 'Second copies', this.confirms), this.table, this.nobody)
  }

  /** Poll once, and draw. */
  async refresh() {
    if (this.isOff) return
    try {
      const found = await api.standby()
      this.isOff = !found.enabled
      if (found.enabled) this.draw(found)
    } catch (error) {
      this.isOff = [401, 403].includes(error.status)
    }
    this.element.hidden = this.isOff
  }

  draw({ confirms, term, position, followers }) {
    const [text, isBad] = CONFIRMS[confirms] ?? [confirms, true]
    put(this.confirms, `${text} · term ${term}`)
    this.confirms.classList.toggle('bad', isBad)
    this.table.hidden = !followers.length
    this.nobody.hidden = Boolean(followers.length)
    sync(this.rows, followers, each => `${each.name} ${each.since}`, row, (line, each) => line.draw(each, position))
  }
}

/** Return a row; its `draw` fills the cells. */
function row({ name, standby, since }) {
  const [state, behind, missing] = [h('td', { class: 'text' }), h('td'), h('td')]
  const line = h('tr', {}, h('th', { scope: 'row' }, name), h('td', { class: 'text' }, standby ? 'standby' : 'history'), state, behind, missing,
    h('td', { class: 'text' }, new Date(since).toISOString().slice(0, 19).replace('T', ' ')))
  line.draw = (each, position) => {
    put(state, stateOf(each))
    put(behind, bytes(each.lag_bytes))
    put(missing, each.standby ? bytes(Math.max(position - each.acknowledged, 0)) : '–')
  }
  return line
}
