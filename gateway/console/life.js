// The life of one message, as far as the queue's log goes back.

import * as api from './api.js'
import { h, time } from './dom.js'

const WORDS = {
  published: 'published', released: 'given back', settled: 'settled', rejected: 'rejected', dead: 'made a dead letter',
  expired: 'expired', purged: 'purged', skipped: 'skipped at the cap',
}

/** Return elements that tell what happened to a message; `where` is the queue it is in. */
export async function life(where, message) {
  const [{ events, next }, { sentences }] = await Promise.all([
    api.history(where, message.id), api.explain(where, message.id),
  ])
  const ended = new Set()
  const steps = events.map(event => {
    const isUndone = event.event === 'released' && ended.has(event.group)
    if (event.event === 'settled' || event.event === 'purged') ended.add(event.group)
    else ended.delete(event.group)
    return h('li', {}, h('time', {}, time(event.time)), ` ${told(event, isUndone)}`)
  })
  if (!events.some(event => event.event === 'published')) {
    steps.unshift(h('li', {}, h('time', {}, time(message.timestamp)), ' published; the log does not go back as far'))
  }
  return [
    h('ol', { class: 'life' }, steps, h('li', { class: 'now' }, h('time', {}, 'now'), ` ${sentences.join(' ')}`)),
    next ? h('p', {}, 'The log is long; only its older part was looked through.') : null,
  ]
}

function told(event, isUndone) {
  const group = event.group ? ` in group ${event.group}` : ''
  const tries = event.tries ? `, delivered ${event.tries === 1 ? 'once' : `${event.tries} times`} by then` : ''
  const due = event.due ? `, until ${time(event.due)}` : ''
  return `${isUndone ? 'brought back by an undo' : WORDS[event.event] ?? event.event}${group}${tries}${due}`
}
