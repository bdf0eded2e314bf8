"""A small HTTP server through which a client program in JavaScript tells its test what it saw, and asks for a crash.

It also serves the page that a browser opens. `POST /tell {"what": …, "facts": …}` is answered when the test has
done what was told, so a program can wait for it.
"""

from __future__ import annotations

import json
import queue
import shutil
import subprocess
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
MODULES = HERE / "node_modules"
FILES = {
    "/page.html": (HERE / "page.html", "text/html; charset=utf-8"),
    "/scenario.mjs": (HERE / "scenario.mjs", "text/javascript"),
    "/stomp.umd.js": (MODULES / "@stomp" / "stompjs" / "bundles" / "stomp.umd.js", "text/javascript"),
}
RESULT_S_MAX = 300
MISSING = "run `make interop-deps`, and see what it says if this stays"


class Control:
    """See the module's text; a context manager. `kill` is what the program may ask for."""

    def __init__(self, kill: Callable[[], None]) -> None:
        self._kill = kill
        self._results: queue.SimpleQueue[tuple[str, dict[str, Any]]] = queue.SimpleQueue()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        self._thread.start()

    def __enter__(self) -> Control:
        return self

    def __exit__(self, *_error: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    @property
    def origin(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def reported(self, what: str, facts: dict[str, Any]) -> None:
        """The program said something; called on a thread of its request."""
        if what == "kill":
            self._kill()
        else:
            self._results.put((what, facts))

    def result(self, process: subprocess.Popen[str]) -> dict[str, Any]:
        """Wait until the program is done and return the facts it told; it is ended in any case."""

        def watch() -> None:
            process.wait()
            self.reported("ended", {})

        threading.Thread(target=watch, daemon=True).start()
        try:
            what, facts = self._results.get(timeout=RESULT_S_MAX)
        except queue.Empty:
            what, facts = "nothing for too long", {}
        finally:
            process.terminate()
            output, _ = process.communicate()
        assert what == "done", f"the client: {what} {facts}\n{output[-8000:]}"
        return facts


def _handler(control: Control) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            file, kind = FILES.get(self.path.partition("?")[0], (None, ""))
            if file is None:
                self.send_error(404)
            else:
                self._answer(file.read_bytes(), kind)

        def do_POST(self) -> None:
            said = json.loads(self.rfile.read(int(self.headers["content-length"])))
            control.reported(said["what"], said.get("facts") or {})
            self._answer(b"{}", "application/json")

        def _answer(self, body: bytes, kind: str) -> None:
            self.send_response(200)
            self.send_header("content-type", kind)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing."""

    return Handler


def node(script: str, *args: str) -> subprocess.Popen[str]:
    """Start a program of this folder in Node.js."""
    found = shutil.which("node")
    assert found, f"there is no node on the PATH; {MISSING}"
    assert MODULES.is_dir(), f"the npm packages are not installed; {MISSING}"
    return _start(found, str(HERE / script), *args)


def chromium(url: str, profile: Path, *more: str) -> subprocess.Popen[str]:
    """Open a page in a headless Chromium with a new profile; `more` are flags."""
    names = ("chromium", "chromium-browser", "google-chrome")
    found = next((path for path in map(shutil.which, names) if path), None)
    assert found, f"there is no Chromium on the PATH; {MISSING}"
    assert MODULES.is_dir(), f"the npm packages are not installed; {MISSING}"
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"]
    flags += ["--disable-background-networking", "--disable-component-update", "--disable-sync"]
    flags += ["--disable-dev-shm-usage", "--no-proxy-server", "--enable-logging=stderr"]
    return _start(found, *flags, *more, f"--user-data-dir={profile}", url)


def _start(*command: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd="/"
    )
