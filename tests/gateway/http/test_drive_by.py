"""GETs that take messages: no page of another origin can cause one, and programs continue."""

from __future__ import annotations

import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest

from tests.faults.witness import call
from tests.kit.server import ServerProcess

BROWSER = {"User-Agent": "Mozilla/5.0 (X11; Linux x86_64)"}
QUEUE = "/v2/default/queues/q"
TAKING = {
    "mq": ("/mq/q/messages", {}),
    "events": (QUEUE + "/messages", {"Accept": "text/event-stream"}),
}
PAGES = [
    (BROWSER, False),  # <img> over plain HTTP from another machine says nothing else
    ({**BROWSER, "Sec-Fetch-Site": "cross-site"}, False),
    ({**BROWSER, "Sec-Fetch-Site": "same-site"}, False),
    ({**BROWSER, "Origin": "https://evil.example"}, False),
    ({**BROWSER, "Origin": "null"}, False),
    ({**BROWSER, "Sec-Fetch-Site": "same-origin"}, True),
    ({**BROWSER, "Sec-Fetch-Site": "none"}, True),
    ({**BROWSER, "X-Requested-With": "fetch"}, True),
    ({**BROWSER, "Origin": "https://app.example"}, True),
    ({"User-Agent": "curl/8.5.0"}, True),
    ({"User-Agent": "Python-urllib/3.11"}, True),
]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    data = tmp_path_factory.mktemp("pages") / "data"
    with ServerProcess(data, "--cors-origin=https://app.example", "--log-level=error") as server:
        yield server


@pytest.mark.parametrize("way", TAKING)
@pytest.mark.parametrize(("page", "may"), PAGES)
def test_get_that_takes_a_message_requires_fetch_metadata(
    served: ServerProcess, way: str, page: dict[str, str], may: bool
) -> None:
    path, headers = TAKING[way]
    call(served, QUEUE, "DELETE")
    call(served, QUEUE, "PUT")
    call(served, QUEUE + "/messages", "POST", b"a")
    request = urllib.request.Request(served.url + path, headers={**headers, **page})
    try:
        with urllib.request.urlopen(request, timeout=60) as reply:
            assert reply.read(1)
            status = reply.status
            _, info = call(served, QUEUE)
    except urllib.error.HTTPError as error:
        error.close()
        status = error.code
        _, info = call(served, QUEUE)
    assert status == (200 if may else 403)
    assert (info["rdy"], info["wip"]) == ((0, 1) if may else (1, 0))
