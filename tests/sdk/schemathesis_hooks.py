"""Loaded by Schemathesis: no call waits for a message that will not come, and parts of transactions are just bytes."""

from __future__ import annotations

from typing import Any

import schemathesis

WAIT_S = 0.01


def before_call(context: Any, case: Any, kwargs: dict[str, Any]) -> None:
    for values in (case.query, case.body):
        if isinstance(values, dict) and "wait" in values and _is_long(values["wait"]):
            values["wait"] = WAIT_S


def _is_long(wait: object) -> bool:
    try:
        return not isinstance(wait, bool) and float(str(wait)) > WAIT_S
    except ValueError:
        return False


def as_bytes(context: Any, value: Any) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode("utf-8", "replace")


schemathesis.hook(before_call)
for media_type in ("application/x-ndjson", "application/vnd.curbstone.batches"):
    schemathesis.serializer(media_type)(as_bytes)
