// The login, and for administrators the tokens, connections and audit.

import * as api from './api.js'
import { ask, h, notice, table } from './dom.js'

/** Return a form that logs in and then calls `then`. The secret is sent to the server once, and not stored. */
export function loginForm(then) {
  const user = h('input', { name: 'user', autocomplete: 'username', placeholder: 'empty for a token' })
  const secret = h('input', { name: 'secret', type: 'password', autocomplete: 'current-password', required: true })
  const submit = async event => {
    event.preventDefault()
    try {
      await api.login(user.value, secret.value)
    } catch (error) {
      notice(error.message, true)
      return
    } finally {
      secret.value = ''
    }
    then()
  }
  return h('form', { id: 'login', submit }, h('h2', {}, 'Log in'), h('label', {}, 'User', user),
    h('label', {}, 'Password or token', secret), h('button', {}, 'Log in'))
}

const when = ms => (ms ? new Date(ms).toISOString().slice(0, 19).replace('T', ' ') : '')

function section(title, columns, rows) {
  return h('section', {}, h('div', { class: 'bar' }, h('h2', {}, title)), table(columns.map(name => [name, 'text']),
    h('tbody', {}, rows.map(cells => h('tr', {}, cells.map(cell => h('td', { class: 'text' }, cell))))), title))
}

/** The page behind `#~logins`. */
export class LoginsPage {
  constructor(who) {
    this.who = who
    this.element = h('div', { id: 'logins' })
    this.draw()
  }

  /** The parameters of the next poll. */
  wanted() {
    return { limit: 0 }
  }

  update() {}

  async draw() {
    if (!this.who.login) {
      this.element.replaceChildren(h('p', { class: 'empty' },
        'This server has no users: every client that can connect may do everything. Users, tokens and the audit need --users.'))
      return
    }
    const isAdmin = this.who.server.includes('admin')
    const [tokens, connections, audit] = await Promise.all([
      api.tokens(), isAdmin ? api.connections() : [], isAdmin ? api.audit() : [],
    ])
    const button = (text, title, act) => h('button', {
      click: async () => {
        if (await ask(title, [], text, { danger: true }) === null) return
        await act()
        await this.draw()
      },
    }, text)
    this.element.replaceChildren(
      h('p', {}, `${this.who.user}, at home in ${this.who.home}, by ${this.who.credential}`),
      section('Tokens', ['id', 'user', 'label', 'expires', 'used', ''], tokens.map(each => [
        each.id, each.user, each.label, when(each.expires) || 'never', when(each.used).slice(0, 10),
        button('Revoke', `Revoke ${each.id} of ${each.user}?`, () => api.revoke(each.id)),
      ])),
      isAdmin ? section('Connections', ['user', 'protocol', 'from', 'since', 'unacked', ''], connections.map(each => [
        each.user, each.protocol, each.peer, when(each.since), String(each.unacked),
        button('End', `End the connection of ${each.user} from ${each.peer}?`, () => api.endConnection(each.id)),
      ])) : '',
      isAdmin ? section('Audit', ['time', 'user', 'action', 'target', 'outcome', 'from'], audit.slice(0, 200).map(each => [
        when(each.time), each.user, each.action, each.target, each.outcome + (each.count ? ` × ${each.count}` : ''), each.peer,
      ])) : '')
  }
}
