// Fills the charts with the history that the server recorded before the page was opened. Engines without one refuse.

import * as api from './api.js'
import { SPANS, fill } from './time_series.js'

const NAMES = [...new Set(SPANS.map(([, , name]) => name))]

/** Fill the charts of the server, or of a queue, with its last hour and day. */
export async function fillCharts(series, queue = null) {
  const replies = await Promise.all(NAMES.map(name => api.recorded(name, queue && [queue]).catch(() => null)))
  SPANS.forEach(([, , name], span) => {
    const reply = replies[NAMES.indexOf(name)]
    const figures = queue ? reply?.queues[0] : reply?.server
    if (figures) fill(series, span, figures, reply)
  })
}

/** Fill the small charts of a list with the last minutes; `queues` are those of the newest poll. */
export async function fillSparks(history, queues) {
  const fresh = queues.filter(queue => !queue.isRecorded)
  if (!fresh.length) return
  for (const queue of fresh) queue.isRecorded = true
  const reply = await api.recorded('hour', fresh.map(queue => queue.figures), Date.now() - 320_000).catch(() => null)
  for (const figures of reply?.queues ?? []) fill(history.of(`${figures.project}/${figures.queue}`).series, 0, figures, reply)
}
