// A course as a small chart: from the left, as it came; the height is the greatest value.

const SVG = 'http://www.w3.org/2000/svg'

function path(d, name) {
  const element = document.createElementNS(SVG, 'path')
  element.setAttribute('d', d)
  if (name) element.setAttribute('class', name)
  return element
}

/** Return the chart; `label` says to a screen reader what it shows, `slots` how many values are its width. */
export function sparkline(values, label, slots) {
  const svg = document.createElementNS(SVG, 'svg')
  const width = Math.max(slots - 1, 1)
  svg.setAttribute('viewBox', `0 0 ${width} 100`)
  svg.setAttribute('preserveAspectRatio', 'none')
  svg.setAttribute('class', 'spark')
  svg.setAttribute('role', 'img')
  svg.setAttribute('aria-label', `${label}, newest ${Math.round(values.at(-1) ?? 0)}`)
  const most = Math.max(...values, 1)
  const left = width - values.length + 1
  const points = values.map((value, index) => `${left + index},${(97 - 92 * value / most).toFixed(1)}`)
  if (points.length > 1) {
    svg.append(path(`M${left},100 L${points.join(' L')} L${width},100 Z`, 'area'), path(`M${points.join(' L')}`))
  }
  return svg
}
