// The page of the API: fits the contract, the colors and the menu to this server and this screen.

const page = document.querySelector('rapi-doc')
const menu = document.querySelector('select')
const dark = matchMedia('(prefers-color-scheme: dark)')

const COLORS = {
  light: { theme: 'light', 'bg-color': '#ffffff', 'nav-bg-color': '#f4f6f9', 'nav-text-color': '#1b2430', 'primary-color': '#1d5bb8' },
  dark: { theme: 'dark', 'bg-color': '#14181e', 'nav-bg-color': '#1b2028', 'nav-text-color': '#e6eaf0', 'primary-color': '#8ab8ff' },
}

function paint() {
  for (const [name, value] of Object.entries(COLORS[dark.matches ? 'dark' : 'light'])) page.setAttribute(name, value)
}

/** Return whether one has to log in here. */
async function needsLogin() {
  const reply = await fetch('v2/session', { cache: 'no-store' })
  return !reply.ok || (await reply.json()).login
}

/** RapiDoc moves the licence out of the page, and has no menu on a phone. */
function fit() {
  const sheet = new CSSStyleSheet()
  sheet.replaceSync('#api-info { margin-left: 0 } .section-gap--read-mode { padding-left: max(12px, 2cqw); padding-right: 12px }')
  page.shadowRoot.adoptedStyleSheets = [...page.shadowRoot.adoptedStyleSheets, sheet]
}

function fill({ tags }) {
  const option = (value, text) => Object.assign(document.createElement('option'), { value, textContent: text })
  menu.append(option('overview', 'Overview'))
  for (const { name, elementId, paths } of tags) {
    const group = document.createElement('optgroup')
    group.label = name
    group.append(option(elementId, `All of ${name}`), ...paths.map(path => option(path.elementId, path.summary)))
    menu.append(group)
  }
  menu.hidden = false
  if (location.hash.length > 1) page.scrollToPath(decodeURIComponent(location.hash.slice(1)))
}

async function start() {
  paint()
  dark.addEventListener('change', paint)
  menu.addEventListener('change', () => page.scrollToPath(menu.value))
  const [contract, isClosed] = await Promise.all([fetch('openapi.json').then(reply => reply.json()), needsLogin()])
  if (!isClosed) { // RapiDoc would warn at each call that no credentials are set
    delete contract.security
    delete contract.components.securitySchemes
    for (const path of Object.values(contract.paths)) for (const operation of Object.values(path)) delete operation.security
  }
  page.setAttribute('allow-authentication', String(isClosed))
  page.addEventListener('spec-loaded', event => fill(event.detail), { once: true })
  fit()
  await page.loadSpec(contract)
}

customElements.whenDefined('rapi-doc').then(start)
