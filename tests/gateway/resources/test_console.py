"""The console's files as they are served. What the page does is in tests/interop_http, in a browser."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.kit.gateway import Running

FILES = Path(__file__).resolve().parents[3] / "gateway" / "console"


@pytest.mark.anyio
async def test_console_page_and_its_files_are_served(gateway: Running) -> None:
    page = await gateway.http.get("/console")
    assert page.status_code == 200 and page.headers["content-type"] == "text/html; charset=utf-8"
    asked = re.findall(r'(?:href|src)="console/([^"]+)"', page.text)
    assert asked
    while asked:
        name = asked.pop()
        reply = await gateway.http.get(f"/console/{name}")
        assert reply.status_code == 200 and reply.text == (FILES / name).read_text(encoding="utf-8")
        assert reply.headers["content-type"].startswith("text/css" if name.endswith(".css") else "text/javascript")
        asked += re.findall(r"from '\./([^']+)'", reply.text)


@pytest.mark.anyio
async def test_icon_is_served(gateway: Running) -> None:
    """It was 404."""
    icon = await gateway.http.get("/favicon.ico")
    assert (icon.status_code, icon.headers["content-type"]) == (200, "image/svg+xml")
    for page in ("/console", "/docs"):
        reply = await gateway.http.get(page)
        assert 'href="favicon.ico"' in reply.text and "img-src 'self'" in reply.headers["content-security-policy"]


@pytest.mark.anyio
async def test_csp_allows_only_the_console_files(gateway: Running) -> None:
    """`script-src 'self'` allowed a message as well, fetched from /mq with a type that its publisher chose."""
    nonces = set()
    for _ in range(2):
        page = await gateway.http.get("/console")
        policy = page.headers["content-security-policy"]
        assert "default-src 'none'" in policy and "frame-ancestors 'none'" in policy and "unsafe" not in policy
        assert "require-trusted-types-for 'script'; trusted-types 'none'" in policy
        (nonce,) = set(re.findall(r"(?:script|style)-src 'nonce-([^']{20,})';", policy))
        assert page.text.count(f'nonce="{nonce}"') == 2 and "{nonce}" not in page.text
        nonces.add(nonce)
    assert len(nonces) == 2
    for name in ("main.js", "console.css"):
        headers = (await gateway.http.get(f"/console/{name}")).headers
        assert headers["x-content-type-options"] == "nosniff"
        assert "script-src 'nonce-" in headers["content-security-policy"]


@pytest.mark.parametrize("name", ["nothing.js", "index.html", "..%2fconsole.py", "console.py", "%2e%2e", "main.js%00"])
@pytest.mark.anyio
async def test_unknown_console_paths_are_404(gateway: Running, name: str) -> None:
    reply = await gateway.http.get(f"/console/{name}")
    assert reply.status_code in (400, 404) and reply.headers["content-type"] == "application/problem+json"


def test_scripts_create_no_markup_from_text_and_fetch_nothing_external() -> None:
    for file in FILES.iterdir():
        text = file.read_text(encoding="utf-8")
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|new Function", text), file
        assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", text), file


@pytest.mark.anyio
async def test_root_redirects_browsers_and_lists_links_for_programs(gateway: Running) -> None:
    browser = await gateway.http.get("/", headers={"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"})
    assert (browser.status_code, browser.headers["location"]) == (303, "/console")
    program = await gateway.http.get("/")
    assert program.status_code == 200
    for path in program.json().values():
        assert (await gateway.http.get(path)).status_code == 200
    assert {reply.headers["vary"] for reply in (browser, program)} == {"Accept, Origin"}


@pytest.mark.anyio
@pytest.mark.parametrize("page", ["/console", "/docs", "/docs/problems"])
async def test_trailing_slash_of_the_console_redirects(gateway: Running, page: str) -> None:
    """It was 404."""
    reply = await gateway.http.get(page + "/")
    assert (reply.status_code, reply.headers["location"]) == (308, page)
    assert (await gateway.http.get(page + "/", follow_redirects=True)).status_code == 200
    assert (await gateway.http.post(page + "/")).status_code == 404
    assert (await gateway.http.get(page + "//")).status_code == 404
