"""Those who follow the server: each receives everything that changes on its disk, and first a copy of what is there.

A `Source` decides what they get. The stream is one endless reply, so it has the login, the limits and the TLS of every
other request.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

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
from curbstone.gateway.limits import LOGIN_BYTES_MAX
from curbstone.net.peer import is_loopback

if TYPE_CHECKING:
    from curbstone.access.authenticator import Authenticator
    from curbstone.access.authorization import AuthorizedBroker

FOLLOWER = "follower"
"""The protocol under which the connections of followers are listed."""
IDLE_S_MAX = 1.0
GATHER_S = 0.02
"""How long to wait for more before something is sent, because each piece costs a thread and a system call."""
NAME_CHARS_MAX = 100
NUMBER_MAX = (1 << 63) - 1

logger = logging.getLogger("curbstone.gateway")


class Follower(Protocol):
    """One that is attached."""

    def read(self) -> bytes:
        """Return what comes next, or b"" if there is nothing now. Blocks. Raise OSError if it can't continue."""

    def close(self) -> None:
        """End it. Blocks."""


class Source(Protocol):
    """What followers get."""

    def attach(self, name: str, life: int, position: int, wants_copy: bool, wake: Callable[[], None]) -> Follower:
        """Attach one that has the stream of a life up to a position. Blocks. Raise Conflict or OSError.

        `wake` is called on any thread when there is more to read.
        """

    def figures(self) -> Any:
        """Return figures, as a tuple with names, or None if nobody can follow."""


class NoFollowers:
    """A server that can't be followed. It says what to do."""

    def __init__(self, reason: str) -> None:
        self._reason = reason

    def attach(self, *_: object) -> NoReturn:
        """Refuse."""
        raise NotSupported(self._reason)

    def figures(self) -> None:
        """Return None: there are none."""


class Standby:
    """The handler of `/v2/standby` and `/v2/standby/stream`."""

    def __init__(self, authenticator: Authenticator, source: Source, *, may_be_plain: bool) -> None:
        """`may_be_plain`: whether other machines may follow without TLS."""
        self._connections = authenticator.connections
        self._source = source
        self._may_be_plain = may_be_plain
        self._replies: set[StreamReply] = set()

    async def get(self, request: Request) -> Response:
        """GET: who follows, and how far behind each one is."""
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
            }
            for each in figures.followers
        ]
        shown = {
            "enabled": True,
            "life": f"{figures.life:016x}",
            "position": figures.position,
            "backlog_bytes": figures.backlog_bytes,
            "copies": figures.copies,
            "resumes": figures.resumes,
            "cut_off": figures.cut_off,
            "followers": followers,
        }
        return JsonResponse(shown, headers=FRESH)

    async def post(self, request: Request) -> Response:
        """POST: follow, from where the stream of a life was received up to, or from a copy of everything on."""
        access = access_of(request)
        access.check_server(Right.REPLICATE)
        peer = request.scope["peer"]
        if not (peer.tls or self._may_be_plain or is_loopback(peer.host)):
            raise Problem(403, "the stream has every message and the hashes of all tokens: follow over TLS, https://")
        fields = await read_object(
            request, request.receive, LOGIN_BYTES_MAX, "a follower", ("name", "life", "position", "copy_all")
        )
        name, life, position, wants_copy = _asked(fields)
        self._connections.check(access)
        access.replicate(name)
        bell = ThreadBell()
        source = self._source
        follower: Follower = await in_thread(lambda: source.attach(name, life, position, wants_copy, bell.ring))
        return StreamReply(self, request, access, follower, bell)

    def begin(self, reply: StreamReply, request: Request, access: AuthorizedBroker) -> Callable[[], None]:
        """Note a reply that is being sent; return what has to be called at its end."""
        self._replies.add(reply)
        presence = self._connections.enter(
            access, caller_of(request, FOLLOWER), end=reply.fail, changed=lambda: reply.check(access)
        )

        def end() -> None:
            presence.leave()
            self._replies.discard(reply)

        return end

    def release(self) -> None:
        """End all streams: the server stops."""
        for reply in list(self._replies):
            reply.end()


class StreamReply(StreamingResponse):
    """The stream to one follower, as long as its client is there and has the right."""

    def __init__(
        self, standby: Standby, request: Request, access: AuthorizedBroker, follower: Follower, bell: ThreadBell
    ) -> None:
        super().__init__(self._pieces(request, access), headers=FRESH, media_type="application/octet-stream")
        self._standby = standby
        self._follower = follower
        self._bell = bell
        self._is_over = self._is_cut = False

    async def __call__(self, _scope: Scope, _receive: Receive, send: Send) -> None:
        """See `Response`. `_pieces` itself notices when the client leaves: a read in a thread can't be cancelled."""
        await self.stream_response(send)

    async def _pieces(self, request: Request, access: AuthorizedBroker) -> AsyncIterator[bytes]:
        leave = self._standby.begin(self, request, access)
        try:
            while not (self._is_cut or is_gone(request)):
                if piece := await in_thread(self._follower.read):
                    yield piece
                elif self._is_over:  # only now, so that it has what was there when the end was asked for
                    break
                else:
                    await self._bell.wait(IDLE_S_MAX, GATHER_S)
        except OSError as error:  # the follower notices that the reply has no end, and attaches again
            logger.warning("the stream to a follower ended: %s", error.strerror or error)
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
        """End the stream when all that is there now is sent."""
        self._is_over = True
        self._bell.ring()


def _asked(fields: dict[str, Any]) -> tuple[str, int, int, bool]:
    name, life = fields.get("name", ""), fields.get("life", "")
    position, wants_copy = fields.get("position", 0), fields.get("copy_all", False)
    if not isinstance(name, str) or len(name) > NAME_CHARS_MAX or not name.isprintable():
        raise BadRequest(f'bad "name": expected at most {NAME_CHARS_MAX} characters that can be printed')
    try:
        number = int(life, 16) if life else 0
    except (TypeError, ValueError):
        number = -1
    if not 0 <= number <= NUMBER_MAX:
        raise BadRequest(f'bad "life" {str(life)[:40]!r}: expected the one that the stream had, in hexadecimal')
    if not isinstance(position, int) or isinstance(position, bool) or not 0 <= position <= NUMBER_MAX:
        raise BadRequest(f'bad "position" {str(position)[:40]!r}: expected a number of bytes')
    if not isinstance(wants_copy, bool):
        raise BadRequest(f'bad "copy_all" {str(wants_copy)[:40]!r}: expected true or false')
    return name or "a follower", number, position, wants_copy


def standby_routes(standby: Standby) -> list[Route]:
    """Return the routes of followers."""
    return [
        Route("/v2/standby", Resource(GET=standby.get)),
        Route("/v2/standby/stream", Resource(POST=standby.post)),
    ]
