"""The staged transactions of one identity."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from curbstone.access.rights import Right
from curbstone.core.errors import CurbstoneError
from curbstone.core.names import QueueName
from curbstone.core.port_staging import Staging, Upload
from curbstone.core.values import TTL_MS_MAX, Done, StagedStatus

if TYPE_CHECKING:
    from curbstone.access.authorization import AuthorizedBroker


class AccessStaging:
    """The staged transactions of one identity, which may publish only to queues that it may send to."""

    def __init__(self, access: AuthorizedBroker, staging: Staging) -> None:
        self._access = access
        self._staging = staging
        self._owner = access.identity.owner

    def _check(self, name: QueueName) -> None:
        self._access.check(Right.SEND, name)

    def upload(
        self, project: str, identifier: str, part: str, bytes_max: int, *, ttl_ms_max: int = TTL_MS_MAX
    ) -> Upload:
        """Receive a part. A queue to which the identity may not send is refused at its first frame.

        Because a part without messages names no queue, the identity needs the right to send to some queue of the
        project.
        """
        if not self._access.identity.in_project(project) & Right.SEND:
            raise self._access.refusal(Right.SEND, f"project {project}")
        return self._staging.upload(
            project, identifier, part, bytes_max, ttl_ms_max=ttl_ms_max, owner=self._owner, check=self._check
        )

    def commit(
        self,
        project: str,
        identifier: str,
        parts: Sequence[str] | None,
        on_done: Callable[[CurbstoneError | None, bool, int], None],
        *,
        content: str = "",
    ) -> None:
        self._staging.commit(project, identifier, parts, on_done, content=content, owner=self._owner, check=self._check)

    @property
    def bytes_max(self) -> int:
        return self._staging.bytes_max

    def drop(self, project: str, identifier: str, on_done: Done) -> None:
        self._staging.drop(project, identifier, on_done, owner=self._owner)

    def status(self, project: str, identifier: str) -> StagedStatus:
        return self._staging.status(project, identifier, owner=self._owner)
