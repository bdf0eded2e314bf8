// The history of one message, as far as the queue's log reaches back.

import * as api from './api.js'
import { h, time } from './dom.js'

const WORDS = {
  published: 'published', released: 'requeued', settled: 'settled', rejected: 'rejected', dead: 'dead-lettered',
  expired: 'expired', purged: 'purged', skipped: 'skipped at the cap', replaced: 'replaced by a later message of its name',
}

/** Return elements with the events of a message; `where` is its queue. */
export async function messageHistory(where, message) {
  const [{ events, next }, { sentences }] = await Promise.all([
    api.history(where, message.id), api.explain(where, message.id),
  ])
  const ended = new Set()
  const steps = events.map(event => {
    const isUndone = event.event === 'released' && ended.has(event.group)
    if (event.event === 'settled' || event.event === 'purged') ended.add(event.group)
    else ended.delete(event.group)
    return step(event.time, textOf(event, isUndone))
  })
  const source = events.find(event => event.from)?.from
  if (source) steps.unshift(step(source.time ?? events[0].time, origin(source)))
  if (!events.some(event => event.event === 'published')) {
    steps.unshift(h('li', {}, h('time', {}, time(message.timestamp)), ' published; the log does not reach back that far'))
  }
  return [
    h('ol', { class: 'life' }, steps, h('li', { class: 'now' }, h('time', {}, 'now'), ` ${sentences.join(' ')}`)),
    next ? h('p', {}, 'The log is long; only its older part was searched.') : null,
  ]
}

function step(when, text) {
  return h('li', {}, h('time', {}, time(when)), ` ${text}`)
}

/** Describe the previous queue of a message, where it died or from which it was redriven. */
function origin(source) {
  if (!source.reason) return `redriven from ${place(source)}`
  return `died in ${place(source)}, delivered ${times(source.tries)} by then: ${source.error ?? source.reason}`
}

function place({ queue, id }) {
  return id ? `${queue} as ${id}` : queue
}

function times(count) {
  return count === 1 ? 'once' : `${count} times`
}

function textOf(event, isUndone) {
  if (event.to) {
    const to = place(event.to)
    return event.reason ? `dead-lettered to ${to}: ${event.error ?? event.reason}` : `redriven to ${to}`
  }
  const group = event.group ? ` in group ${event.group}` : ''
  const tries = event.tries ? `, delivered ${times(event.tries)} by then` : ''
  const due = event.due ? `, until ${time(event.due)}` : ''
  return `${isUndone ? 'restored by an undo' : WORDS[event.event] ?? event.event}${group}${tries}${due}`
}
