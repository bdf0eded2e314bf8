"""The authenticator of a server with users: the only module that turns credentials into identities.

A reload or a revocation changes the identities that are in use. Unknown users, wrong passwords and revoked tokens get
the same error.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from curbstone.access import files
from curbstone.access.audit import Audit
from curbstone.access.authorization import AuthorizedBroker
from curbstone.access.caller import Caller, Credentials
from curbstone.access.connections import Admitted, Connections
from curbstone.access.errors import LOGIN_FAILED, LOGIN_REQUIRED, NoSuchToken, NotLoggedIn, TooMany
from curbstone.access.identity import Identity, local_identity
from curbstone.access.issuers import Claims, Verifier, is_jwt
from curbstone.access.jwt_users import NoVerifier, check_library, user_of, verifier_for
from curbstone.access.password_logins import PasswordLogins
from curbstone.access.rate_limit import Meters
from curbstone.access.registries import Registries
from curbstone.access.reloading import Reloading
from curbstone.access.rights import Grants, Right
from curbstone.access.secrets import SESSION, TICKET, TOKEN, Secret, new_secret, parse_secret
from curbstone.access.sessions import LONGEST_MS, Sessions, Tickets
from curbstone.access.tokens import DIRECTORY, Token, Tokens, check_narrower, make_directory, new_token
from curbstone.access.users import ANONYMOUS, Quota, User, Users, UsersError, load
from curbstone.core.disk import Disk
from curbstone.core.errors import BadRequest, CurbstoneError, NotSupported
from curbstone.core.host import Host
from curbstone.core.names import QueueName
from curbstone.core.port import Broker
from curbstone.core.values import Done

TIDY_EVERY_MS = 5_000
"""How often expired sessions and identities are removed."""
KNOWN_MAX = 20_000
"""The number of identities from which on unused ones of JWTs are removed. They are created again when needed."""
KEPT_MS = 60_000
"""How long an expired identity is kept."""
TOKENS_NEED_LOCAL_ENGINE = (
    "API tokens need the local engine: other gateways would not know them. On a cluster users log in with passwords,"
    " client certificates or JWTs."
)
ANONYMOUS_OWNER = "~"
"""The owner of `anonymous`, which is no user."""


class Origin(NamedTuple):
    """The proof of an identity, which ends when the proof is no longer valid."""

    kind: str
    """`password`, `token`, `certificate`, `jwt` or `anonymous`."""
    user: str
    proof: str
    """The hash of the password, the id of the token, the name in the certificate, or the content of the JWT."""
    session: str = ""
    """The id of the session that was opened with it; "" for none."""


class _Known:
    """An identity in use."""

    __slots__ = ("access", "claims", "identity", "origin")

    def __init__(self, origin: Origin, claims: Claims | None, identity: Identity, access: AuthorizedBroker) -> None:
        self.origin = origin
        self.claims = claims
        """The claims of its JWT, if it logged in with one."""
        self.identity = identity
        self.access = access


class UserAuthenticator:
    """Implements `authenticator.Authenticator`; called on the host's thread."""

    wants_login = True
    generation = 0

    def __init__(self, broker: Broker, host: Host, users_file: Path, data: Path, disk: Disk) -> None:
        """`disk` is that of the data directory `data`."""
        self.connections = Connections(host, self.admit)
        self.audit = Audit(host, data / DIRECTORY / "audit")
        self.registries = Registries(host, self.audit)
        self.tokens = Tokens(host, data, disk)
        self.sessions = Sessions(host)
        self.tickets = Tickets(host)
        self.users = Users({}, {})
        self._verifier: Verifier = NoVerifier()
        self._broker = broker
        self._host = host
        self._file = users_file
        self._disk = disk
        self._password_logins = PasswordLogins(host)
        self._known: dict[Origin, _Known] = {}
        self._by_access: dict[AuthorizedBroker, _Known] = {}
        self.logins: dict[tuple[str, str], int] = {}
        self._meters = Meters(host)
        self.held_back = self._meters.held_back
        self.everyone = AuthorizedBroker(self.registries, broker, local_identity(), lambda _project: None)
        self.anonymous = AuthorizedBroker(
            self.registries, broker, Identity("", [Grants(())], owner=ANONYMOUS_OWNER), lambda _project: None
        )

    def open(self) -> None:
        """Read the users, the tokens and the audit log. Blocks. Raise UsersError or DataDirectoryError."""
        self._reloading = Reloading(self._host, "users", [self._file], self._read, self._take, self._refuse)
        self.users = self._read()
        self._verifier = verifier_for(self.users, self._host)
        self.tokens.load()
        make_directory(self._disk)
        self.audit.load()
        self._host.call_later(TIDY_EVERY_MS, self._tidy)

    def _read(self) -> Users:
        try:
            users = load(files.read_trusted(self._file))
            check_library(users)
        except OSError as error:
            raise UsersError(f"{self._file}: {error.strerror}") from None
        except UsersError as error:
            raise UsersError(f"{self._file}: {error}") from None
        return users

    # --- logins

    def enter(self, credentials: Credentials, caller: Caller) -> AuthorizedBroker | None:
        secret = parse_secret(credentials.secret) if credentials.secret else None
        if secret is not None:
            return self._by_secret(secret, credentials.user, caller)
        if credentials.is_empty:
            return self._without_credentials(caller)
        if is_jwt(credentials.secret):
            claims = self._verifier.known(credentials.secret)
            return None if claims is None else self._by_claims(claims, credentials.user, caller)
        if not credentials.user:  # a malformed token: no user has an empty name
            raise self._failed("", caller)
        try:
            kept = self._password_logins.known(self.users, credentials, caller)
        except TooMany:
            self._count(caller.protocol, "throttled")
            self.audit.throttled(self._audit_name(credentials.user), caller)
            raise
        if not kept:
            return None
        user = self.users.users[credentials.user]
        return self._admit(user, Origin("password", user.name, kept), caller)

    def admit(self, credentials: Credentials, caller: Caller, on_done: Admitted) -> None:
        try:
            access = self.enter(credentials, caller)
        except CurbstoneError as error:
            on_done(error)
            return
        if access is not None:
            on_done(access)
        elif is_jwt(credentials.secret):
            self._verify(credentials, caller, on_done)
        else:
            self._check(credentials, caller, on_done)

    def _verify(self, credentials: Credentials, caller: Caller, on_done: Admitted) -> None:
        """Admit a client with a JWT that is not in the cache."""

        def verified(answer: Claims | CurbstoneError) -> None:
            try:
                if isinstance(answer, NotLoggedIn):
                    raise self._failed(credentials.user, caller)
                if isinstance(answer, CurbstoneError):
                    raise answer
                found = self._by_claims(answer, credentials.user, caller)
            except CurbstoneError as refusal:
                on_done(refusal)
            else:
                on_done(found)

        self._verifier.verify(credentials.secret, verified)

    def _check(self, credentials: Credentials, caller: Caller, on_done: Admitted) -> None:
        """Admit a client with a password that has to be hashed."""

        def checked(error: CurbstoneError | None, kept: str) -> None:
            user = self.users.users.get(credentials.user)  # a reload may have changed it
            if error is not None:
                on_done(error)
                return
            try:
                if user is None or kept not in user.passwords:
                    raise self._failed(credentials.user, caller)
                found = self._admit(user, Origin("password", user.name, kept), caller)
            except CurbstoneError as refusal:
                on_done(refusal)
            else:
                on_done(found)

        self._password_logins.check(self.users, credentials, caller, checked)

    def _without_credentials(self, caller: Caller) -> AuthorizedBroker:
        """Return the access of a client that presents no credentials, or only a certificate."""
        user = self.users.by_certificate(caller.certificate) if caller.certificate else None
        if user is not None:
            proof = next(name for name in user.certificates if name in caller.certificate)
            return self._admit(user, Origin("certificate", user.name, proof), caller)
        user = self.users.users.get(ANONYMOUS)
        if user is None or not user.may_log_in_from(caller.address):
            raise NotLoggedIn(LOGIN_REQUIRED)
        return self._admit(user, Origin("anonymous", user.name, ""), caller)

    def _by_secret(self, secret: Secret, name: str, caller: Caller) -> AuthorizedBroker:
        if secret.kind == TOKEN:
            token = self.tokens.find(secret)
            user = self.users.users.get(token.user) if token is not None else None
            if token is not None and user is not None and name in ("", user.name):
                access = self._admit(user, Origin("token", user.name, token.id), caller)
                self.tokens.used(token)
                return access
        elif secret.kind == SESSION:
            found = self.sessions.find(secret)
            user = self._user(self._of(found)) if found is not None else None
            if (
                found is not None
                and user is not None
                and name in ("", user.name)
                and user.may_log_in_from(caller.address)
            ):
                return found
        raise self._failed(name, caller)

    def _by_claims(self, claims: Claims, name: str, caller: Caller) -> AuthorizedBroker:
        """Return the access of the user of a JWT."""
        user = user_of(claims, self.users)
        if user is None or name not in ("", user.name):
            raise self._failed(name, caller)
        proof = repr((claims.id, claims.expires_ms, claims.roles))  # repr, because roles may contain spaces
        return self._admit(user, Origin("jwt", user.name, proof), caller, claims)

    def _admit(self, user: User, origin: Origin, caller: Caller, claims: Claims | None = None) -> AuthorizedBroker:
        """Return the access of a user whose proof is valid."""
        if not user.may_log_in_from(caller.address):
            raise self._failed(user.name, caller)
        known = self._known.get(origin)
        if known is None:
            known = self._make(origin, user, claims)
        self._count(caller.protocol, "ok")
        self.audit.login(user.name, known.identity.credential, caller)
        return known.access

    def _failed(self, user: str, caller: Caller) -> NotLoggedIn:
        """Record a failed login in the audit log, and return the error."""
        self._count(caller.protocol, "failed")
        self.audit.failed(self._audit_name(user), caller)
        return NotLoggedIn(LOGIN_FAILED)

    def _audit_name(self, user: str) -> str:
        """Return the name of a user for the audit log; empty for an unknown user, whose name may be a secret."""
        return user if user in self.users.users else ""

    def _count(self, protocol: str, outcome: str) -> None:
        key = (protocol, outcome)
        self.logins[key] = self.logins.get(key, 0) + 1

    # --- identities

    def _make(self, origin: Origin, user: User, claims: Claims | None = None, expires_ms: int = 0) -> _Known:
        if len(self._known) >= KNOWN_MAX:
            self._sweep()
        token = self.tokens.get(origin.proof) if origin.kind == "token" else None
        for end_ms in (token.expires_ms if token is not None else 0, claims.expires_ms if claims is not None else 0):
            if end_ms:
                expires_ms = min(expires_ms or end_ms, end_ms)
        proof = origin.proof if token is not None else f"jwt {claims.id}".strip() if claims is not None else origin.kind
        credential = origin.session or proof
        layers = self._layers(origin, user) or [Grants(())]
        identity = Identity(user.name, layers, home=user.home, credential=credential, expires_ms=expires_ms)
        identity.meter = self._meters.of(user.name, user.rate)
        known = _Known(origin, claims, identity, AuthorizedBroker(self.registries, self._broker, identity, self._quota))
        self._known[origin] = self._by_access[known.access] = known
        return known

    def _forget(self, known: _Known) -> None:
        self._known.pop(known.origin, None)
        self._by_access.pop(known.access, None)

    def _sweep(self) -> None:
        """Remove expired identities and, if there are very many, unused ones of JWTs."""
        wall_ms = self._host.wall_ms()
        many = len(self._known) >= KNOWN_MAX
        for known in list(self._known.values()):
            identity, origin = known.identity, known.origin
            is_expired = bool(identity.expires_ms) and identity.expires_ms + KEPT_MS <= wall_ms
            is_surplus = many and origin.kind == "jwt" and not origin.session
            if identity.end_reason or ((is_expired or is_surplus) and not identity.is_watched):
                self._forget(known)

    def _quota(self, project: str) -> Quota:
        return self.users.quota(project)

    def _user(self, known: _Known) -> User | None:
        """Return the user of an identity, by the current users file."""
        return (
            user_of(known.claims, self.users) if known.claims is not None else self.users.users.get(known.origin.user)
        )

    def _layers(self, origin: Origin, user: User | None) -> list[Grants] | None:
        """Return the grants of an identity; None if its proof is no longer valid."""
        if user is None:
            return None
        if user.ceiling is not None:
            return [user.grants, user.ceiling]
        if origin.kind == "password" and origin.proof not in user.passwords:
            return None
        if origin.kind == "certificate" and origin.proof not in user.certificates:
            return None
        if origin.kind == "token":
            token = self.tokens.get(origin.proof)
            if token is None or token.user != user.name:
                return None
            return [user.grants] if token.layer is None else [user.grants, token.layer]
        return [user.grants]

    def _review(self) -> None:
        """Update the rights of the identities in use, and end those whose proof is no longer valid."""
        for origin, known in list(self._known.items()):
            user = self._user(known)
            layers = self._layers(origin, user)
            if user is None or layers is None:
                self._forget(known)
                known.identity.end("the login was revoked")
            else:
                known.identity.change(layers, user.home)
                self._update_meter(known.identity, user)
        for connection in self.connections.listed():
            user = self.users.users.get(connection.access.identity.user)
            if user is not None and not user.may_log_in_from(connection.caller.address):
                connection.end(NotLoggedIn("the login was revoked"))

    def _update_meter(self, identity: Identity, user: User) -> None:
        """Use the meter of the user's current rate. If the rate has changed, a debt is cancelled."""
        before, identity.meter = identity.meter, self._meters.of(user.name, user.rate)
        if before is not None and before is not identity.meter:
            before.cancel_debt()

    # --- sessions and tickets

    def open_session(self, access: AuthorizedBroker, caller: Caller) -> tuple[Secret, AuthorizedBroker]:
        """Open a session; raise TooMany or NotLoggedIn."""
        known = self._of(access)
        secret = new_secret(SESSION)
        user = self._user(known)
        if user is None:
            raise NotLoggedIn(known.identity.end_reason or LOGIN_REQUIRED)
        expires_ms = self._host.wall_ms() + LONGEST_MS
        if known.identity.expires_ms:
            expires_ms = min(expires_ms, known.identity.expires_ms)
        made = self._make(known.origin._replace(session=secret.id), user, known.claims, expires_ms)
        try:
            self.sessions.open(secret, made.access)
        except CurbstoneError:
            self._forget(made)
            raise
        self.audit.session(user.name, known.identity.credential, caller, secret.id)
        return secret, made.access

    def close_session(self, access: AuthorizedBroker) -> None:
        """Close the session of this access, if it has one."""
        known = self._of(access)
        if known.origin.session:
            self.sessions.close(known.origin.session)
            self._forget(known)

    def make_ticket(self, access: AuthorizedBroker, purpose: str, queue: QueueName | None) -> Secret:
        """Return a new ticket; raise TooMany. The caller must have checked the right for its purpose."""
        return self.tickets.make(access, purpose, queue)

    def use_ticket(self, text: str, purpose: str, queue: QueueName | None, caller: Caller) -> AuthorizedBroker:
        secret = parse_secret(text)
        access = self.tickets.use(secret, purpose, queue) if secret is not None and secret.kind == TICKET else None
        user = self._user(self._of(access)) if access is not None and not access.identity.end_reason else None
        if access is None or user is None or not user.may_log_in_from(caller.address):
            raise self._failed("", caller)
        return access

    def _of(self, access: AuthorizedBroker) -> _Known:
        known = self._by_access.get(access)
        if known is None:
            raise NotLoggedIn(access.identity.end_reason or LOGIN_REQUIRED)
        return known

    # --- tokens

    def make_token(
        self,
        access: AuthorizedBroker,
        *,
        user: str,
        grants: Iterable[str] | None,
        expires_ms: int,
        label: str,
        on_done: Done,
    ) -> tuple[Secret, Token]:
        """Create a token, which is valid once `on_done(None)` is called. Raise BadRequest or NotLoggedIn."""
        self._check_tokens()
        known = self._of(access)
        is_own = user == access.identity.user
        if not is_own:
            access.check_server(Right.ADMIN)
        if user not in self.users.users or user == ANONYMOUS:
            raise BadRequest(f"no user {user[:128]!r} in the users file; only its users can have tokens")
        parent = known.origin.proof if is_own and known.origin.kind == "token" else ""
        made_with = self.tokens.get(parent)
        if made_with is not None:
            if made_with.expires_ms:
                expires_ms = min(expires_ms or made_with.expires_ms, made_with.expires_ms)
            if made_with.grants is not None:
                check_narrower(made_with.grants, grants)
        now_ms = self._host.wall_ms()
        secret, token = new_token(user, now_ms, grants=grants, expires_ms=expires_ms, label=label, parent=parent)
        self.tokens.add(token, on_done, by_admin=access.identity.is_admin)
        self.registries.changed(access.identity, "make token", f"{token.id} of {user}")
        return secret, token

    def sees_token(self, access: AuthorizedBroker, token: Token) -> bool:
        """Return whether the caller may see and revoke a token.

        A caller that uses a token with grants may do so only with that token and those created with it.
        """
        if access.identity.is_admin:
            return True
        origin = self._of(access).origin
        by = self.tokens.get(origin.proof) if origin.kind == "token" else None
        if by is None or by.grants is None:
            return token.user == access.identity.user
        return self.tokens.is_from(token, by.id)

    def revoke_token(self, access: AuthorizedBroker, identifier: str, on_done: Done) -> None:
        """Revoke a token and those created with it. Connections that use them end at once."""
        self._check_tokens()
        token = self.tokens.get(identifier)
        if token is None or not self.sees_token(access, token):
            access.check_server(Right.ADMIN)
        if token is None:
            raise NoSuchToken(f"there is no token {identifier[:20]!r}")
        self.registries.changed(access.identity, "revoke token", identifier)
        self.tokens.revoke([identifier], on_done)
        self._review()

    def revoke_tokens_of(self, access: AuthorizedBroker, user: str, on_done: Done) -> int:
        """Revoke a user's tokens that the caller may see, and those created with them; return the former number."""
        self._check_tokens()
        if user != access.identity.user:
            access.check_server(Right.ADMIN)
        found = [token.id for token in self.tokens.listed() if token.user == user and self.sees_token(access, token)]
        self.registries.changed(access.identity, "revoke tokens", f"{len(found)} of {user[:128]}")
        self.tokens.revoke(found, on_done)
        self._review()
        return len(found)

    def _check_tokens(self) -> None:
        """Raise NotSupported on a cluster, where other gateways would not see tokens created or revoked here."""
        if self._broker.shares_queues:
            raise NotSupported(TOKENS_NEED_LOCAL_ENGINE)

    # --- reload

    def reload(self, on_done: Done = lambda _error: None) -> None:
        """Reload the users file, in a thread. An invalid file changes nothing; `on_done` gets the error."""
        self._reloading.reload(on_done)

    def _take(self, users: Users) -> None:
        if bool(users.issuers) != bool(self.users.issuers):
            self._verifier = verifier_for(users, self._host)
        self.users = users
        self.generation += 1
        self._verifier.set_issuers(users.issuers)
        self._review()
        self.audit.note("reload", "ok", user="")

    def _refuse(self, error: BaseException) -> None:
        self.audit.note("reload", "failed", user="", target=str(error))

    def _tidy(self) -> None:
        """Remove expired sessions and identities, now and every `TIDY_EVERY_MS`."""
        self.sessions.sweep()
        self._sweep()
        self._host.call_later(TIDY_EVERY_MS, self._tidy)
