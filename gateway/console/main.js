// The console: polls /v2/stats every two seconds and draws the figures. `#` is the list of all queues, `#project` of those of a
// project, `#project/queue` one queue.

import * as api from './api.js'
import { Chart, SpanChoice } from './chart.js'
import { Followers } from './followers.js'
import { h, milliseconds, notice, number, put } from './dom.js'
import { PROTOCOLS } from './holders.js'
import { QueueList } from './list.js'
import { LoginsPage, loginForm } from './login.js'
import { QueuePage } from './queue.js'
import { fillCharts, fillSparks } from './recorded.js'
import { EVERY_MS, History, pollOf } from './time_series.js'

const LOGINS = '~logins'

/** After this long without a poll, the charts are filled again with the server's recorded history. */
const STALE_MS = 30_000

/** Title, value, and smaller text of the figures of all queues. */
const FIGURES = [
  ['Published', ({ now }) => number(now.in), () => '/s', 'in'],
  ['Delivered', ({ now }) => number(now.out), () => '/s', 'out'],
  ['Acknowledged', ({ now }) => number(now.ack), () => '/s', 'ack'],
  ['Ready', ({ poll }) => number(poll?.totals.messages_ready ?? 0), () => 'messages', 'ready'],
  ['Commit time, p50', ({ now }) => milliseconds(now.p50), ({ now }) => (now.p99 === null ? 'no commits' : `p99: ${milliseconds(now.p99)}`)],
  ['Connections', ({ poll }) => number(connections(poll).reduce((sum, [, count]) => sum + count, 0)),
    ({ poll }) => connections(poll).map(([protocol, count]) => `${PROTOCOLS[protocol] ?? protocol} ${number(count)}`).join(', ')],
]

const connections = poll => Object.entries(poll?.connections ?? {}).filter(([, count]) => count)

const history = new History()
let page = null
let me = null

/** The figures and charts of all queues, above the list. */
class Totals {
  constructor() {
    this.values = FIGURES.map(([, , , name]) => [h('strong', { class: name }), h('small')])
    this.charts = [
      new Chart('Messages a second', [['in', 'in'], ['out', 'out'], ['ack', 'acknowledged']]),
      new Chart('Messages in all queues', [['ready', 'ready'], ['unacked', 'unacked'], ['delayed', 'delayed']]),
    ]
    this.followers = new Followers()
    this.spans = new SpanChoice(() => this.draw())
    this.parts = [
      h('div', { class: 'cards' }, FIGURES.map(([title], index) => h('div', { class: 'figure' }, h('h2', {}, title), this.values[index]))),
      this.spans.element, h('div', { class: 'charts' }, this.charts.map(chart => chart.element)), this.followers.element,
    ]
  }

  draw() {
    FIGURES.forEach(([, value, small], index) => {
      put(this.values[index][0], value(history))
      put(this.values[index][1], small(history))
    })
    this.charts.forEach(chart => chart.draw(history.totals, this.spans.span))
  }
}

let totals = null

function showTotals() {
  document.getElementById('totals').hidden = !(page instanceof QueueList) || history.poll?.isWhole === false
}

/** Return the page of the address: `#project/queue`, with `?text` the messages that contain the text. */
function pageOfAddress() {
  const [path, text = ''] = location.hash.slice(1).split('?')
  const [project, ...rest] = path.split('/').map(decoded)
  if (rest.length) return new QueuePage({ project, queue: rest.join('/') }, history, decoded(text))
  return project === LOGINS ? new LoginsPage(me) : new QueueList(history, refresh, project)
}

/** Return a decoded part of the address; a malformed one is returned unchanged. */
function decoded(text) {
  try {
    return decodeURIComponent(text)
  } catch {
    return text
  }
}

function route() {
  page = pageOfAddress()
  showTotals()
  document.getElementById('view').replaceChildren(page.element)
  page.update()
}

function drawHealth(readiness) {
  const line = document.getElementById('health')
  const isReady = readiness.status === 'ready'
  const reasons = readiness.reasons?.join('; ') || readiness.detail || readiness.status
  put(line, isReady ? `ready, sync ${readiness.sync}` : reasons)
  line.className = isReady ? 'ready' : 'failing'
}

function logInAgain(error) {
  if (error.status === 401) start()
  return null
}

/** Poll once, and draw; a reply is dropped if another poll, such as for another page, has begun meanwhile. */
async function refresh() {
  const asked = page
  const wanted = JSON.stringify(page.wanted())
  const [stats, readiness] = await Promise.all([api.stats(page.wanted()).catch(logInAgain), api.readiness()])
  drawHealth(readiness)
  if (stats === null || page !== asked || JSON.stringify(page.wanted()) !== wanted) return
  const isStale = !history.poll || performance.now() - 1000 * history.poll.at > STALE_MS
  history.add(pollOf(stats))
  totals.followers.refresh()
  if (isStale && history.poll.isWhole) fillCharts(history.totals).then(() => totals.draw())
  if (page instanceof QueueList) fillSparks(history, [...history.queues.values()]).then(() => page?.update())
  showTotals()
  totals.draw()
  page.update()
}

/** Get the session, and show the queues or the login. */
async function start() {
  page = null
  me = await api.who()
  const line = document.getElementById('who')
  if (me === null) {
    line.replaceChildren()
    document.getElementById('totals').hidden = true
    document.getElementById('view').replaceChildren(loginForm(start))
    drawHealth(await api.readiness())
    return
  }
  const leave = h('button', { click: () => api.logout().then(start) }, 'Log out')
  line.replaceChildren(...(me.login ? [h('a', { href: `#${LOGINS}` }, me.user), leave] : []))
  totals ??= new Totals()
  document.getElementById('totals').replaceChildren(...totals.parts)
  route()
  totals.draw()
}

async function run() {
  for (;;) {
    if (!document.hidden && page) {
      try {
        await refresh()
      } catch (error) {
        notice(error.message, true)
      }
    }
    await new Promise(resolve => { setTimeout(resolve, EVERY_MS) })
  }
}

addEventListener('hashchange', () => { if (page) route() })
addEventListener('unhandledrejection', event => {
  event.preventDefault() // the form that started an action shows its error
  notice(event.reason.message, true)
})
document.addEventListener('visibilitychange', () => { if (!document.hidden && page) refresh() })
start().then(run)
