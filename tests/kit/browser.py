"""A headless Chromium, driven over its own protocol (Chrome DevTools): open a page, evaluate in it, look at it."""

from __future__ import annotations

import atexit
import base64
import json
import os
import re
import select
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from websockets.sync.client import connect

from tests.interop import control

LISTENS = re.compile(r"DevTools listening on (ws://\S+)")
LIMIT_S = 180


class Page:
    """One tab."""

    def __init__(self, wire: Any, session: str) -> None:
        self._wire = wire
        self._session = session
        self._last_id = 0
        self.problems: list[str] = []
        """What the page logged as an error, refusals of the security policy among them."""

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Call a method of the protocol and return its result."""
        self._last_id += 1
        request = {"id": self._last_id, "method": method, "params": parameters}
        self._wire.send(json.dumps({**request, "sessionId": self._session} if self._session else request))
        while True:
            event = json.loads(self._wire.recv(timeout=LIMIT_S))
            if event.get("id") == self._last_id:
                assert "error" not in event, event
                result: dict[str, Any] = event["result"]
                return result
            if event.get("method") == "Log.entryAdded" and event["params"]["entry"]["level"] == "error":
                self.problems.append(event["params"]["entry"]["text"])
            elif event.get("method") == "Runtime.exceptionThrown":
                self.problems.append(json.dumps(event["params"]["exceptionDetails"]))

    def evaluate(self, script: str) -> Any:
        """Return the value of an expression, that of its promise if it is one."""
        found = self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def wait_for(self, script: str) -> Any:
        """Evaluate until the value is true, and return it."""
        deadline = time.monotonic() + LIMIT_S
        while not (value := self.evaluate(script)):
            assert time.monotonic() < deadline, f"never true: {script}\n{self.evaluate('document.body.innerText')}"
            time.sleep(0.05)
        return value

    def screenshot(self, file: Path) -> None:
        """Save what the page looks like, as PNG."""
        file.write_bytes(base64.b64decode(self.call("Page.captureScreenshot")["data"]))


@contextmanager
def open_page(url: str) -> Iterator[Page]:
    """Open a page in a new profile of the browser, which forgets all of it at the end."""
    with connect(_browser(), max_size=None, proxy=None) as wire:
        root = Page(wire, "")
        profile = root.call("Target.createBrowserContext")["browserContextId"]
        where = {"url": "about:blank", "browserContextId": profile, "width": 1200, "height": 850, "newWindow": True}
        target = root.call("Target.createTarget", **where)["targetId"]
        page = Page(wire, root.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"])
        for domain in ("Page", "Runtime", "Log"):
            page.call(f"{domain}.enable")
        page.call("Page.navigate", url=url)
        page.wait_for("location.href !== 'about:blank' && document.readyState === 'complete'")
        try:
            yield page
        finally:
            root.call("Target.disposeBrowserContext", browserContextId=profile)


@cache
def _browser() -> str:
    """Start the browser of this process, which lives as long as the process does; return its address."""
    folder = TemporaryDirectory(ignore_cleanup_errors=True)
    browser = control.chromium("about:blank", Path(folder.name), "--remote-debugging-port=0")

    def end() -> None:
        browser.kill()
        browser.wait()
        folder.cleanup()

    atexit.register(end)
    address = _address(browser)
    threading.Thread(target=deque, args=(browser.stdout, 0), daemon=True).start()  # else it waits once the pipe is full
    return address


def _address(browser: Any) -> str:
    deadline, text = time.monotonic() + LIMIT_S, ""
    while time.monotonic() < deadline:
        if select.select([browser.stdout], [], [], 1)[0]:
            piece = os.read(browser.stdout.fileno(), 65536).decode(errors="replace")
            assert piece, f"the browser ended:\n{text}"
            text += piece
            if found := LISTENS.search(text):
                return found[1]
    raise AssertionError(f"the browser does not say where it listens:\n{text}")
