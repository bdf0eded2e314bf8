// What the server says of itself in numbers, and how they change.

/** How many looks the charts go back: five minutes at one every two seconds. */
export const KEPT = 150

const NONE = { in: 0, out: 0, ack: 0 }
const COUNTERS = { in: 'messages_published', out: 'messages_delivered', ack: 'messages_acknowledged' }

/** One look at the reply of `v2/stats`: the totals, the queues by `project/queue`, and the buckets of commit times. */
export function lookAt(stats) {
  return {
    at: performance.now() / 1000,
    totals: stats.totals,
    count: stats.queues_count,
    chosen: stats.queues_chosen,
    queues: new Map(stats.queues.map(queue => [`${queue.project}/${queue.queue}`, queue])),
    commits: new Map(stats.commits.seconds.buckets.map(([bound, count]) => [bound ?? Infinity, count])),
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

/** The looks so far: the newest, and the courses that charts draw. */
export class History {
  constructor() {
    this.look = null
    this.now = { ...NONE, ready: 0, p50: null, p99: null }
    this.totals = { in: [], out: [], ack: [], ready: [] }
    this.queues = new Map()
  }

  /** Take the next look. A server that was started again counts from 0: then there are no rates. */
  add(look) {
    const before = this.look
    const seconds = before ? look.at - before.at : 0
    const isSame = before && seconds > 0
      && look.totals.messages_published >= before.totals.messages_published
    this.now = {
      ...(isSame ? rates(look.totals, before.totals, seconds) : NONE),
      ready: look.totals.messages_ready ?? 0,
      p50: isSame ? percentile(look, before, 0.5) : null,
      p99: isSame ? percentile(look, before, 0.99) : null,
    }
    const kept = new Map()
    for (const [key, figures] of look.queues) {
      const course = this.queues.get(key) ?? { depth: [], rates: NONE }
      if (isSame) course.rates = rates(figures, before.queues.get(key), seconds)
      course.figures = figures
      push(course.depth, figures.messages_ready + figures.messages_unacked + figures.messages_delayed)
      kept.set(key, course)
    }
    this.queues = kept
    for (const [key, course] of Object.entries(this.totals)) push(course, this.now[key])
    this.look = look
  }
}

function push(course, value) {
  course.push(value)
  if (course.length > KEPT) course.shift()
}
