"""What the engine's errors are in HTTP."""

from __future__ import annotations

import pytest

from curbstone.core import errors
from curbstone.core.names import queue_name
from curbstone.gateway.http.problem import Problem, problem_of, status_of
from curbstone.gateway.http.problem_types import TYPES, type_of
from tests.kit.gateway import Running

KINDS = [
    kind
    for kind in vars(errors).values()
    if isinstance(kind, type)
    and issubclass(kind, errors.CurbstoneError)
    and kind not in (errors.CurbstoneError, errors.EventRefused)
]


@pytest.mark.parametrize("kind", KINDS)
def test_every_engine_error_has_a_status(kind: type[errors.CurbstoneError]) -> None:
    status = status_of(kind("why"))
    assert status != 500, f"{kind.__name__} is not in the table"
    assert (status < 500) != issubclass(kind, (errors.Unavailable, errors.QueueFull, errors.NotSupported))


def test_status_follows_the_base_class_or_the_first_refusal() -> None:
    assert status_of(errors.AlreadyCommitted("it is")) == status_of(errors.Conflict("it does")) == 409
    full, large = errors.QueueFull("at its cap"), errors.MessageTooLarge("too large")
    refused = errors.EventRefused({queue_name("a"): full, queue_name("b"): large}, 1)
    assert status_of(refused) == 507
    assert problem_of(refused).members["stored"] == 1


def test_unknown_error_is_500_and_a_problem_keeps_its_status() -> None:
    assert status_of(errors.CurbstoneError("?")) == 500
    assert status_of(Problem(415, "no")) == 415


def test_names_of_types_are_unique_and_in_the_order_of_their_status() -> None:
    assert len({kind.name for kind in TYPES}) == len(TYPES)
    assert [kind.status for kind in TYPES] == sorted(kind.status for kind in TYPES)


@pytest.mark.anyio
async def test_problem_type_links_to_its_paragraph(gateway: Running) -> None:
    page = (await gateway.http.get("/docs/problems")).text
    for path, name in (
        ("/v2/p1/queues/nothing", "no-such-queue"),
        ("/v2/p1/queues/q/groups/g", "no-such-group"),
        ("/nothing", "not-found"),
        ("/v2/p1/queues/a b", "bad-request"),
    ):
        problem = (await gateway.http.get(path)).json()
        assert problem["type"] == f"/docs/problems#{name}"
        assert f'id="{name}"' in page
    problem = (await gateway.http.post("/healthz")).json()
    assert problem["type"] == "/docs/problems#wrong-verb"


def test_problem_without_a_type_is_about_blank() -> None:
    assert type_of(418) == "about:blank"
