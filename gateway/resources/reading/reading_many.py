"""Offsets and acks of many queues of a project in one call, for clients that read by position."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

from starlette.requests import Request
from starlette.responses import Response

from curbstone.access.rights import Right
from curbstone.core.errors import CurbstoneError, NoSuchGroup, NoSuchQueue
from curbstone.core.names import QueueName, queue_name
from curbstone.gateway.formats.parameters import SEQ_MAX, group_named, wait_ms, whole_number
from curbstone.gateway.http.callbacks import answers
from curbstone.gateway.http.login import access_of
from curbstone.gateway.http.long_poll import FirstOf, Held, Polls
from curbstone.gateway.http.problem import problem_json, problem_of
from curbstone.gateway.http.responses import JsonResponse
from curbstone.gateway.http.typed_body import Body, Seconds, Text, read_typed, rule, typed
from curbstone.gateway.resources.reading.offsets import byte_limit, offsets_json
from curbstone.gateway.resources.reading.reading_groups import AckRequest, Reader
from curbstone.gateway.settings import GatewaySettings

if TYPE_CHECKING:
    from curbstone.access.authorization import AuthorizedBroker
    from curbstone.core.port import Queue
    from curbstone.core.port_reading import Waiter

QUEUES_MAX = 10_000
"""The most queues in one call."""

ByQueue = Annotated[dict[str, Any], rule(
    f"an object with 1 to {QUEUES_MAX} members, each the name of a queue", min_length=1, max_length=QUEUES_MAX
)]  # fmt: skip


class OffsetsRequest(Body):
    """The body of a request for offsets: the queues, each with the seq after which the client wants messages."""

    what = "a request for offsets"

    queues: ByQueue
    group: Text = ""
    wait: Seconds = 0
    bytes: Annotated[Any, rule('"staged", or a number of bytes')] = None


class AcksRequest(Body):
    """The body of acks: the queues, each with the group's ack."""

    what = "acks"

    queues: ByQueue
    group: Annotated[str, rule("the group that settles the messages", min_length=1)]
    reader: Reader = ""


class ReadingMany:
    """The handlers of `/v2/{project}/offsets` and `/v2/{project}/acks`."""

    def __init__(self, settings: GatewaySettings, polls: Polls) -> None:
        self._settings = settings
        self._polls = polls

    async def offsets(self, request: Request) -> Response:
        """POST: the offsets of queues. With `wait`, answered when one has messages after its seq, or the time is up."""
        access = access_of(request)
        body = await read_typed(request, request.receive, self._settings.json_bytes_max, OffsetsRequest)
        after = {
            name: whole_number(f"seq of {name}", seq, 0, SEQ_MAX)
            for name, seq in _by_name(request, body.queues).items()
        }
        group = group_named(body.group)
        longest_ms = wait_ms(body.wait or 0)
        size_max = byte_limit(access, body.bytes) if body.bytes is not None else None
        found = _found(access, after, group)
        if longest_ms and found and len(found) == len(after) and not _has_news(found, after):
            starts = [partial(queue.reading.wait_for, after[name], longest_ms) for name, queue in found.items()]
            await self._polls.poll(_first_of(starts), request.receive, _held_by(access, tuple(after)))
            found = _found(access, after, group)
        offsets = {
            name.queue: offsets_json(queue, group, after[name], size_max) for name, queue in sorted(found.items())
        }
        missing = sorted(name.queue for name in after if name not in found)
        return JsonResponse({"queues": offsets, "missing": missing})

    async def ack(self, request: Request) -> Response:
        """POST: settle messages of several queues for a group; each queue has its own commit and its own result."""
        access = access_of(request)
        acks = await read_typed(request, request.receive, self._settings.json_bytes_max, AcksRequest)
        group = group_named(acks.group)
        by_name = {name: typed(value, AckRequest) for name, value in _by_name(request, acks.queues).items()}
        for name in by_name:
            access.check(Right.RECEIVE, name)

        def start(name: QueueName, on_done: Callable[..., None]) -> None:
            queue = access.queue(name, Right.RECEIVE)
            queue.reading.check_epoch(by_name[name].epoch)
            queue.reading.ack_to(group, by_name[name].up_to, on_done, acks.reader)

        results = await answers([partial(start, name) for name in by_name])
        done, problems = {}, {}
        for name, result in zip(by_name, results, strict=True):
            if isinstance(result, CurbstoneError):
                problems[name.queue] = problem_json(problem_of(result))
            else:
                done[name.queue] = result[1]._asdict()
        return JsonResponse({"queues": done, "problems": problems})


def _by_name(request: Request, given: Mapping[str, Any]) -> dict[QueueName, Any]:
    """Return the members of the body by queue name."""
    project = request.path_params["project"]
    return {queue_name(name, project): value for name, value in given.items()}


def _found(access: AuthorizedBroker, names: Mapping[QueueName, int], group: str) -> dict[QueueName, Queue]:
    """Return the queues that exist and have the group; raise if the client lacks the right on one."""
    found = {}
    for name in names:
        try:
            queue = access.queue(name, Right.PEEK)
            if group:
                queue.reading.position(group)
            found[name] = queue
        except (NoSuchQueue, NoSuchGroup):
            continue
    return found


def _has_news(found: Mapping[QueueName, Queue], after: Mapping[QueueName, int]) -> bool:
    return any(queue.reading.next > after[name] for name, queue in found.items())


def _held_by(access: AuthorizedBroker, names: Sequence[QueueName]) -> Held:
    def check() -> None:
        for name in names:
            access.check(Right.PEEK, name)

    return Held(check, access.identity.watch)


def _first_of(starts: Sequence[Callable[..., Waiter]]) -> Callable[[Callable[..., None]], Waiter]:
    return partial(FirstOf, starts)
