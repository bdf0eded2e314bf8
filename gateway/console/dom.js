// Elements without a framework. Text is always inserted as text: the contents of messages never become markup.

/** Return an element; `attributes` with a function are event listeners, false and null are left out. */
export function h(name, attributes = {}, ...children) {
  const element = document.createElement(name)
  for (const [key, value] of Object.entries(attributes)) {
    if (typeof value === 'function') element.addEventListener(key, value)
    else if (value === true) element.setAttribute(key, '')
    else if (value !== false && value !== null && value !== undefined) element.setAttribute(key, value)
  }
  element.append(...children.flat(Infinity).filter(child => child !== null && child !== undefined && child !== false))
  return element
}

/** Set an element's text if it differs: unchanged text is neither redrawn nor read aloud again. */
export function put(element, text) {
  if (element.textContent !== text) element.textContent = text
}

/**
 * Make the children of `parent` correspond to `items`, in their order. A key keeps its element, so focus, selection and
 * open rows survive. `make(item)` returns a new element, `change(element, item)` fills it.
 */
export function sync(parent, items, keyOf, make, change) {
  const focused = document.activeElement
  const keys = new Set(items.map(keyOf))
  for (const child of [...parent.children]) if (!keys.has(child.dataset.key)) child.remove()
  const there = new Map([...parent.children].map(child => [child.dataset.key, child]))
  let place = parent.firstElementChild
  for (const item of items) {
    const key = keyOf(item)
    const element = there.get(key) ?? make(item)
    element.dataset.key = key
    change(element, item)
    if (element === place) place = place.nextElementSibling
    else parent.insertBefore(element, place)
  }
  if (focused !== document.activeElement && parent.contains(focused)) focused.focus({ preventScroll: true })
}

let hiding = 0

/** Show a result or an error in a line at the bottom. */
export function notice(text, isBad = false) {
  const line = document.getElementById('notice')
  line.textContent = text
  line.classList.toggle('bad', isBad)
  line.hidden = false
  clearTimeout(hiding)
  hiding = setTimeout(() => { line.hidden = true }, isBad ? 9000 : 4000)
}

/**
 * Show a dialog; resolve to the form's data, or to null if it was cancelled.
 * `content` are elements; `match` must be typed before `action` can be chosen.
 */
export function ask(title, content, action, { danger = false, match = '' } = {}) {
  return new Promise(resolve => {
    const go = h('button', { value: 'go', class: danger ? 'danger' : null, disabled: Boolean(match) }, action)
    const typed = match && h('label', {}, `Type ${match} to confirm`, h('input', {
      autocomplete: 'off', autofocus: true, input: event => { go.disabled = event.target.value !== match },
    }))
    const form = h('form', { method: 'dialog' }, h('h2', {}, title), content, typed || null,
      h('menu', {}, h('button', { value: '', formnovalidate: true }, 'Cancel'), go))
    const dialog = h('dialog', {
      close: () => {
        dialog.remove()
        resolve(dialog.returnValue === 'go' ? new FormData(form) : null)
      },
    }, form)
    document.body.append(dialog)
    dialog.showModal()
  })
}

const UNITS = ['B', 'KiB', 'MiB', 'GiB', 'TiB']

/** Return a readable number of bytes. */
export function bytes(count) {
  const unit = Math.min(Math.floor(Math.log2(Math.max(count, 1)) / 10), UNITS.length - 1)
  const value = count / 1024 ** unit
  return `${value < 10 && unit ? value.toFixed(1) : Math.round(value)} ${UNITS[unit]}`
}

/** Return a number with separators; a rate below ten has one decimal. */
export function number(value) {
  const digits = value > 0 && value < 10 && !Number.isInteger(value) ? 1 : 0
  return value.toLocaleString('en', { minimumFractionDigits: digits, maximumFractionDigits: digits })
}

/** Return a count with its noun: 1 message, 2 messages. */
export function counted(count, what, plural = `${what}s`) {
  return `${number(count)} ${count === 1 ? what : plural}`
}

const SCALES = [[1e9, 'G'], [1e6, 'M'], [1e3, 'k']]

/** Return a number for an axis: 1.5k for 1500. */
export function compact(value) {
  const [scale, letter] = SCALES.find(([each]) => value >= each) ?? [1, '']
  return `${number(Number((value / scale).toPrecision(3)))}${letter}`
}

/** Return a readable time, in UTC. */
export const time = ms => new Date(ms).toISOString().replace('T', ' ').replace('Z', '')

/** Return a table with a header row; `columns` are titles, or [title, class]. */
export function table(columns, body, label) {
  const heads = columns.map(column => [column].flat()).map(([title, name]) => (title
    ? h('th', { scope: 'col', class: name }, title)
    : h('td', { class: name })))
  return h('div', { class: 'scroll', tabindex: 0, role: 'region', 'aria-label': label },
    h('table', {}, h('thead', {}, h('tr', {}, heads)), body))
}

/** Return seconds as ms. */
export function milliseconds(seconds) {
  return seconds === null ? '–' : `${number(seconds * 1000)} ms`
}
