// Charts: a small plain one, and a large one with axes, a legend, and the values under the pointer.

import { SLOTS, SPANS } from './time_series.js'
import { compact, h, number, put } from './dom.js'

const SVG = 'http://www.w3.org/2000/svg'
const HEIGHT = 100

function path(d, name) {
  const element = document.createElementNS(SVG, 'path')
  element.setAttribute('d', d)
  if (name) element.setAttribute('class', name)
  return element
}

function plot(name) {
  const svg = document.createElementNS(SVG, 'svg')
  svg.setAttribute('viewBox', `0 0 ${SLOTS - 1} ${HEIGHT}`)
  svg.setAttribute('preserveAspectRatio', 'none')
  svg.setAttribute('class', name)
  return svg
}

/** Return the gapless segments of a time series, each a list of points. */
function segments(values, most) {
  const left = SLOTS - values.length
  const found = [[]]
  values.forEach((value, index) => {
    if (value === null) found.push([])
    else found.at(-1).push([left + index, (HEIGHT - 2 - (HEIGHT - 4) * value / most).toFixed(1)])
  })
  return found.filter(points => points.length > 1)
}

function lines(values, most, name, withArea) {
  return segments(values, most).flatMap(points => {
    const line = points.map(point => point.join(',')).join(' L')
    const area = path(`M${points[0][0]},${HEIGHT} L${line} L${points.at(-1)[0]},${HEIGHT} Z`, `area ${name}`)
    return withArea ? [area, path(`M${line}`, name)] : [path(`M${line}`, name)]
  })
}

/** A small chart in a table; the columns beside it have its values, so screen readers skip it. */
export class Spark {
  constructor(name) {
    this.name = name
    this.element = plot('spark')
    this.element.setAttribute('aria-hidden', 'true')
  }

  draw(values) {
    const most = Math.max(...values.map(value => value ?? 0), 1)
    this.element.replaceChildren(...lines(values, most, this.name, true))
  }
}

/** Return the end of an axis: 1, 2 or 5 times a power of ten that is not below the value. */
function roundUp(value) {
  const power = 10 ** Math.floor(Math.log10(value))
  return [1, 2, 5, 10].map(step => step * power).find(end => end >= value * 0.999)
}

const ago = (span, share) => {
  const [name] = SPANS[span]
  const [count, unit] = name.split(' ')
  return `${number(Number(count) * share)} ${unit} ago`
}

/** A chart of several time series over one axis: `series` are [key, title]; the key also selects the colour. */
export class Chart {
  constructor(title, series, unit = '') {
    this.title = title
    this.series = series
    this.unit = unit
    this.svg = plot('plot')
    this.svg.setAttribute('role', 'img')
    this.values = series.map(() => h('b'))
    this.when = h('small')
    this.marks = [h('span'), h('span'), h('span')]
    this.times = [h('span'), h('span'), h('span', {}, 'now')]
    this.under = h('i', { class: 'under', hidden: true })
    this.space = h('div', { class: 'space', pointermove: event => this.onPointerMove(event), pointerleave: () => this.onPointerLeave() },
      this.svg, this.under)
    this.element = h('figure', { class: 'chart' },
      h('figcaption', {}, h('h3', {}, title), this.when,
        h('span', { class: 'legend' }, series.map(([key, name], index) =>
          h('span', {}, h('i', { class: `dot ${key}` }), `${name} `, this.values[index])))),
      h('div', { class: 'axis-y', 'aria-hidden': 'true' }, this.marks), this.space,
      h('div', { class: 'axis-x', 'aria-hidden': 'true' }, this.times))
    this.pointed = null
  }

  /** Draw time series over a span. */
  draw(timeSeries, span) {
    this.span = span
    this.drawn = this.series.map(([key]) => timeSeries[key].values(span))
    const top = Math.max(...this.drawn.flat().map(value => value ?? 0))
    const most = roundUp(Math.max(top, 1))
    const grid = [0.5, 1].map(share => path(`M0,${HEIGHT - 2 - (HEIGHT - 4) * share} H${SLOTS - 1}`, 'grid'))
    const drawn = this.drawn.flatMap((values, index) => lines(values, most, this.series[index][0], this.series.length === 1))
    this.svg.replaceChildren(...grid, path(`M0,${HEIGHT - 2} H${SLOTS - 1}`, 'grid base'), ...drawn)
    this.marks.forEach((mark, index) => put(mark, compact(most * (2 - index) / 2)))
    put(this.times[0], ago(span, 1))
    put(this.times[1], ago(span, 0.5))
    this.showValues()
  }

  onPointerMove(event) {
    const { left, width } = this.space.getBoundingClientRect()
    this.pointed = Math.min(Math.max((event.clientX - left) / width, 0), 1)
    this.showValues()
  }

  onPointerLeave() {
    this.pointed = null
    this.showValues()
  }

  /** Show the values under the pointer, or the newest. */
  showValues() {
    if (!this.drawn) return
    const back = this.pointed === null ? 0 : Math.round((1 - this.pointed) * (SLOTS - 1))
    const values = this.drawn.map(each => each.at(-1 - back) ?? null)
    values.forEach((value, index) => put(this.values[index], value === null ? '–' : `${number(value)}${this.unit}`))
    put(this.when, this.pointed === null ? '' : ago(this.span, back / (SLOTS - 1)))
    this.under.hidden = this.pointed === null
    if (this.pointed !== null) this.under.style.left = `${100 * this.pointed}%`
    const texts = this.series.map(([, name], index) => `${name} ${values[index] === null ? 'unknown' : number(values[index])}${this.unit}`)
    this.svg.setAttribute('aria-label', `${this.title}: ${texts.join(', ')}`)
  }
}

/** A choice of span; `chosen` is called with the index of the chosen span, and now with the first. */
export class SpanChoice {
  constructor(chosen) {
    this.span = 0
    this.buttons = SPANS.map(([name], index) => h('button', { type: 'button', click: () => this.choose(index) }, name))
    this.element = h('div', { class: 'choice', role: 'group', 'aria-label': 'Span of the charts' }, this.buttons)
    this.chosen = chosen
    this.mark()
  }

  choose(index) {
    this.span = index
    this.mark()
    this.chosen(index)
  }

  mark() {
    this.buttons.forEach((button, index) => button.setAttribute('aria-pressed', String(index === this.span)))
  }
}
