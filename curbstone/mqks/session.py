"""One MQKS connection without its socket: bytes in, bytes out.

The owner of the socket does four things:

- It calls `receive` with each read and the time.
- The session calls `changed` with the number of bytes that its output has grown by. Then the owner sends the result of
  `take_output`.
- As long as `tick_ms` is not 0, it calls `tick` after that time.
- It closes the socket when `closing` is true and all output is sent.

Requests are carried out in order. After a request that costs more than its size suggests, other connections get a turn.
Requests that change data on disk are answered after the commit, all others immediately. Only a request with `--confirm`
gets an `ok`; an `error` is always sent.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from curbstone.access.caller import CURRENT_CALLER
from curbstone.access.rate_limit import Throttle
from curbstone.core.errors import CurbstoneError
from curbstone.core.values import ignore
from curbstone.mqks import arguments, codec
from curbstone.mqks.actions import PUBLISH, Actions
from curbstone.mqks.codec import Line, LineReader, Request
from curbstone.mqks.consumer import QueueConsumer
from curbstone.mqks.errors import RequestError
from curbstone.mqks.limits import REQUEST_BYTES_MAX, WORK_US_MAX, Limits
from curbstone.mqks.login import AUTH, Login
from curbstone.mqks.registry import Registry
from curbstone.net.in_flight import InFlight
from curbstone.net.receive_deadline import ReceiveDeadline

if TYPE_CHECKING:
    from curbstone.access.caller import Caller
    from curbstone.core.values import Done

_TLS = b"\x16\x03"
_HTTP = re.compile(rb"[A-Z]{3,20} (/|\*|https?://)\S* HTTP/1\.[01]\r?")
_WITH_DATA = (PUBLISH, b"ping")
_WITH_NAMES = (b"consume", b"rebind")
Report = Callable[[str, bool], bytes]
Later = Callable[[int, Callable[[], None]], object]
HTTP_ANSWER = b"HTTP/1.1 400 Bad Request\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"


class Session:
    """The state machine of one connection.

    open ──end_input, shut_down, a fatal error──▶ ending ──commits under way are done──▶ closing

    `logged_in` is called with the user's name at a login. `report(text, is_mistake)` logs the detail of an error and
    returns the error's id; see `ErrorLog.report`. `later(delay_ms, fn)` is the host's.
    """

    def __init__(
        self,
        registry: Registry,
        limits: Limits,
        changed: Callable[[int], None],
        report: Report,
        later: Later,
        now_ms: int,
        caller: Caller,
        logged_in: Callable[[str], object] = str,
    ) -> None:
        self._registry = registry
        self._traffic = registry.traffic
        self._limits = limits
        self._changed = changed
        self._report = report
        self._later = later
        self._started_ms = now_ms
        self._caller = caller
        self._is_audited = registry.authenticator.wants_login
        self.unfinished_bytes = 0
        """How many bytes of an unfinished line the last read left."""
        self.is_another = True
        """Whether the last read completed a line, so that the unfinished one is a new one."""
        self._reader = LineReader(limits.line_bytes_max)
        self._line = ReceiveDeadline(limits.line_ms, limits.line_bytes_per_s)
        self._output: list[bytes] = []
        self.is_paused = False
        """Whether deliveries are paused because the socket is full."""
        self.updates: dict[QueueConsumer, bytes] = {}
        """The --update lines that consumers get when the socket takes more."""
        self._is_first = True
        self._waiting: deque[Line] = deque()
        """Lines that wait for their turn."""
        self._is_due = False
        self._is_input_over = False
        self.work_us = 0
        """An estimate of what the requests of this turn have cost, in microseconds."""
        self._errors = 0
        self._unconfirmed = InFlight(limits.unconfirmed_max, limits.unconfirmed_bytes_max)
        self.ending = False
        """Whether the session takes no more input. The last answers may still wait for the disk."""
        self.closing = False
        """Whether the output is complete, so that the socket can be closed after sending it."""
        self.congested = False
        """Whether reading must stop, until the session calls `changed` and this is false again."""
        self.lost = False
        self._login = Login(
            registry.authenticator,
            caller,
            end=lambda error: self.refuse(codec.NO_ID, RequestError(str(error), fatal=True)),
            changed=lambda: self._actions.check_rights(),
            unacked=lambda: self._actions.unacked,
            logged_in=logged_in,
        )
        self._throttle = Throttle(caller.protocol, self._released)
        registry.sessions.add(self)
        self._actions = Actions(self, registry, limits, self._login)
        self._login.begin()

    # --- the socket's side

    def take_output(self) -> list[bytes]:
        """Return the output, in order, and clear it."""
        output, self._output = self._output, []
        return output

    def receive(self, data: bytes, now_ms: int) -> None:
        """Carry out the requests that `data` completes. `now_ms` is that of a monotonic clock."""
        if self._is_audited:
            CURRENT_CALLER.set(self._caller)
        if self._is_first and data.startswith(_TLS):
            self._finish()
        lines = self._reader.feed(data) if not self.ending else []
        if self._waiting or self._login.is_pending:
            self._waiting.extend(lines)
        else:
            self._carry_out_all(lines)
        if self.ending:
            return
        self.unfinished_bytes, self.is_another = self._reader.unfinished_bytes, bool(lines)
        self._line.unfinished(self.unfinished_bytes, self.is_another, now_ms)
        if self._reader.overlong_bytes > self._limits.junk_bytes_max:
            self.refuse(
                codec.NO_ID,
                RequestError(f"a line of more than {self._limits.junk_bytes_max} bytes has no end", fatal=True),
            )

    @property
    def tick_ms(self) -> int:
        """In how many ms to call `tick`; 0 if there is no deadline."""
        if self.ending:
            return 0
        return self._line.tick_ms if self._line.is_begun or self._is_first or not self._login.has_user else 0

    def tick(self, now_ms: int) -> None:
        """End the connection at a deadline: of a line, of the first line, or of the login."""
        if self.ending:
            return
        if self._line.is_late(now_ms):
            rule = f"no complete line within {self._limits.line_ms} ms"
            self.refuse(codec.NO_ID, RequestError(rule, fatal=True))
        elif self._is_first and now_ms - self._started_ms >= self._limits.first_line_ms:
            rule = f"no first line within {self._limits.first_line_ms} ms"
            self.refuse(codec.NO_ID, RequestError(rule, fatal=True))
        elif not self._login.has_user and now_ms - self._started_ms >= self._limits.first_line_ms:
            rule = f"no login within {self._limits.first_line_ms} ms"
            self.refuse(codec.NO_ID, RequestError(rule, fatal=True))

    def reading(self, on: bool, now_ms: int) -> None:
        """Note that reading stopped or continued: a client that is not read can't be late."""
        self._line.reading(on, now_ms)

    def pause(self) -> None:
        """Pause deliveries: the socket is full."""
        self.is_paused = True
        for consumer in self._actions.consumers.values():
            consumer.engine.hold()

    def resume(self) -> None:
        """Resume deliveries, and lines that wait, after `pause`."""
        self.is_paused = False
        if self.updates:
            self.write(b"".join(self.updates.values()))
            self.updates.clear()
        for consumer in self._actions.consumers.values():
            consumer.engine.resume()
        self._proceed_later()

    def end_input(self) -> None:
        """End once all answers are sent: the client has closed its half."""
        self._is_input_over = True
        if not self._waiting and not self._login.is_pending:
            self._finish()

    def shut_down(self) -> None:
        """End when pending commits are done: the server is stopping."""
        self._finish()

    def refuse_client(self, reason: str) -> None:
        """End with an error for a reason other than a request."""
        self.refuse(codec.NO_ID, RequestError(reason, fatal=True))

    def connection_lost(self) -> None:
        """Requeue the deliveries: the socket is gone. Messages that were published stay."""
        self.lost = self.closing = True
        self._finish()
        self._reader.drop()
        self.take_output()
        self._login.leave()
        self._registry.sessions.discard(self)
        # The engine may still call back. Drop the references that would keep this session in memory.
        self._changed = ignore
        del self._actions

    # --- lines

    def _carry_out_all(self, lines: Sequence[Line]) -> None:
        """Carry out lines in order. Lines after costly ones, or after a waiting one, wait for a later turn."""
        self.work_us = 0
        for done, line in enumerate(lines, 1):
            if not self._carry_out(line):
                self._waiting.extend(lines[done - 1 :])
                self.congested = True
                return
            if self.ending:
                return
            if self._login.is_pending:
                self._waiting.extend(lines[done:])
                self.congested = True
                return
            if self.work_us >= WORK_US_MAX and done < len(lines):
                self._waiting.extend(lines[done:])
                self.congested = True
                self._proceed_later()
                return

    def _proceed_later(self) -> None:
        if self._waiting and not self._is_due and not self.is_paused and not self._throttle.is_on:
            self._is_due = True
            self._later(max(1, self.work_us // 1000), self._proceed)

    def _released(self) -> None:
        """Continue with the lines that waited: the user is within its rate again."""
        CURRENT_CALLER.set(self._caller)
        self._proceed()

    def _proceed(self) -> None:
        self._is_due = False
        if self.ending or self.is_paused or self._throttle.is_on:
            return
        lines = list(self._waiting)
        self._waiting.clear()
        self._carry_out_all(lines)
        if self._waiting or self.ending:
            return
        if self._is_input_over:
            self._finish()
        else:
            self._check_room()

    def _carry_out(self, line: Line) -> bool:
        """Carry out a line; return False if it has to wait, because it publishes and its user is over its rate."""
        text = line.text
        if self._is_first:
            self._is_first = False
            # A web page can make its browser send arbitrary data to any port, but only after this first line of HTTP.
            if _HTTP.fullmatch(text):
                self.write(HTTP_ANSWER)
                self._finish()
                return True
        try:
            if not line.is_whole:
                raise RequestError(f"a line has at most {self._limits.line_bytes_max} bytes")
            if b"\t" in text:
                raise RequestError("a request can't contain a tab", fatal=True)
            request = codec.parse_request(text)
            if len(request.request_id) > self._limits.id_bytes_max:
                raise RequestError(f"an id has at most {self._limits.id_bytes_max} bytes")
            action = self._auth if request.action == AUTH else self._actions.named(request.action)
            if action is None:
                raise RequestError("unknown action")
            self._login.check(request.action)
            if len(text) > REQUEST_BYTES_MAX and request.action not in _WITH_DATA:
                raise RequestError(f"a request other than publish and ping has at most {REQUEST_BYTES_MAX} bytes")
            if request.action == PUBLISH:
                meter = self._login.access.identity.meter
                if meter is not None and self._throttle.holds(meter):
                    return False
            if request.action in _WITH_NAMES:
                self.work_us += len(text) // 4
            action(request)
        except (RequestError, CurbstoneError) as error:
            self.refuse(codec.request_id_of(text, self._limits.id_bytes_max), error)
        else:
            self._errors = 0
        return True

    def refuse(self, request_id: bytes, error: RequestError | CurbstoneError) -> None:
        """Answer with an error, whose detail is logged."""
        mistake = error if isinstance(error, RequestError) else None
        self._traffic.refuse(error)
        self._errors += 1
        error_id = self._report(str(error) or type(error).__name__, mistake is not None)
        self.write(codec.error(request_id, error_id, mistake.retry_after_s if mistake is not None else 0))
        if self._errors >= self._limits.errors_max or (mistake is not None and mistake.fatal):
            self._finish()

    def write(self, data: bytes) -> None:
        """Add these bytes to the output. The output of one turn is sent together, unless it becomes too much."""
        if self.closing:
            return
        self._output.append(data)
        self._changed(len(data))

    def update(self, consumer: QueueConsumer, line: bytes) -> None:
        """Send a consumer's --update. While the socket is full only the latest is kept, which has all bindings."""
        if self.is_paused:
            self.updates[consumer] = line
        else:
            self.write(line)

    # --- login

    def _auth(self, request: Request) -> None:
        """Log in. Requests after this one wait until it is answered."""

        def done(error: CurbstoneError | RequestError | None, is_later: bool) -> None:
            if self.ending:
                return
            if error is not None:
                self.refuse(request.request_id, error)
            else:
                self.write(codec.ok(request.request_id, self._login.access.identity.user.encode()))
            if is_later and self.is_paused:
                self._check_room()
            elif is_later:
                self._proceed()

        self._login.auth(arguments.text_of(request.rest).split(), done)

    def end_consumer(self, consumer: QueueConsumer) -> None:
        """End a consumer of this connection."""
        self._actions.end_consumer(consumer)

    # --- answers that wait for the disk

    def confirm(self, request: Request) -> None:
        """Answer a request that was carried out."""
        if request.confirm:
            self.write(codec.ok(request.request_id))

    def start(self, request: Request, call: Callable[[Done], object], size: int = 0) -> None:
        """Hand a request to the engine, and answer it when the engine calls back."""

        def answered(error: CurbstoneError | None) -> None:
            if error is not None:
                self.refuse(request.request_id, error)
            else:
                self.confirm(request)
            self._finished(size)

        call(answered)
        self._unconfirmed.add(1, size)
        if self._unconfirmed.is_over_limit:
            self.congested = True

    def _finished(self, size: int) -> None:
        self._unconfirmed.remove(1, size)
        self._check_room()
        if self.ending and not self._unconfirmed.count:
            self._close()

    def _check_room(self) -> None:
        """Resume reading if enough of the client's requests are done."""
        if self.congested and not self._waiting and not self._unconfirmed.is_over_limit:
            self.congested = False
            self._changed(0)

    def _finish(self) -> None:
        """Read and deliver nothing more; close when nothing is unconfirmed."""
        if self.ending:
            return
        self.ending = True
        self._throttle.close()
        self._waiting.clear()
        for consumer in list(self._actions.consumers.values()):
            self.end_consumer(consumer)
        if not self._unconfirmed.count:
            self._close()

    def _close(self) -> None:
        self.closing = True
        self._changed(0)
