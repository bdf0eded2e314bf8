"""What a user of the Python client does: log in, create, publish, lease, ack, pop, delete. Run by test_sdk.py."""

from __future__ import annotations

import sys
from io import BytesIO
from typing import Any

from curbstone_http import AuthenticatedClient, Client
from curbstone_http.api.events import bind_queue, publish_event
from curbstone_http.api.leases import ack_leases, confirm_pop, lease_messages, settle_leases
from curbstone_http.api.messages import (
    cancel_message,
    get_message,
    get_message_history,
    peek_messages,
    pop_message,
    publish_batch,
    publish_message,
)
from curbstone_http.api.queues import delete_queue, ensure_queue, explain_queue, get_queue, pause_queue, resume_queue
from curbstone_http.errors import ProblemError
from curbstone_http.models import (
    AckRequest,
    BatchMessage,
    Explanation,
    LeasedMessages,
    LeaseRequest,
    MessageHistory,
    MessageIds,
    PeekedMessage,
    PeekedMessages,
    PeekMessagesState,
    QueueChanges,
    QueueInfo,
    Settled,
    SettleNack,
    SettleRequest,
)
from curbstone_http.types import File

PROJECT, QUEUE = "sdk", "python"


def main(url: str, token: str) -> None:
    client = AuthenticatedClient(base_url=url, token=token, raise_on_unexpected_status=True)
    stranger = Client(base_url=url, raise_on_unexpected_status=True)
    try:
        get_queue.sync(PROJECT, QUEUE, client=stranger)
    except ProblemError as refused:
        assert refused.status == 401
    else:
        raise AssertionError("there was no need to log in")
    created = ensure_queue.sync_detailed(PROJECT, QUEUE, client=client, body=QueueChanges(max_tries=5))
    assert created.status_code == 201

    marked = client.with_headers({"x-msg-x-color": "blue"})
    published = publish_message.sync_detailed(PROJECT, QUEUE, client=marked, body=File(payload=BytesIO(b"\0\1\xff")))
    assert published.status_code == 201
    batch = publish_batch.sync(PROJECT, QUEUE, client=client, body=[BatchMessage(message="Grüße")])
    assert isinstance(batch, MessageIds) and len(batch.ids) == 1

    leased = lease_messages.sync(PROJECT, QUEUE, client=client, body=LeaseRequest(count=1, seconds=60))
    assert isinstance(leased, LeasedMessages)
    (message,) = leased.messages
    assert message.id == published.headers["x-msg-id"]
    assert (message.message, message.tries, message["x-msg-x-color"]) == ("AAH/", 0, "blue")

    peeked = peek_messages.sync(PROJECT, QUEUE, client=client, state=PeekMessagesState.WIP)
    assert isinstance(peeked, PeekedMessages) and len(peeked.messages) == 1
    acked = ack_leases.sync(PROJECT, QUEUE, client=client, body=AckRequest(ack_ids=[message.ack_id]))
    assert isinstance(acked, Settled) and (acked.settled, acked.stale) == (1, [])

    popped = pop_message.sync_detailed(PROJECT, QUEUE, client=client)
    assert popped.status_code == 200 and isinstance(popped.parsed, File)
    assert popped.parsed.payload.read() == "Grüße".encode()
    assert pop_message.sync_detailed(PROJECT, QUEUE, client=client).status_code == 204

    info = get_queue.sync(PROJECT, QUEUE, client=client)
    assert isinstance(info, QueueInfo) and (info.rdy, info.options.max_tries) == (0, 5)
    bodies(client)
    events_and_leases(client)
    one_message(client)
    try:
        get_queue.sync(PROJECT, "none", client=client)
    except ProblemError as missing:
        assert missing.status == missing.problem.status == 404 and missing.problem.message in str(missing)
    else:
        raise AssertionError("a queue that is not there was no error")
    assert delete_queue.sync_detailed(PROJECT, QUEUE, client=client).status_code == 204
    print("done")


def bodies(client: AuthenticatedClient) -> None:
    """What is given as a body arrives, with its type, or raises; nothing is stored as an empty message instead."""
    for body, stored, media in (
        ("text: ü", "text: ü".encode(), "text/plain; charset=utf-8"),
        (b"\0\xff", b"\0\xff", "application/octet-stream"),
        ({"total": 12}, b'{"total": 12}', "application/json"),
        ([1, 2], b"[1, 2]", "application/json"),
        (File(BytesIO(b"a,b"), mime_type="text/csv"), b"a,b", "text/csv"),
    ):
        assert publish_message.sync_detailed(PROJECT, QUEUE, client=client, body=body).status_code == 201
        popped = pop_message.sync_detailed(PROJECT, QUEUE, client=client)
        assert (popped.content, popped.headers["content-type"]) == (stored, media)
        assert "x-msg-x-color" not in popped.headers, "with_headers changed the client that it was called on"
    not_bodies: tuple[Any, ...] = (12, None, object())
    for wrong in not_bodies:
        try:
            publish_message.sync_detailed(PROJECT, QUEUE, client=client, body=wrong)
        except TypeError as error:
            assert type(wrong).__name__ in str(error)
        else:
            raise AssertionError(f"{wrong} was taken for a body")
    assert pop_message.sync_detailed(PROJECT, QUEUE, client=client).status_code == 204


def events_and_leases(client: AuthenticatedClient) -> None:
    """Two messages come by an event; of their leases one is acked and one given back, in one call."""
    assert bind_queue.sync_detailed(PROJECT, "order.*", QUEUE, client=client).status_code == 201
    for body in ("first", "second"):
        assert publish_event.sync_detailed(PROJECT, "order.new", client=client, body=body).status_code == 201
    leased = lease_messages.sync(PROJECT, QUEUE, client=client, body=LeaseRequest(count=2))
    assert isinstance(leased, LeasedMessages)
    first, second = [message.ack_id for message in leased.messages]
    settle = SettleRequest(ack=[first], nack=[SettleNack(ack_id=second, delay=0, error="later")])
    settled = settle_leases.sync(PROJECT, QUEUE, client=client, body=settle)
    assert isinstance(settled, Settled) and (settled.settled, settled.stale) == (2, [])
    safe = pop_message.sync_detailed(PROJECT, QUEUE, client=client, confirm=30)
    assert (safe.content, safe.headers["x-msg-tries"]) == (b"second", "1")
    assert confirm_pop.sync_detailed(PROJECT, QUEUE, safe.headers["x-msg-lease"], client=client).status_code == 204


def one_message(client: AuthenticatedClient) -> None:
    """A message in a paused queue is looked at by its id, explained, cancelled, and its history told."""
    assert pause_queue.sync_detailed(PROJECT, QUEUE, client=client).status_code == 200
    published = publish_message.sync_detailed(PROJECT, QUEUE, client=client, body="waits")
    message_id = published.headers["x-msg-id"]
    explained = explain_queue.sync(PROJECT, QUEUE, client=client)
    assert isinstance(explained, Explanation) and explained.sentences[0].startswith("It is paused")
    found = get_message.sync(PROJECT, QUEUE, message_id, client=client)
    assert isinstance(found, PeekedMessage) and (found.message, found.id) == ("waits", message_id)
    assert cancel_message.sync_detailed(PROJECT, QUEUE, message_id, client=client).status_code == 204
    history = get_message_history.sync(PROJECT, QUEUE, message_id, client=client)
    assert isinstance(history, MessageHistory) and history.state == "gone"
    assert resume_queue.sync_detailed(PROJECT, QUEUE, client=client).status_code == 200


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
