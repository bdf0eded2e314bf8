// Time series of the server's figures for the charts, over three spans.

/** How often the server is polled. */
export const EVERY_MS = 2000

/** The number of values in a chart. */
export const SLOTS = 150

/** The spans: name, polls per value, and the server's name of the history. */
export const SPANS = [['5 min', 1, 'hour'], ['1 h', 12, 'hour'], ['24 h', 288, 'day']]

const GAP_SLOTS_MAX = SLOTS * SPANS.at(-1)[1]
const NONE = { in: 0, out: 0, ack: 0 }
const COUNTERS = { in: 'messages_published', out: 'messages_delivered', ack: 'messages_acknowledged' }
const STATES = { ready: 'messages_ready', unacked: 'messages_unacked', delayed: 'messages_delayed' }

/** The time series of one figure: for each span its newest values. Null marks a time without a reading. */
export class TimeSeries {
  constructor() {
    this.levels = SPANS.map(([, every]) => ({ every, values: [], taken: 0, sum: 0, known: 0 }))
  }

  push(value) {
    for (const level of this.levels) {
      level.taken += 1
      if (value !== null) {
        level.sum += value
        level.known += 1
      }
      if (level.taken < level.every) continue
      level.values.push(mean(level))
      if (level.values.length > SLOTS) level.values.shift()
      level.taken = level.sum = level.known = 0
    }
  }

  /** Replace the values of a span by the server's recorded ones. */
  replace(span, values) {
    Object.assign(this.levels[span], { values, taken: 0, sum: 0, known: 0 })
  }

  /** Return the values of a span, including the incomplete one. */
  values(span) {
    const level = this.levels[span]
    return level.taken ? [...level.values, mean(level)].slice(-SLOTS) : level.values
  }
}

const mean = level => (level.known ? level.sum / level.known : null)
const newSeries = () => Object.fromEntries([...Object.keys(COUNTERS), ...Object.keys(STATES)].map(key => [key, new TimeSeries()]))

/** Return the name of a time series in the server's history. */
const recordedAs = key => STATES[key] ?? `${COUNTERS[key]}_per_second`

/** Fill a span of time series with recorded `figures` in steps of `step` s, the first of which ended at `from`. */
export function fill(series, span, figures, { step, from }) {
  const slot = SPANS[span][1] * EVERY_MS
  for (const [key, each] of Object.entries(series)) {
    const values = resample(figures[recordedAs(key)], 1000 * step, from, slot)
    if (values.some(value => value !== null)) each.replace(span, values)
  }
}

/** Return the last `SLOTS` means, each over `slot` ms, of values of `step` ms each, the first of which ended at `from`. */
function resample(values, step, from, slot) {
  const known = values.findLastIndex(value => value !== null)
  const now = from + known * step
  return Array.from({ length: SLOTS }, (_, index) => {
    const end = (now - (SLOTS - 1 - index) * slot - from) / step
    const found = values.slice(Math.max(Math.floor(end - slot / step) + 1, 0), Math.max(Math.ceil(end) + 1, 0))
      .filter(value => value !== null)
    return found.length ? found.reduce((a, b) => a + b) / found.length : null
  })
}

/** One reply of `v2/stats`: the totals, the queues by `project/queue`, and the buckets of commit times. */
export function pollOf(stats) {
  return {
    at: performance.now() / 1000,
    /** Whether the user may see the figures of the server. */
    isWhole: Boolean(stats.totals),
    totals: stats.totals ?? {},
    connections: stats.connections ?? {},
    count: stats.queues_count ?? stats.queues_chosen,
    chosen: stats.queues_chosen,
    queues: new Map(stats.queues.map(queue => [`${queue.project}/${queue.queue}`, queue])),
    commits: new Map((stats.commits?.seconds.buckets ?? []).map(([bound, count]) => [bound ?? Infinity, count])),
  }
}

const rate = (now, before, seconds, counter) => Math.max((now?.[counter] ?? 0) - (before?.[counter] ?? 0), 0) / seconds

function rates(now, before, seconds) {
  return Object.fromEntries(Object.entries(COUNTERS).map(([key, name]) => [key, rate(now, before, seconds, name)]))
}

/** Return a percentile of the commit times between two polls, in seconds; null without commits. */
export function percentile(now, before, share) {
  const buckets = [...now.commits].map(([bound, count]) => [bound, count - (before.commits.get(bound) ?? 0)])
  const total = buckets.at(-1)?.[1] ?? 0
  if (total <= 0) return null
  const [bound] = buckets.find(([, count]) => count >= total * share)
  return bound
}

function extend(series, now, figures, missed) {
  for (const [key, each] of Object.entries(series)) {
    for (let slot = 0; slot < missed; slot += 1) each.push(null)
    each.push(key in STATES ? figures[STATES[key]] ?? 0 : now[key])
  }
}

/** How many queues' time series are kept; the least recently polled are dropped. */
const KEPT_QUEUES = 400

const slots = seconds => Math.min(Math.max(Math.round((seconds * 1000) / EVERY_MS) - 1, 0), GAP_SLOTS_MAX)

/** Whether two polls are too close for a meaningful rate, because another page was shown. */
const isSoon = seconds => seconds * 1000 < EVERY_MS * 0.8

/** The newest poll, and the time series. */
export class History {
  constructor() {
    this.poll = null
    this.counted = null
    this.now = { ...NONE, p50: null, p99: null }
    this.totals = newSeries()
    /** The queues of the newest poll, and all recently polled queues. */
    this.queues = new Map()
    this.known = new Map()
  }

  /** Return the time series of a queue, which may be empty. */
  of(key) {
    if (!this.known.has(key)) this.known.set(key, { series: newSeries(), rates: NONE, at: null, recordedUntil: 0, counted: null, isRecorded: false })
    return this.known.get(key)
  }

  /** Take the next poll. A restarted server counts from 0: then there are no rates. */
  add(poll) {
    const before = this.counted
    const seconds = before ? poll.at - before.at : 0
    if (!before || !isSoon(seconds)) {
      const isSame = before && (poll.totals.messages_published ?? 0) >= (before.totals.messages_published ?? 0)
      this.now = {
        ...(isSame ? rates(poll.totals, before.totals, seconds) : NONE),
        p50: isSame ? percentile(poll, before, 0.5) : null,
        p99: isSame ? percentile(poll, before, 0.99) : null,
      }
      extend(this.totals, this.now, poll.totals, slots(seconds))
      this.counted = poll
    }
    this.queues = new Map([...poll.queues].map(([key, figures]) => [key, this.addQueue(key, figures, poll.at)]))
    for (const key of this.known.keys()) {
      if (this.known.size <= Math.max(KEPT_QUEUES, poll.queues.size)) break
      this.known.delete(key)
    }
    this.poll = poll
  }

  addQueue(key, figures, at) {
    const queue = this.of(key)
    this.known.delete(key) // to move it to the end, because the first ones are dropped
    this.known.set(key, queue)
    queue.figures = figures
    const seconds = queue.at === null ? 0 : at - queue.at
    if (queue.at !== null && isSoon(seconds)) return queue
    const isSame = queue.at !== null && figures.messages_published >= queue.counted.messages_published
    queue.rates = isSame ? rates(figures, queue.counted, seconds) : NONE
    extend(queue.series, queue.rates, figures, slots(Math.min(seconds, at - queue.recordedUntil))) // the recorded values have what was before
    queue.at = at
    queue.counted = figures
    return queue
  }
}
