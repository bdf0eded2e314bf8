// The console: looks at /v2/stats every two seconds and draws what it says. `#` is the list, `#project/queue` one queue.

import * as api from './api.js'
import { h, milliseconds, notice, number } from './dom.js'
import { History, KEPT, lookAt } from './figures.js'
import { QueueList } from './list.js'
import { LoginsPage, loginForm } from './login.js'
import { QueuePage } from './queue.js'
import { sparkline } from './sparkline.js'

const EVERY_MS = 2000
const LOGINS = '~logins'

const history = new History()
let page = null
let me = null

function route() {
  const [project, ...rest] = decodeURIComponent(location.hash.slice(1)).split('/')
  page = project === LOGINS && !rest.length ? new LoginsPage(me) : rest.length ? new QueuePage({ project, queue: rest.join('/') }, history) : new QueueList(history)
  document.getElementById('totals').hidden = rest.length > 0 || project === LOGINS
  document.getElementById('view').replaceChildren(page.element)
  page.update()
}

function figure(title, value, small, course, className) {
  return h('div', { class: 'figure' }, h('h2', {}, title),
    h('div', { class: className }, h('strong', {}, value), small && h('small', {}, small),
      course ? sparkline(course, title, KEPT) : null))
}

function drawTotals() {
  const { now, totals } = history
  document.getElementById('totals').replaceChildren(
    figure('Published', number(now.in), '/s', totals.in, 'in'),
    figure('Delivered', number(now.out), '/s', totals.out, 'out'),
    figure('Acknowledged', number(now.ack), '/s', totals.ack, 'ack'),
    figure('Ready', number(now.ready), 'messages', totals.ready, 'depth'),
    figure('Half of the commits within', milliseconds(now.p50), now.p99 === null ? 'nothing was written' : `99 % within ${milliseconds(now.p99)}`),
  )
}

function drawHealth(readiness) {
  const line = document.getElementById('health')
  const isReady = readiness.status === 'ready'
  const reasons = readiness.reasons?.join('; ') || readiness.detail || readiness.status
  line.textContent = isReady ? `ready, sync ${readiness.sync}` : reasons
  line.className = isReady ? 'ready' : 'failing'
}

function lost(error) {
  if (error.status === 401) start()
  return null
}

async function look() {
  const [stats, readiness] = await Promise.all([api.stats(page.wanted()).catch(lost), api.readiness()])
  drawHealth(readiness)
  if (stats === null) return
  history.add(lookAt(stats))
  drawTotals()
  page.update()
}

/** Find out who one is, and show the queues, or the login. */
async function start() {
  page = null
  me = await api.who()
  const line = document.getElementById('who')
  if (me === null) {
    line.replaceChildren()
    document.getElementById('totals').replaceChildren()
    document.getElementById('view').replaceChildren(loginForm(start))
    return
  }
  const leave = h('button', { click: () => api.logout().then(start) }, 'Log out')
  line.replaceChildren(...(me.login ? [h('a', { href: `#${LOGINS}` }, me.user), leave] : []))
  route()
  drawTotals()
}

async function run() {
  for (;;) {
    if (!document.hidden && page) {
      try {
        await look()
      } catch (error) {
        notice(error.message, true)
      }
    }
    await new Promise(resolve => { setTimeout(resolve, EVERY_MS) })
  }
}

addEventListener('hashchange', () => { if (page) route() })
addEventListener('unhandledrejection', event => {
  event.preventDefault() // what an action was refused is told to whoever asked for it
  notice(event.reason.message, true)
})
document.addEventListener('visibilitychange', () => { if (!document.hidden && page) look() })
start().then(run)
