"""As much of the API of Kubernetes as a lease needs, over TLS: Leases, with a token and resourceVersion."""

from __future__ import annotations

import json
import ssl
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from tests.kit.authority import Authority
from tests.kit.processes import FIRST

TOKEN = "the token of the pod"
FOLDER = "/apis/coordination.k8s.io/v1/namespaces/shop/leases"
PROGRAM = """
import pathlib
from curbstone.standby import kubernetes_lease
kubernetes_lease.SERVICE_ACCOUNT = pathlib.Path({account!r})
"""


class KubernetesApi:
    """A server, with the files that a pod finds in `account`. A context manager."""

    def __init__(self, folder: Path) -> None:
        self.account = folder / "account"
        self.account.mkdir()
        authority = Authority(folder)
        authority.file.rename(self.account / "ca.crt")
        self.token = TOKEN
        self.renew_token(TOKEN)
        self.objects: dict[str, dict[str, Any]] = {}
        self.writes = 0
        self.requests: list[str] = []
        self._lock = threading.Lock()
        self._server = _Server(("127.0.0.1", 0), _handler(self))
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(*authority.signed("kubernetes"))
        self._server.socket = tls.wrap_socket(self._server.socket, server_side=True, do_handshake_on_connect=False)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02})

    def renew_token(self, token: str) -> None:
        self.token = token
        (self.account / "token").write_text(token + "\n", encoding="ascii")

    @property
    def variables(self) -> dict[str, str]:
        """What a pod has in its environment, and how a process of a test finds its files."""
        host, port = self._server.server_address[:2]
        program = PROGRAM.format(account=str(self.account))
        return {"KUBERNETES_SERVICE_HOST": str(host), "KUBERNETES_SERVICE_PORT": str(port), FIRST: program}

    def __enter__(self) -> KubernetesApi:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End it. May be called twice."""
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def answer(self, method: str, path: str, given: Any) -> tuple[int, Any]:
        """Answer a request as an API server does."""
        with self._lock:
            self.requests.append(method)
            name = path.removeprefix(FOLDER).lstrip("/")
            if not path.startswith(FOLDER):
                return 404, _status("the server could not find the requested resource")
            if method == "POST":
                name = given["metadata"]["name"]
                if name in self.objects:
                    return 409, _status(f'leases.coordination.k8s.io "{name}" already exists')
                if "resourceVersion" in given["metadata"]:
                    return 422, _status("resourceVersion should not be set on objects to be created")
                return 201, self.put(given)
            if name not in self.objects:
                return 404, _status(f'leases.coordination.k8s.io "{name}" not found')
            if method == "GET":
                return 200, self.objects[name]
            if given["metadata"].get("resourceVersion") != self.objects[name]["metadata"]["resourceVersion"]:
                return 409, _status("the object has been modified; please apply your changes to the latest version")
            return 200, self.put(given)

    def put(self, given: dict[str, Any]) -> dict[str, Any]:
        self.writes += 1
        stored = {**given, "metadata": {**given["metadata"], "resourceVersion": str(1000 + self.writes)}}
        self.objects[given["metadata"]["name"]] = stored
        return stored


class _Server(ThreadingHTTPServer):
    def handle_error(self, *_: object) -> None:
        """A client does not trust it, or has left."""


def _status(message: str) -> dict[str, str]:
    return {"kind": "Status", "message": message}


def _handler(api: KubernetesApi) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            size = int(self.headers.get("content-length", 0))
            given = json.loads(self.rfile.read(size)) if size else None
            if self.headers.get("authorization") != f"Bearer {api.token}":
                code, body = 401, _status("Unauthorized")
            else:
                code, body = api.answer(self.command, self.path, given)
            data = json.dumps(body).encode()
            self.send_response(code)
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_POST = do_PUT = do_GET

        def log_message(self, *_: object) -> None:
            """Log nothing."""

    return Handler
