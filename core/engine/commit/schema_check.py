"""Checks the messages of a publish against the schema of its queue: in slices of turns, or outside of the loop."""

from __future__ import annotations

from functools import partial
from typing import Any

from curbstone.core.engine.parts import Parts
from curbstone.core.engine.write_queue import Publish, SchemaCheck
from curbstone.core.errors import CurbstoneError, Unavailable
from curbstone.core.schemas import AT_ONCE_MS, UNPLACED, BodyRule


def check_schema(parts: Parts, rule: BodyRule, publish: Publish) -> SchemaCheck:
    """Check more messages of a publish; return how far the check is. If some are left, the queue gets another turn."""
    found = publish.schema_check
    if found is None:
        found = publish.schema_check = SchemaCheck()
    checks = parts.state.shared.checks
    while found.fit < len(publish.messages) and found.refusal is None and not found.is_apart:
        body = publish.messages[found.fit].body
        if not checks.has_time():
            parts.state.host.call_soon(parts.wakeups.schedule)
            break
        refusal = rule.check(body) if rule.most_ms(body) <= AT_ONCE_MS else UNPLACED
        if refusal is UNPLACED:
            found.is_apart = True
            checks.submit(partial(rule.check_apart, body), partial(_checked, parts, found))
        else:
            _note(found, refusal)
    return found


def _note(found: SchemaCheck, refusal: CurbstoneError | None) -> None:
    if refusal is None:
        found.fit += 1
    else:
        found.refusal = refusal


def _checked(parts: Parts, found: SchemaCheck, refusal: Any, error: BaseException | None) -> None:
    """A check outside of the loop has ended."""
    found.is_apart = False
    if error is not None:
        parts.state.report(f"a body can't be checked against the schema: {error}")
        refusal = Unavailable(f"the body can't be checked against the queue's schema: {error}")
    _note(found, refusal)
    parts.wakeups.schedule()
