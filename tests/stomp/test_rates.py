"""A session whose user has a rate does what it does without one, only later: random frames, cut anywhere."""

from __future__ import annotations

from random import Random

import pytest

from curbstone.access.authenticator import OpenAuthenticator
from curbstone.access.authorization import AuthorizedBroker
from curbstone.access.caller import Caller
from curbstone.access.identity import Identity
from curbstone.access.rate_limit import Meter, Rate
from curbstone.access.rights import EVERYTHING
from curbstone.stomp.limits import Limits
from curbstone.stomp.session import Session
from tests.kit.lab import Lab
from tests.stomp.harness import Client, read_frames

QUEUES = ("a", "b")


def frames(rng: Random) -> list[str]:
    """Return what a client sends: each SEND and COMMIT with a receipt, and a DISCONNECT at the end."""
    made = ["CONNECT|accept-version:1.2|host:x"]
    for number in range(60):
        queue = f"destination:/queue/{rng.choice(QUEUES)}"
        body = f"{number} " + "x" * rng.choice((0, 0, 5, 500))
        kind = rng.randrange(6)
        if kind == 0:
            made += [f"BEGIN|transaction:t{number}"]
            made += [f"SEND|{queue}|transaction:t{number}||{body} {part}" for part in range(rng.randrange(3))]
            made += [f"COMMIT|transaction:t{number}|receipt:r{number}"]
        elif kind == 1:
            made += [f"SEND|{queue}|idempotency-key:k{number}|receipt:r{number}||{body}"]
        elif kind == 2:
            made += [f"SEND|{queue}|x-own:{number}|receipt:r{number}||{body}"]
        else:
            made += [f"SEND|{queue}|receipt:r{number}||{body}"]
    return [*made, "DISCONNECT|receipt:end"]


def run(rng: Random, sent: list[str], rate: Rate | None) -> tuple[list[str], list[list[bytes]], dict[str, int]]:
    """Return the receipts that came, sorted, what each queue has, in order, and how often the session was held back."""
    lab = Lab()
    identity = Identity("u", [EVERYTHING])
    held_back: dict[str, int] = {}
    identity.meter = Meter(rate, lab.host, held_back) if rate is not None else None
    authenticator = OpenAuthenticator(lab.broker, lab.host)
    access = AuthorizedBroker(authenticator.registries, lab.broker, identity, lambda _project: None)
    caller = Caller("127.0.0.1", 1, "stomp")
    session = Session(authenticator, access, Limits(), lambda _bytes: None, caller=caller, name="s", now_ms=0)
    data = b"".join(map(Client.frame, sent))
    at, came = 0, b""
    for _ in range(100_000):
        if session.closing:
            break
        size = rng.choice((1, 30, 400, 3_000))
        if at < len(data) and (not session.congested or rng.random() < 0.1):  # the rest of a read comes in any case
            session.receive(data[at : at + size], lab.host.now_ms(), lab.host.wall_ms())
            at += size
        else:
            lab.pass_time(1_000)
        lab.settle()
        came += b"".join(session.take_output())
    came += b"".join(session.take_output())
    assert session.closing
    receipts = sorted(frame.headers["receipt-id"] for frame in read_frames(came) if frame.command == "RECEIPT")
    queues = [lab.named(name) for name in QUEUES]
    return receipts, [lab.pop_all(queue) for queue in queues], held_back


@pytest.mark.parametrize("seed", range(20))
def test_random_rates_lose_duplicate_and_reorder_nothing(seed: int) -> None:
    sent = frames(Random(seed))
    receipts, bodies, held_back = run(Random(seed), sent, Rate(4, 700))
    assert (receipts, bodies) == run(Random(seed), sent, None)[:2], f"seed {seed}"
    assert len(receipts) == 61 and held_back["stomp"] > 3, f"seed {seed}"
