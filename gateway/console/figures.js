// What /metrics says, as numbers by queue, and how they change.

/** How many looks the charts go back: five minutes at one every two seconds. */
export const KEPT = 150

const SAMPLE = /^curbstone_(\w+?)(?:\{(.*)\})? (\S+)$/
const LABEL = /(\w+)="((?:[^"\\]|\\.)*)"/g
const NONE = { in: 0, out: 0, ack: 0 }
const COUNTERS = { in: 'messages_published_total', out: 'messages_delivered_total', ack: 'messages_acknowledged_total' }

/** One look: the totals, the queues by `project/queue`, and the buckets of commit times. */
export function parse(text) {
  const look = { at: performance.now() / 1000, totals: {}, queues: new Map(), commits: new Map(), sync: '' }
  for (const line of text.split('\n')) {
    const [, name, labelText = '', valueText] = SAMPLE.exec(line) ?? []
    if (!name) continue
    const labels = Object.fromEntries(Array.from(labelText.matchAll(LABEL), match => [match[1], match[2]]))
    const value = Number(valueText)
    if (name === 'sync_info') look.sync = labels.mode
    else if (name === 'commit_duration_seconds_bucket') look.commits.set(Number(labels.le.replace('+', '')), value)
    else if (labels.queue && name.startsWith('queue_')) {
      const key = `${labels.project}/${labels.queue}`
      if (!look.queues.has(key)) look.queues.set(key, { project: labels.project, queue: labels.queue })
      look.queues.get(key)[name.slice('queue_'.length)] = value
    } else if (!labelText) look.totals[name] = value
  }
  return look
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
      && look.totals.messages_published_total >= before.totals.messages_published_total
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
