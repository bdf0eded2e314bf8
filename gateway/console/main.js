// The console: looks at /v2/stats every two seconds and draws what it says. `#` is the list, `#project/queue` one queue.

import * as api from './api.js'
import { h, milliseconds, notice, number } from './dom.js'
import { History, KEPT, lookAt } from './figures.js'
import { QueueList } from './list.js'
import { QueuePage } from './queue.js'
import { sparkline } from './sparkline.js'

const EVERY_MS = 2000

const history = new History()
let page = null

function route() {
  const [project, ...rest] = decodeURIComponent(location.hash.slice(1)).split('/')
  page = rest.length ? new QueuePage({ project, queue: rest.join('/') }, history) : new QueueList(history)
  document.getElementById('totals').hidden = rest.length > 0
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

async function look() {
  const [stats, readiness] = await Promise.all([api.stats(page.wanted()).catch(() => null), api.readiness()])
  drawHealth(readiness)
  if (stats === null) return
  history.add(lookAt(stats))
  drawTotals()
  page.update()
}

async function run() {
  for (;;) {
    if (!document.hidden) {
      try {
        await look()
      } catch (error) {
        notice(error.message, true)
      }
    }
    await new Promise(resolve => { setTimeout(resolve, EVERY_MS) })
  }
}

addEventListener('hashchange', route)
addEventListener('unhandledrejection', event => {
  event.preventDefault() // what an action was refused is told to whoever asked for it
  notice(event.reason.message, true)
})
document.addEventListener('visibilitychange', () => { if (!document.hidden) look() })
route()
drawTotals()
run()
