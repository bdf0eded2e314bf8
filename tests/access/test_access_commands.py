"""`curbstone access` and `curbstone user`: what they make the server takes, and what they say is what it does."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from curbstone.access import passwords, tokens
from curbstone.access.users import load
from curbstone.cli.main import _run
from tests.access.test_users import GOOD


def run(*arguments: str) -> int:
    return _run(list(arguments))


def test_init_creates_an_admin_and_prints_its_token_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    users, data = tmp_path / "users.toml", tmp_path / "data"
    arguments = ("access", "init", "--users", str(users), "--data", str(data), "--name", "ops@site")
    assert run(*arguments) == 0
    printed = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("cbs_"))
    assert users.stat().st_mode & 0o777 == 0o600
    assert load(users.read_bytes()).users["ops@site"].grants.is_admin
    [token] = tokens.read(data).values()
    assert token.id == printed.split("_")[1] and token.user == "ops@site"
    assert printed.split("_", 2)[2] not in (data / "access" / "tokens").read_text()
    before = users.read_bytes()
    assert run(*arguments) == 1
    assert users.read_bytes() == before and len(tokens.read(data)) == 1


def test_init_refuses_a_data_directory_in_use(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from curbstone.core.disk import OsDisk

    disk = OsDisk(tmp_path / "data")
    try:
        assert run("access", "init", "--users", str(tmp_path / "u"), "--data", str(tmp_path / "data")) == 1
    finally:
        disk.close()
    assert not (tmp_path / "u").exists()
    assert "in use" in capsys.readouterr().err


def test_access_check_prints_the_grants_or_the_violated_rule(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "users.toml"
    file.write_text(GOOD, encoding="utf-8")
    assert run("access", "check", str(file)) == 0
    printed = capsys.readouterr().out
    assert "orders-api  (home shop; from 10.0.0.0/8, ::1/128; password, URI:spiffe://example/orders)" in printed
    assert "receive,peek                     shop/orders*" in printed
    assert "issuer corp  (https://id.example; audience curbstone; home shop; roles by the claim roles, at" in printed
    assert "argon2" not in printed
    file.write_text(GOOD.replace("receive,peek", "recieve"), encoding="utf-8")
    assert run("access", "check", str(file)) == 6
    assert "role 'worker': bad grant" in capsys.readouterr().err
    assert run("access", "check", str(tmp_path / "none")) == 6


@pytest.mark.parametrize(
    ("question", "code", "said"),
    [
        (("orders-api", "peek", "shop/orders.1"), 0, "may peek shop/orders.1\n    by: receive,peek shop/orders*"),
        (("orders-api", "send", "shop/orders.1"), 1, "may not send shop/orders.1"),
        (("orders-api", "send", "topic:shop/order.new"), 0, "by: send topic:shop/order.*"),
        (("anonymous", "metrics", "server"), 0, "by: metrics server"),
        (("corp:ann", "peek", "shop/orders", "--role", "worker"), 0, "and its issuer's: receive,peek shop/*"),
        (("corp:ann", "peek", "shop/orders"), 1, "corp:ann may not peek"),
        (("corp:ann", "send", "topic:shop/order.new", "--role", "worker"), 1, "may not send"),
        (("nobody", "send", "shop/a"), 2, ""),
        (("orders-api", "send", "shop/*"), 2, ""),
    ],
)
def test_explain_names_the_grant_that_gives_a_right(
    question: tuple[str, str, str], code: int, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "users.toml"
    file.write_text(GOOD, encoding="utf-8")
    assert run("access", "explain", str(file), *question) == code
    assert said in capsys.readouterr().out


def test_hash_command_reads_the_password_from_stdin(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("open sesame\n"))
    assert run("user", "hash") == 0
    printed = capsys.readouterr().out.strip()
    assert passwords.hash_of("open sesame", [printed]) == printed
    monkeypatch.setattr("sys.stdin", io.StringIO("short\n"))
    assert run("user", "hash") == 2
    assert "8 to 128 bytes" in capsys.readouterr().err
