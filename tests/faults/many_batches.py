"""The worst input of the operations of batches; see `worst_cases`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import orjson

from tests.kit.waiting import wait_until

if TYPE_CHECKING:
    from tests.faults.worst_cases import World

AT_ONCE = 10_000
"""The most messages of a request, and the most open batches of a queue."""


def batches(world: World, queue: str) -> None:
    """Send one large batch, and as many others as a queue may have; look at them, drop one, and end the large one."""

    def send(messages: list[dict[str, str]], query: str = "") -> None:
        path = f"{queue}/messages/batch{query}"
        world.call("POST", path, 201, content=orjson.dumps(messages), headers={"content-type": "application/json"})

    world.call("PUT", queue, json={"cap": 256 << 20})
    send([{"message": "x"}] * AT_ONCE, "?to=done")
    send([{"message": "x", "batch": f"{number}", "batch_to": "done"} for number in range(AT_ONCE - 1)])
    world.call("GET", f"{queue}/batches", 200)
    world.call("GET", f"{queue}/batches/1", 200)
    world.call("GET", f"{queue}/explain", 200)
    world.call("DELETE", f"{queue}/batches/1", 204)
    world.call("POST", f"{queue}/purge", 200)
    wait_until(lambda: world.call("GET", queue, 200).json()["batches"] == AT_ONCE - 2, "the report of the first batch")
