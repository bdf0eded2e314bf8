"""docs/security.md lists what an attacker would try, and names the test that tries it. Those that fit nowhere else."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from curbstone import __version__
from tests.kit.contract import operations
from tests.kit.guarded_server import GuardedServer, RawConnection, guarded_server

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads(ROOT.joinpath("pyproject.toml").read_text(encoding="utf-8"))
CHECKS = 50
USERS = """
[users.ann]
grants = ["send,receive,peek,manage *", "metrics server"]
"""
ROW = re.compile(r"\| (\d+) \| .* \| (.*) \|")
HELD = re.compile(r"(tests/[a-z_/0-9]+\.py): (test_\w+(?:, test_\w+)*)")


def rows() -> dict[int, str]:
    page = ROOT.joinpath("docs/security.md").read_text(encoding="utf-8")
    return {int(number): held for number, held in ROW.findall(page)}


@pytest.mark.parametrize("number", range(1, CHECKS + 1))
def test_each_check_names_existing_tests(number: int) -> None:
    held = HELD.findall(rows()[number])
    assert held, "it names no test"
    for path, names in held:
        text = ROOT.joinpath(path).read_text(encoding="utf-8")
        for name in names.split(", "):
            assert f"def {name}(" in text, f"{path} has no {name}"


@pytest.fixture(scope="module")
def it(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GuardedServer]:
    with guarded_server(tmp_path_factory.mktemp("checks"), USERS.replace("*", "*/*")) as opened:
        yield opened


def test_similar_project_and_queue_names_are_different_queues(it: GuardedServer) -> None:
    for path, body in (("/v2/a_b/queues/c", b"one"), ("/v2/a/queues/b_c", b"two")):
        assert it.call("ann", "PUT", path).status_code == 201
        assert it.call("ann", "POST", f"{path}/messages", content=body).status_code == 201
    assert it.call("ann", "DELETE", "/v2/a_b/queues/c/messages").content == b"one"
    assert it.call("ann", "DELETE", "/v2/a/queues/b_c/messages").content == b"two"


@pytest.mark.parametrize(
    "text", ["x", "-1", "0", "1e3", "..%2e", "%00", "a" * 3000, "0123456789ab-99999999999999999999"]
)
def test_invalid_message_id_is_400_or_404(it: GuardedServer, text: str) -> None:
    it.call("ann", "PUT", "/v2/a/queues/ids")
    for method in ("GET", "DELETE"):
        assert it.call("ann", method, f"/v2/a/queues/ids/messages/{text}").status_code in (400, 404)


def test_responses_before_login_reveal_no_version_path_or_line(it: GuardedServer) -> None:
    refused = it.call("", "GET", "/v2/a/queues/b_c")
    assert refused.status_code == 401
    reported = [str(refused.headers) + refused.text, it.call("", "GET", "/healthz").text]
    for frame in ("CONNECT\nlogin:ann\npasscode:hunter2\n\n\0", "CONNECT\nhunter2\n\n\0", "hunter2\n\n\0"):
        with RawConnection(it.server.stomp) as line:
            line.send(frame)
            reported.append(line.read_all().decode())
    reported += it.mqks("", "1 consume hunter2", "2 auth ann hunter2")
    for text in reported:
        assert (
            text
            and __version__ not in text
            and "hunter2" not in text
            and "/tmp" not in text
            and "Traceback" not in text
        )


def test_get_head_and_options_change_nothing(it: GuardedServer) -> None:
    """All of the contract's but the two that take; those want a page that says where it is."""
    queue = "/v2/a/queues/looked"
    assert it.call("ann", "PUT", queue, json={"groups": ["g"]}).status_code == 201
    assert it.call("ann", "POST", f"{queue}/messages", content=b"m").status_code == 201

    def state() -> object:
        found = it.call("ann", "GET", queue).json()
        return {name: found[name] for name in ("rdy", "wip", "delayed", "options")}

    before = state()
    filled = {"project": "a", "queue": "looked", "group": "g", "event": "e", "id": "x"}
    for path, verb, operation in operations():
        if verb in ("GET", "OPTIONS") and operation["operationId"] != "fetchMqMessage":
            named = re.sub(r"\{(\w+)\}", lambda match: filled.get(match[1], "x"), path)
            for method in {verb, "HEAD" if verb == "GET" else verb, "OPTIONS"}:
                assert it.call("ann", method, named).status_code < 500, named
    assert state() == before


def test_line_break_in_a_stomp_header_injects_no_header_in_any_version(it: GuardedServer) -> None:
    token = it.secrets["ann"]
    for version in ("1.0", "1.1", "1.2"):
        with RawConnection(it.server.stomp) as line:
            line.send(f"CONNECT\naccept-version:1.2\nhost:x\nlogin:ann\npasscode:{token}\n\n\0")
            line.send("SEND\ndestination:/queue/a/breaks\nnote:one\\nreply-to:evil\n\nm\0DISCONNECT\nreceipt:r\n\n\0")
            assert b"receipt-id:r" in line.read_all()
        with RawConnection(it.server.stomp) as line:
            accept = "" if version == "1.0" else f"accept-version:{version}\nhost:x\n"
            line.send(f"CONNECT\n{accept}login:ann\npasscode:{token}\n\n\0")
            line.send("SUBSCRIBE\nid:1\ndestination:/queue/a/breaks\nack:auto\n\n\0")
            got = b""
            while b"MESSAGE" not in got:
                got = line.read_until(b"\0")
            assert b"note:one" in got and b"\nreply-to:" not in got, version


def test_mqks_eval_of_code_fails_without_executing_it(it: GuardedServer, tmp_path: Path) -> None:
    made = tmp_path / "made"
    for code in (f"__import__('os').mkdir('{made}')", f"open('{made}','w')", "().__class__", "exit()", "lambda:0"):
        assert it.mqks("ann", f"1 _eval {code}")[-1].startswith("1 error"), code
    assert not made.exists()


def test_popped_html_is_sandboxed_in_a_browser(it: GuardedServer) -> None:
    headers = {"content-type": "text/html"}
    assert it.call("ann", "PUT", "/v2/a/queues/pages").status_code == 201
    assert (
        it.call("ann", "POST", "/v2/a/queues/pages/messages", content=b"<script>", headers=headers).status_code == 201
    )
    reported = it.call("ann", "DELETE", "/v2/a/queues/pages/messages").headers
    assert reported["content-type"] == "text/html" and reported["x-content-type-options"] == "nosniff"
    assert reported["content-security-policy"] == "sandbox" and reported["cache-control"] == "no-store"


def test_every_dependency_has_an_exact_version() -> None:
    lines = ROOT.joinpath("constraints.txt").read_text(encoding="utf-8").splitlines()
    pinned = [line for line in lines if line and not line.startswith("#")]
    assert len(pinned) > 20
    for line in pinned:
        assert re.fullmatch(r"[A-Za-z0-9._-]+==[0-9][0-9A-Za-z.+]*( ;.*)?", line.split("#")[0].strip()), line


@pytest.mark.parametrize(
    ("lock", "needed"),
    [
        ("requirements.lock", PROJECT["project"]["dependencies"]),
        ("build.lock", [*PROJECT["build-system"]["requires"], "mypy"]),
    ],
)
def test_image_installs_only_hashed_files(lock: str, needed: list[str]) -> None:
    """The versions of constraints.txt, each with its hashes, for all that is needed; and no index is named."""
    text = ROOT.joinpath("deploy/docker", lock).read_text(encoding="utf-8")
    assert "://" not in text and "--index" not in text and "--find-links" not in text
    hashes = r"((?:    --hash=sha256:[0-9a-f]{64}(?: \\)?\n)+)"
    entries = re.findall(r"^([a-z0-9-]+)==(\S+)(?: ;[^\\\n]*)? \\\n" + hashes, text, re.M)
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    assert len(lines) == sum(1 + found.count("--hash") for _, _, found in entries), "each line is of one of these"
    constraints = ROOT.joinpath("constraints.txt").read_text(encoding="utf-8")
    pinned = dict(re.findall(r"^([A-Za-z0-9._-]+)==([^\s;]+)", constraints, re.M))
    known = {re.sub(r"[._-]+", "-", name).lower(): version for name, version in pinned.items()}
    assert {name: version for name, version, _ in entries} == {name: known[name] for name, _, _ in entries}
    names = {re.sub(r"[._-]+", "-", re.split(r"[^A-Za-z0-9._-]", each)[0]).lower() for each in needed}
    assert names <= {name for name, _, _ in entries}
    assert "--require-hashes" in ROOT.joinpath("deploy/docker/install.sh").read_text(encoding="utf-8")
