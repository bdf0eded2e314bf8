"""The console of a server with users, in headless Chromium: the login, and what an admin sees."""

from __future__ import annotations

import json
from pathlib import Path

from tests.kit.browser import open_page
from tests.kit.guarded_server import guarded_server

USERS = """
[users.root]
grants = ["admin server"]

[users.clerk]
grants = ["peek shop/orders"]
"""


def test_login_shows_the_user_and_logout_works(tmp_path: Path) -> None:
    with guarded_server(tmp_path, USERS) as it:
        assert it.call("root", "PUT", "/v2/shop/queues/orders").status_code == 201
        with open_page(f"{it.server.url}/console") as page:
            page.wait_for("document.querySelector('#login') !== null")
            assert page.evaluate("document.querySelectorAll('tbody tr').length") == 0
            page.wait_for(
                "document.getElementById('health').textContent.startsWith('ready')"
            )  # it said "connecting" for ever
            secret = json.dumps(it.secrets["root"])
            page.evaluate(f"document.querySelector('#login input[type=password]').value = {secret}")
            page.evaluate("document.querySelector('#login button').click()")
            page.wait_for("document.querySelectorAll('tbody tr').length === 1")
            assert page.wait_for("document.querySelector('#who a').textContent") == "root"
            for what in ("document.createElement('script').src = '/mq/x'", "document.body.innerHTML = '<p>'"):
                tried = f"(() => {{ try {{ {what} }} catch (error) {{ return error.name }} }})()"
                assert page.evaluate(tried) == "TypeError"
            assert page.evaluate("document.cookie") == ""  # no script reads it
            page.evaluate("document.querySelector('#who a').click()")
            page.wait_for("document.querySelector('#logins table') !== null")
            assert "open session" in page.evaluate("document.getElementById('logins').innerText")
            page.evaluate("document.querySelector('#who button').click()")
            page.wait_for("document.querySelector('#login') !== null")


def test_user_with_one_queue_sees_only_it(tmp_path: Path) -> None:
    with guarded_server(tmp_path, USERS) as it:
        for queue in ("orders", "other"):
            assert it.call("root", "PUT", f"/v2/shop/queues/{queue}").status_code == 201
        with open_page(f"{it.server.url}/console") as page:
            page.wait_for("document.querySelector('#login') !== null")
            secret = json.dumps(it.secrets["clerk"])
            page.evaluate(f"document.querySelector('#login input[type=password]').value = {secret}")
            page.evaluate("document.querySelector('#login button').click()")
            page.wait_for("document.querySelectorAll('tbody tr').length === 1")
            assert page.evaluate("document.querySelector('tbody th').textContent") == "shop/orders"
            assert page.evaluate("document.getElementById('totals').hidden") is True
