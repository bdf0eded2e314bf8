"""Quotas: the most queues of a project, and the largest sum of their caps."""

from __future__ import annotations

from collections.abc import Mapping

from curbstone.access.errors import QuotaReached
from curbstone.access.users import Quota
from curbstone.core.errors import BadRequest
from curbstone.core.names import QueueName
from curbstone.core.options import parse_size
from curbstone.core.port import Broker


def check_quota(quota: Quota, broker: Broker, name: QueueName, changes: Mapping[str, object]) -> None:
    """Raise QuotaReached if creating or changing this queue would exceed the quota of its project."""
    caps = {queue.name: queue.options.cap for queue in broker.queues() if queue.name.project == name.project}
    before = caps.get(name)
    cap = changes.get("cap", broker.defaults.cap if before is None else before)
    if isinstance(cap, str):
        cap = parse_size(cap)
    if not isinstance(cap, int):
        raise BadRequest("bad option cap: expected a size")
    if before is None and len(caps) >= quota.queues:
        raise QuotaReached(f"project {name.project} has {quota.queues} queues, all that its quota allows")
    total = sum(caps.values()) - (before or 0) + cap
    if cap > (before or 0) and total > quota.bytes:
        raise QuotaReached(
            f"the caps of project {name.project} would be {total} bytes together; its quota allows {quota.bytes}"
        )
