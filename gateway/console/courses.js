// What the server says of itself in numbers, and how they change: courses that charts draw, over three spans.

/** How often the server is looked at. */
export const EVERY_MS = 2000

/** How many values a chart is wide. */
export const SLOTS = 150

/** The spans to choose from: a name, how many looks make one value of it, and what the server calls its history. */
export const SPANS = [['5 min', 1, 'hour'], ['1 h', 12, 'hour'], ['24 h', 288, 'day']]

const GAP_SLOTS_MAX = SLOTS * SPANS.at(-1)[1]
const NONE = { in: 0, out: 0, ack: 0 }
const COUNTERS = { in: 'messages_published', out: 'messages_delivered', ack: 'messages_acknowledged' }
const STATES = { ready: 'messages_ready', unacked: 'messages_unacked', delayed: 'messages_delayed' }

/** The course of one number: for each span its newest values. A null is a time without a reading. */
export class Course {
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

  /** Replace the values of a span by those that the server has recorded. */
  begin(span, values) {
    Object.assign(this.levels[span], { values, taken: 0, sum: 0, known: 0 })
  }

  /** Return the values of a span, the one that is not complete included. */
  values(span) {
    const level = this.levels[span]
    return level.taken ? [...level.values, mean(level)].slice(-SLOTS) : level.values
  }
}

const mean = level => (level.known ? level.sum / level.known : null)
const courses = () => Object.fromEntries([...Object.keys(COUNTERS), ...Object.keys(STATES)].map(key => [key, new Course()]))

/** Return what the server calls the values of a course in its history. */
const recordedAs = key => STATES[key] ?? `${COUNTERS[key]}_per_second`

/** Let courses begin, over a span, with what the server has recorded: `figures` in steps of `step` s, the first of which ended at `from`. */
export function begin(these, span, figures, { step, from }) {
  const slot = SPANS[span][1] * EVERY_MS
  for (const [key, course] of Object.entries(these)) {
    const values = resample(figures[recordedAs(key)], 1000 * step, from, slot)
    if (values.some(value => value !== null)) course.begin(span, values)
  }
}

/** Return the last `SLOTS` means, each over `slot` ms, of values that each are of `step` ms; the first of them ended at `from`. */
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

/** One look at the reply of `v2/stats`: the totals, the queues by `project/queue`, and the buckets of commit times. */
export function lookAt(stats) {
  return {
    at: performance.now() / 1000,
    /** Whether it has figures of the server: not everyone may see those. */
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

/** Return the time within which a share of the commits between two looks was done, in seconds; null without any. */
export function percentile(now, before, share) {
  const buckets = [...now.commits].map(([bound, count]) => [bound, count - (before.commits.get(bound) ?? 0)])
  const total = buckets.at(-1)?.[1] ?? 0
  if (total <= 0) return null
  const [bound] = buckets.find(([, count]) => count >= total * share)
  return bound
}

function extend(course, now, figures, missed) {
  for (const [key, each] of Object.entries(course)) {
    for (let slot = 0; slot < missed; slot += 1) each.push(null)
    each.push(key in STATES ? figures[STATES[key]] ?? 0 : now[key])
  }
}

/** How many queues' courses are kept; those that were not looked at for the longest time go. */
const KEPT_QUEUES = 400

const slots = seconds => Math.min(Math.max(Math.round((seconds * 1000) / EVERY_MS) - 1, 0), GAP_SLOTS_MAX)

/** Whether a look comes so soon behind another, because a page was turned, that a rate between them means nothing. */
const isSoon = seconds => seconds * 1000 < EVERY_MS * 0.8

/** The looks so far: the newest, and the courses. */
export class History {
  constructor() {
    this.look = null
    this.counted = null
    this.now = { ...NONE, p50: null, p99: null }
    this.totals = courses()
    /** The queues of the newest look; and all that were looked at lately. */
    this.queues = new Map()
    this.known = new Map()
  }

  /** Return what is known of a queue, even if it was not looked at yet. */
  of(key) {
    if (!this.known.has(key)) this.known.set(key, { courses: courses(), rates: NONE, at: null, begun: 0, counted: null, isRecorded: false })
    return this.known.get(key)
  }

  /** Take the next look. A server that was started again counts from 0: then there are no rates. */
  add(look) {
    const before = this.counted
    const seconds = before ? look.at - before.at : 0
    if (!before || !isSoon(seconds)) {
      const isSame = before && (look.totals.messages_published ?? 0) >= (before.totals.messages_published ?? 0)
      this.now = {
        ...(isSame ? rates(look.totals, before.totals, seconds) : NONE),
        p50: isSame ? percentile(look, before, 0.5) : null,
        p99: isSame ? percentile(look, before, 0.99) : null,
      }
      extend(this.totals, this.now, look.totals, slots(seconds))
      this.counted = look
    }
    this.queues = new Map([...look.queues].map(([key, figures]) => [key, this.addQueue(key, figures, look.at)]))
    for (const key of this.known.keys()) {
      if (this.known.size <= Math.max(KEPT_QUEUES, look.queues.size)) break
      this.known.delete(key)
    }
    this.look = look
  }

  addQueue(key, figures, at) {
    const queue = this.of(key)
    this.known.delete(key) // it moves to the end, away from those that are forgotten first
    this.known.set(key, queue)
    queue.figures = figures
    const seconds = queue.at === null ? 0 : at - queue.at
    if (queue.at !== null && isSoon(seconds)) return queue
    const isSame = queue.at !== null && figures.messages_published >= queue.counted.messages_published
    queue.rates = isSame ? rates(figures, queue.counted, seconds) : NONE
    extend(queue.courses, queue.rates, figures, slots(Math.min(seconds, at - queue.begun))) // the record has what was before `begun`
    queue.at = at
    queue.counted = figures
    return queue
  }
}
