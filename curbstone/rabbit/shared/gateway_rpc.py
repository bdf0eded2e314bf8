"""The number of this gateway, and calls between gateways.

Each gateway has an exclusive queue, whose name contains the first free number after a random one, and answers the calls
to it. A gateway that is gone has no queue, so a call to it is returned.
"""

from __future__ import annotations

import json
import logging
import re
import secrets
from collections.abc import Callable
from typing import Any

from curbstone.core.host import Host
from curbstone.rabbit.amqp.link import Link
from curbstone.rabbit.amqp.port import LOCKED, AmqpError, Arrived, Channel, Connection, Properties
from curbstone.rabbit.shared.ids import GATEWAYS_MAX
from curbstone.rabbit.shared.topology import Names

CALL_MS_MAX = 5000
TAG = "inbox"

logger = logging.getLogger("curbstone.rabbit")
Answered = Callable[[dict[str, Any] | None], None]
"""Gets the answer of the other gateway, or None if it does not exist or does not answer."""
Answer = Callable[[dict[str, Any]], None]

_GATEWAY = re.compile(r"[0-9]{1,3}")


class GatewayRpc:
    def __init__(
        self,
        host: Host,
        link: Link,
        names: Names,
        first_number: int,
        on_number: Callable[[int], None],
        on_call: Callable[[dict[str, Any], Answer], None],
        on_dropped: Callable[[str], None],
    ) -> None:
        """`on_dropped(queue)` is called if a private queue of this gateway had no room for a message."""
        self._host = host
        self._link = link
        self._names = names
        self._number = first_number % GATEWAYS_MAX
        self._on_number = on_number
        self._on_call = on_call
        self._on_dropped = on_dropped
        self._channel: Channel | None = None
        self._run_id = secrets.token_hex(4)
        self._calls: dict[str, Answered] = {}
        self._next_call = 0
        link.when(self._up, self._down)

    @property
    def address(self) -> str:
        """The address by which others call this gateway. It changes with each start."""
        return f"{self._number}-{self._run_id}"

    def _up(self, connection: Connection) -> None:
        def lost(error: AmqpError) -> None:
            if self._link.connection is not connection:
                return
            if error.code == LOCKED:
                self._number = (self._number + 1) % GATEWAYS_MAX
            else:
                logger.warning("the gateway's own queue: %s", error)
            self._host.call_later(10, lambda: self._reopen(connection))

        def opened(channel: Channel) -> None:
            channel.on_cancelled(lambda _tag: self._link.leave())

            def declared(error: AmqpError | None, _messages: int, _consumers: int) -> None:
                if error is not None:
                    return
                channel.confirms(lambda *_: None, self._returned, lambda _error: None)
                channel.declare_exchange(self._names.gateways, "fanout", lambda _error: None)
                channel.bind_queue(self._names.gateway(self._number), self._names.gateways, "", lambda _error: None)
                channel.consume(
                    self._names.gateway(self._number), TAG, lambda arrived: self._arrived(channel, arrived), ready
                )

            def ready(error: AmqpError | None) -> None:
                if error is None:
                    self._channel = channel
                    self._on_number(self._number)

            channel.declare_queue(self._names.gateway(self._number), declared, exclusive=True, durable=False)

        connection.channel(opened, lost)

    def _reopen(self, connection: Connection) -> None:
        if self._link.connection is connection:
            self._up(connection)

    def _down(self, _reason: str) -> None:
        self._channel = None
        calls, self._calls = self._calls, {}
        for answered in calls.values():
            answered(None)

    # --- calls

    def is_mine(self, address: str) -> bool:
        """Return whether an address is that of this gateway since its last start."""
        return address == self.address

    def number_of(self, address: str) -> int | None:
        """Return the number of the gateway with this address, or None if the address is malformed."""
        number = address.partition("-")[0]
        return int(number) if _GATEWAY.fullmatch(number) and int(number) < GATEWAYS_MAX else None

    def call(self, number: int, what: dict[str, Any], on_answer: Answered) -> None:
        """Call another gateway. If the number now belongs to a later gateway, that one gives an empty answer."""
        if self._channel is None:
            self._host.call_soon(lambda: on_answer(None))
            return
        key = self._expect(on_answer)
        self._send("", self._names.gateway(number), {**what, "key": key, "from": self.address, "run_id": ""}, key)

    def call_all(self, what: dict[str, Any], wait_ms: int, on_answer: Answered) -> None:
        """Call all other gateways. The first answer within `wait_ms` counts; gateways without one stay silent."""
        key = self._expect(on_answer, wait_ms)
        self._send(self._names.gateways, "", {**what, "key": key, "from": self.address, "run_id": ""}, "")

    def broadcast(self, what: dict[str, Any]) -> None:
        """Send all other gateways a call that needs no answer."""
        self._send(self._names.gateways, "", {**what, "from": self.address, "run_id": ""}, "")

    def _expect(self, on_answer: Answered, wait_ms: int = CALL_MS_MAX) -> str:
        self._next_call += 1
        key = f"{self._run_id}.{self._next_call}"
        self._calls[key] = on_answer
        self._host.call_later(wait_ms, lambda: self._end(key, None))
        return key

    def _end(self, key: str, answer: dict[str, Any] | None) -> None:
        on_answer = self._calls.pop(key, None)
        if on_answer is not None:
            on_answer(answer)

    def _send(self, exchange: str, to: str, what: dict[str, Any], key: str) -> None:
        channel = self._channel
        if channel is not None and channel.is_open:
            body = json.dumps(what, separators=(",", ":")).encode()
            channel.publish(exchange, to, Properties({}, message_id=key or None), body, mandatory=bool(key))

    def _returned(self, properties: Properties) -> None:
        """End a call that was returned because the gateway does not exist."""
        self._end(properties.message_id or "", None)

    def _arrived(self, channel: Channel, arrived: Arrived) -> None:
        channel.ack(arrived.tag)
        deaths = arrived.properties.headers.get("x-death")
        if isinstance(deaths, list) and deaths:
            self._on_dropped(str(deaths[0].get("queue", "")))
            return
        try:
            what = json.loads(arrived.body)
            if "answer" in what:
                self._end(what["key"], what["answer"])
            elif what["from"] != self.address and what["run_id"] in ("", self._run_id):
                self._on_call(what, lambda answer: self._answer(what, answer))
            elif what["run_id"] not in ("", self._run_id):
                self._answer(what, {"gone": True})
        except (ValueError, KeyError, TypeError) as error:
            logger.error("can't decode a call of another gateway: %s", error)

    def _answer(self, what: dict[str, Any], answer: dict[str, Any]) -> None:
        if "key" in what:
            number = str(what["from"]).partition("-")[0]
            self._send("", self._names.gateway(int(number)), {"key": what["key"], "answer": answer}, "")
