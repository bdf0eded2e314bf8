"""Replication over HTTP: a follower receives a copy of the data directory, and then every change to it.

A `Source` provides the data. The stream is one endless reply, so it has the login, the limits and the TLS of other
requests.
"""

from __future__ import annotations

import logging
import re
from base64 import b64decode
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, Protocol

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from curbstone.access.rights import Right
from curbstone.core.errors import BadRequest, CurbstoneError, NotSupported
from curbstone.gateway.http.callbacks import in_thread
from curbstone.gateway.http.client_disconnect import ThreadBell, is_gone
from curbstone.gateway.http.json_body import read_object
from curbstone.gateway.http.login import access_of, caller_of
from curbstone.gateway.http.problem import Problem
from curbstone.gateway.http.resource import Resource
from curbstone.gateway.http.responses import FRESH, JsonResponse
from curbstone.gateway.limits import BACKUP_LIST_BYTES_MAX, LOGIN_BYTES_MAX
from curbstone.net.peer import is_loopback

if TYPE_CHECKING:
    from curbstone.access.authenticator import Authenticator
    from curbstone.access.authorization import AuthorizedBroker

FOLLOWER = "follower"
"""The protocol under which the connections of followers are listed."""
IDLE_S_MAX = 1.0
NAME_CHARS_MAX = 100
NUMBER_MAX = (1 << 63) - 1
DIGESTS_BYTES_MAX = BACKUP_LIST_BYTES_MAX
DIGEST_BYTES = 16

_ATTACH_FIELDS = ("name", "life", "position", "copy_all", "only_resume", "server", "term", "copy_id", "key", "had")
_COMPARISON_FIELDS = ("key", "path", "first", "digests")
_KEY = re.compile(r"[0-9a-f]{0,64}")

logger = logging.getLogger("curbstone.gateway")


class AttachRequest(NamedTuple):
    """The request of a follower to attach."""

    name: str = "a follower"
    life: int = 0
    """The server life whose stream it has; 0 for none."""
    position: int = 0
    """The position up to which it has that stream."""
    wants_copy: bool = False
    only_resumes: bool = False
    """Whether to refuse it if it can't resume at its position; it then sends digests of its files."""
    server: str = ""
    """Of a standby: the id of the server that it copies; "" for another follower."""
    term: int = 0
    """Of a standby: the highest term that it has seen."""
    copy: str = ""
    """Of a standby: the id of its copy."""
    key: str = ""
    """Of a standby: the key in its acknowledgements."""
    digests: Mapping[str, bytes] = {}
    """The digests of its files, by path."""


class Ack(NamedTuple):
    """The acknowledgement of a standby."""

    key: str
    durable: int
    """The position up to which its disk has everything, or its memory if the server confirms before it syncs."""
    applied: int
    is_usable: bool
    """Whether a server could start on its copy."""


class Follower(Protocol):
    """An attached follower."""

    gather_s: float
    """How long to collect data before sending."""

    @property
    def is_nonblocking(self) -> bool:
        """Whether `read` would not block for long now."""

    def read(self) -> bytes:
        """Return the next data, or b"" if none is available now. Blocks. Raise OSError if it can't continue."""

    def close(self) -> None:
        """Detach it. Blocks."""


class Compared(Protocol):
    """What a comparison has shown."""

    @property
    def size(self) -> int:
        """The size of the server's file; 0 if it has none."""

    @property
    def sent(self) -> int:
        """How many blocks differ, and are sent."""

    @property
    def damage(self) -> str:
        """Why none is sent although some differ; "" if that is not so."""


class Handover(Protocol):
    """A switchover to a standby."""

    name: str
    """The name of the standby."""
    term: int
    """The term of the standby as server."""

    async def switch_over(self) -> None:
        """Hand over, then shut the server down. If it fails, the server continues; raise CurbstoneError."""


class Source(Protocol):
    """The data for followers."""

    @property
    def is_in_sync(self) -> bool:
        """Whether confirms wait for a standby that is in sync. Then `acknowledge` does not block."""

    @property
    def end(self) -> int:
        """The position after the last change."""

    def attach(self, request: AttachRequest, wake: Callable[[], None]) -> Follower:
        """Attach a follower. Blocks. Raise Conflict or Unavailable.

        `wake` is called on any thread when more can be read.
        """

    def acknowledge(self, ack: Ack) -> bool:
        """Take an acknowledgement; return whether the standby may trust the last report of what it may lack.

        May block. Raise Conflict if it is not attached.
        """

    def compare(self, key: str, path: str, first: int, had: Sequence[bytes]) -> Compared:
        """Compare the blocks of a segment, from number `first` on, with these digests of the follower with this key.

        What differs is sent to it in the stream. Blocks. Raise BadRequest, Conflict or Unavailable.
        """

    def hand_over(self) -> Handover:
        """Begin a switchover: nothing is confirmed from now on. Raise Conflict if no standby can take over."""

    def figures(self) -> Any:
        """Return the figures as a named tuple, or None if replication is off."""


class NoFollowers:
    """The source of a server without replication. Its errors say how to turn it on."""

    def __init__(self, reason: str) -> None:
        self._reason = reason

    def attach(self, *_: object) -> NoReturn:
        """Refuse."""
        raise NotSupported(self._reason)

    acknowledge = compare = hand_over = attach
    is_in_sync = False
    end = 0

    def figures(self) -> None:
        """Return None: replication is off."""


class Standby:
    """The handlers of `/v2/standby` and the paths below it."""

    def __init__(self, authenticator: Authenticator, source: Source, *, allows_plaintext: bool) -> None:
        """`allows_plaintext`: whether other machines may follow without TLS."""
        self._connections = authenticator.connections
        self._source = source
        self._allows_plaintext = allows_plaintext
        self._replies: set[StreamReply] = set()

    async def get(self, request: Request) -> Response:
        """GET: the followers, and how far behind each of them is."""
        access_of(request).check_server(Right.REPLICATE)
        figures = self._source.figures()
        if figures is None:
            return JsonResponse({"enabled": False, "followers": []}, headers=FRESH)
        followers = [
            {
                "name": each.name,
                "since": each.since_ms,
                "position": each.position,
                "lag_bytes": each.lag_bytes,
                "sent_bytes": each.sent_bytes,
                "copying": each.is_copying,
                "standby": each.is_standby,
                "acknowledged": each.acknowledged,
                "usable": each.is_usable,
            }
            for each in figures.followers
        ]
        shown = {
            "enabled": True,
            "role": "server",
            "server": figures.server,
            "term": figures.term,
            "life": f"{figures.life:016x}",
            "position": figures.position,
            "confirms": figures.confirms,
            "lease": _lease(figures.lease),
            "backlog_bytes": figures.backlog_bytes,
            "copies": figures.copies,
            "resumes": figures.resumes,
            "cut_off": figures.cut_off,
            "followers": followers,
        }
        return JsonResponse(shown, headers=FRESH)

    async def post(self, request: Request) -> Response:
        """POST: follow, either from a position in the stream of a server life, or starting with a full copy."""
        access = access_of(request)
        access.check_server(Right.REPLICATE)
        peer = request.scope["peer"]
        if not (peer.tls or self._allows_plaintext or is_loopback(peer.host)):
            raise Problem(403, "the stream has every message and all token hashes; follow over TLS (https://)")
        fields = await read_object(request, request.receive, DIGESTS_BYTES_MAX, "a follower", _ATTACH_FIELDS)
        attach_request = _attach_request(fields)
        self._connections.check(access)
        access.replicate(attach_request.name)
        request.scope["slot"].is_follower = True
        bell = ThreadBell()
        source = self._source
        follower: Follower = await in_thread(lambda: source.attach(attach_request, bell.ring))
        return StreamReply(self, request, access, follower, bell)

    async def acknowledge(self, request: Request) -> Response:
        """POST: take a standby's acknowledgement."""
        access_of(request).check_server(Right.REPLICATE)
        fields = await read_object(request, request.receive, LOGIN_BYTES_MAX, "an acknowledgement", Ack._fields)
        ack = _parse_ack(fields)
        request.scope["slot"].is_follower = True
        source = self._source
        is_believed = source.acknowledge(ack) if source.is_in_sync else await in_thread(lambda: source.acknowledge(ack))
        return JsonResponse({"believed": is_believed, "position": source.end}, headers=FRESH)

    async def compare(self, request: Request) -> Response:
        """POST: compare some blocks of a segment with what a standby has; those that differ are sent in its stream."""
        access_of(request).check_server(Right.REPLICATE)
        fields = await read_object(request, request.receive, LOGIN_BYTES_MAX, "a comparison", _COMPARISON_FIELDS)
        key, first, source = _key(fields, "key"), _number(fields, "first"), self._source
        ((path, digests),) = _digests({fields.get("path"): fields.get("digests")}).items()
        had = [digests[at : at + DIGEST_BYTES] for at in range(0, len(digests), DIGEST_BYTES)]
        request.scope["slot"].is_follower = True
        found = await in_thread(lambda: source.compare(key, str(path), first, had))
        return JsonResponse({"size": found.size, "sent": found.sent, "damage": found.damage}, headers=FRESH)

    async def switch_over(self, request: Request) -> Response:
        """POST: switch over to the standby; this server ends."""
        access_of(request).administer("switchover")
        handover = self._source.hand_over()
        await handover.switch_over()
        logger.warning("switched over to %s, which serves in term %d", handover.name, handover.term)
        return JsonResponse({"standby": handover.name, "term": handover.term}, headers=FRESH)

    def begin(self, reply: StreamReply, request: Request, access: AuthorizedBroker) -> Callable[[], None]:
        """Register a reply that is being sent; return the function to call at its end."""
        self._replies.add(reply)
        open_connection = self._connections.add(
            access, caller_of(request, FOLLOWER), end=reply.fail, changed=lambda: reply.check(access)
        )

        def end() -> None:
            open_connection.close()
            self._replies.discard(reply)

        return end

    def release(self) -> None:
        """End all streams: the server is stopping."""
        for reply in list(self._replies):
            reply.end()


class StreamReply(StreamingResponse):
    """The stream to one follower, until its client leaves or loses the right."""

    def __init__(
        self, standby: Standby, request: Request, access: AuthorizedBroker, follower: Follower, bell: ThreadBell
    ) -> None:
        super().__init__(self._pieces(request, access), headers=FRESH, media_type="application/octet-stream")
        self._standby = standby
        self._follower = follower
        self._bell = bell
        self._ends_when_idle = self._is_cut = False

    async def __call__(self, _scope: Scope, _receive: Receive, send: Send) -> None:
        """See `Response`. `_pieces` itself notices when the client leaves: a read in a thread can't be cancelled."""
        await self.stream_response(send)

    async def _pieces(self, request: Request, access: AuthorizedBroker) -> AsyncIterator[bytes]:
        leave = self._standby.begin(self, request, access)
        try:
            while not (self._is_cut or is_gone(request)):
                follower = self._follower
                if piece := follower.read() if follower.is_nonblocking else await in_thread(follower.read):
                    yield piece
                elif self._ends_when_idle:  # checked here, so that the follower gets everything from before `end`
                    break
                else:
                    await self._bell.wait(IDLE_S_MAX, self._follower.gather_s)
        except OSError as error:  # the follower notices the incomplete reply, and attaches again
            logger.warning("the stream to a follower failed: %s", error.strerror or error)
        finally:
            leave()
            await in_thread(self._follower.close)

    def check(self, access: AuthorizedBroker) -> None:
        """End the stream at once if the right is lost."""
        if not access.identity.on_server() & Right.REPLICATE:
            self._is_cut = True

    def fail(self, _reason: CurbstoneError) -> None:
        """End the stream at once."""
        self._is_cut = True

    def end(self) -> None:
        """End the stream once all present data is sent."""
        self._ends_when_idle = True
        self._bell.ring()


def _lease(lease: Any) -> dict[str, Any] | None:
    if lease is None:
        return None
    return {
        "name": lease.name,
        "valid_ms": lease.valid_ms,
        "ttl_ms": lease.ttl_ms,
        "standbys": lease.standbys,
        "failures": lease.failures,
    }


def _attach_request(fields: dict[str, Any]) -> AttachRequest:
    name, life = fields.get("name", ""), fields.get("life", "")
    if not isinstance(name, str) or len(name) > NAME_CHARS_MAX or not name.isprintable():
        raise BadRequest(f'bad "name": expected at most {NAME_CHARS_MAX} printable characters')
    try:
        number = int(life, 16) if life else 0
    except (TypeError, ValueError):
        number = -1
    if not 0 <= number <= NUMBER_MAX:
        raise BadRequest(f'bad "life" {str(life)[:40]!r}: expected the one that the stream had, in hexadecimal')
    return AttachRequest(
        name or "a follower",
        number,
        _number(fields, "position"),
        _flag(fields, "copy_all"),
        _flag(fields, "only_resume"),
        _key(fields, "server"),
        _number(fields, "term"),
        _key(fields, "copy_id"),
        _key(fields, "key"),
        _digests(fields.get("had", {})),
    )


def _parse_ack(fields: dict[str, Any]) -> Ack:
    numbers = _number(fields, "durable"), _number(fields, "applied")
    return Ack(_key(fields, "key"), *numbers, _flag(fields, "is_usable"))


def _number(fields: dict[str, Any], name: str) -> int:
    value = fields.get(name, 0)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= NUMBER_MAX:
        raise BadRequest(f'bad "{name}" {str(value)[:40]!r}: expected a whole number of 0 or more')
    return value


def _flag(fields: dict[str, Any], name: str) -> bool:
    value = fields.get(name, False)
    if not isinstance(value, bool):
        raise BadRequest(f'bad "{name}" {str(value)[:40]!r}: expected true or false')
    return value


def _key(fields: dict[str, Any], name: str) -> str:
    value = fields.get(name, "")
    if not isinstance(value, str) or not _KEY.fullmatch(value):
        raise BadRequest(f'bad "{name}" {str(value)[:40]!r}: expected at most 64 hexadecimal digits')
    return value


def _digests(had: object) -> Mapping[str, bytes]:
    """Return the digests of blocks, by path."""
    try:
        found = {path: b64decode(text, validate=True) for path, text in had.items()}  # type: ignore[attr-defined]
    except (AttributeError, TypeError, ValueError):
        found = {"": b"?"}
    if any(len(digests) % DIGEST_BYTES for digests in found.values()):
        raise BadRequest('bad "had": expected an object of paths, each with the digests of its blocks in base64')
    return found


def standby_routes(standby: Standby) -> list[Route]:
    """Return the routes of followers."""
    return [
        Route("/v2/standby", Resource(GET=standby.get)),
        Route("/v2/standby/stream", Resource(POST=standby.post)),
        Route("/v2/standby/switchover", Resource(POST=standby.switch_over)),
        Route("/v2/standby/stream/acks", Resource(POST=standby.acknowledge)),
        Route("/v2/standby/stream/digests", Resource(POST=standby.compare)),
    ]
