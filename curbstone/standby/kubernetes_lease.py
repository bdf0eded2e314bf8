"""A lease as a Kubernetes Lease: the record is an annotation, and the version is the object's resourceVersion.

The holder and the TTL are in the fields that `kubectl get lease` shows.
"""

from __future__ import annotations

import json
import os
import ssl
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from curbstone.http_client import ERRORS, Connection, Reply
from curbstone.standby.lease import BadLease, Found, Lease

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
RECORD = "curbstone/lease"
REPLY_BYTES_MAX = 1024 * 1024


class KubernetesLease:
    """Implements `lease.LeaseStore`, with the service account of the pod that this process runs in."""

    def __init__(self, namespace: str, name: str, timeout_s: float) -> None:
        """Raise OSError if this process does not run in a pod with a service account."""
        host = os.environ.get("KUBERNETES_SERVICE_HOST")
        if not host:
            raise OSError("not in a Kubernetes pod: KUBERNETES_SERVICE_HOST is not set")
        host = f"[{host}]" if ":" in host else host
        self._url = f"https://{host}:{os.environ.get('KUBERNETES_SERVICE_PORT', '443')}"
        tls = ssl.create_default_context(cafile=SERVICE_ACCOUNT / "ca.crt")
        self._connection = Connection(self._url, timeout_s=timeout_s, tls=tls)
        self._token = SERVICE_ACCOUNT / "token"
        self._folder = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"
        self._name = name
        self._new = {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": name, "namespace": namespace},
        }
        self._object: dict[str, Any] = self._new
        """The object at the last read. Fields that others have set are kept."""

    def check(self) -> None:
        """See `LeaseStore`: the API always compares resourceVersion."""

    def read(self) -> Found | None:
        """See `LeaseStore`."""
        reply = self._ask("GET", f"{self._folder}/{self._name}")
        return None if reply.status == 404 else self._found(reply)

    def write(self, lease: Lease, version: str | None) -> str:
        """See `LeaseStore`. An object without a record, for example one made by an administrator, counts as none."""
        method, path = "PUT", f"{self._folder}/{self._name}"
        if version is None:
            reply = self._ask("GET", path)
            if reply.status == 404:
                method, path, self._object = "POST", self._folder, self._new
            elif self._found(reply) is not None:
                raise OSError("the lease exists already")
            else:
                version = self._object["metadata"]["resourceVersion"]
        metadata = self._object["metadata"]
        annotations = {**metadata.get("annotations", {}), RECORD: lease.encode().decode()}
        changed = {
            **self._object,
            "metadata": {**metadata, "annotations": annotations, **({"resourceVersion": version} if version else {})},
            "spec": {
                **self._object.get("spec", {}),
                "holderIdentity": lease.name,
                "leaseDurationSeconds": -(-lease.ttl_ms // 1000),
                "leaseTransitions": lease.term - 1,
                "renewTime": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
            },
        }
        found = self._found(self._ask(method, path, json.dumps(changed).encode()))
        if found is None or found.lease != lease:
            raise OSError("the API server has not stored the lease as written")
        return found.version

    def close(self) -> None:
        """See `LeaseStore`."""
        self._connection.close()

    def _found(self, reply: Reply) -> Found | None:
        """Return the record in a reply, or None if it has none."""
        try:
            found = reply.json()
            metadata = found["metadata"]
            version = str(metadata["resourceVersion"])
            record = metadata.get("annotations", {}).get(RECORD)
        except (ValueError, KeyError, TypeError, AttributeError):
            raise BadLease(f"the reply of the API server at {self._url} is not a Lease") from None
        self._object = found
        return Found(Lease.decode(str(record).encode()), version) if record else None

    def _ask(self, method: str, path: str, body: bytes | None = None) -> Reply:
        # Kubernetes rotates the token, so it is read each time.
        headers = {"authorization": f"Bearer {self._token.read_text(encoding='ascii').strip()}"}
        if body is not None:
            headers["content-type"] = "application/json"
        try:
            reply = self._connection.request(method, path, body=body, headers=headers, bytes_max=REPLY_BYTES_MAX)
        except ERRORS as error:
            raise OSError(f"{self._url} can't be reached: {error or type(error).__name__}") from error
        if reply.status < 300 or (reply.status, method) == (404, "GET"):
            return reply
        raise OSError(f"{self._url}{path} answered {reply.status}: {_message(reply)}")


def _message(reply: Reply) -> str:
    try:
        return str(reply.json()["message"])
    except (ValueError, KeyError, TypeError):
        return reply.reason
