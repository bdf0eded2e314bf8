"""Where commands find the server: options before and after the command, variables, and contexts."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from curbstone.cli.examples import EXAMPLES
from tests.kit.commands import Done, curbstone
from tests.kit.guarded_server import GuardedServer, guarded_server
from tests.kit.server import ServerProcess

NOWHERE = "http://127.0.0.1:1"


class Shell:
    """A user's shell, with a home directory of its own."""

    def __init__(self, home: Path) -> None:
        self.home = home

    def __call__(self, *args: str, **env: str) -> Done:
        return curbstone(*args, cwd=self.home, stdin=b"", **env, XDG_CONFIG_HOME=str(self.home / "config"))


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GuardedServer]:
    with guarded_server(tmp_path_factory.mktemp("guarded"), '[users.root]\ngrants = ["admin server"]\n') as it:
        yield it


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    return Shell(tmp_path)


@pytest.fixture
def url(server: ServerProcess) -> str:
    httpx.put(f"{server.url}/v2/default/queues/a", trust_env=False)
    return server.url


def test_server_option_works_before_and_after_the_command(shell: Shell, url: str) -> None:
    assert shell("--server", url, "queue", "show", "a").code == 0
    assert shell("queue", "show", "a", "--server", url).code == 0
    assert shell("--server", NOWHERE, "queues", "--server", url).code == 0, "the one after the command has precedence"
    assert shell("--server", url, "queues", CURBSTONE_SERVER=NOWHERE).code == 0
    assert shell("queues", "--server", NOWHERE, CURBSTONE_SERVER=url).code == 3


def test_token_file_option_works_before_and_after_the_command(shell: Shell, url: str) -> None:
    for words in (("--token-file", "missing", "queues"), ("queues", "--token-file", "missing")):
        done = shell(*words, CURBSTONE_SERVER=url)
        assert done.code == 2
        assert "can't read the token in missing" in done.err


@pytest.mark.parametrize(
    "words", ["queues", "queue create a", "queue set a --ttl 1", "recv a", "recv a --follow", "send a x"]
)
def test_a_missing_login_is_reported_with_the_option_to_use(shell: Shell, guarded: GuardedServer, words: str) -> None:
    """Some commands said only that the server answered 401."""
    done = shell(*words.split(), CURBSTONE_SERVER=guarded.server.url)
    assert (done.code, done.err) == (1, "curbstone: a login is needed; give a token with --token-file FILE\n")


def test_invalid_command_line_points_to_the_help(shell: Shell) -> None:
    done = shell("queue", "set", "a")
    assert (done.code, done.err) == (2, "curbstone: Invalid value: no option to set (see curbstone queue set --help)\n")
    assert "(see curbstone peek --help)" in shell("peek", "--nosuch").err
    assert "No such command 'delete'. Did you mean 'curbstone queue delete'?" in shell("delete", "a").err
    assert "'curbstone queue create' or 'curbstone token create'" in shell("create", "a").err
    assert "No such command 'nosuch'." in shell("nosuch").err


def test_a_context_is_a_server_and_a_login(shell: Shell, url: str) -> None:
    assert shell("context", "add", "here", "--server", url).out == f"context here: {url} (current)\n"
    assert shell("context", "add", "away", "--server", NOWHERE).out == f"context away: {NOWHERE}\n"
    assert shell("queues").code == 0, "the current context is used"
    assert shell("--context", "away", "queues").code == 3
    assert shell("queues", "--context", "away").code == 3
    assert shell("queues", CURBSTONE_CONTEXT="away").code == 3
    assert shell("context", "use", "away").code == 0
    assert shell("queues").code == 3
    assert shell("queues", CURBSTONE_SERVER=url).code == 0, "a variable has precedence over the current context"
    assert shell("queues", "--context", "here", CURBSTONE_SERVER=NOWHERE).code == 0, "a named one replaces variables"
    assert [each["name"] for each in shell("context", "list", "--json").json[0]] == ["away", "here"]
    assert shell("context", "remove", "away").code == 0
    assert "no context 'away'; known contexts: here" in shell("queues", "--context", "away").err


def test_context_token_is_sent_only_to_its_server(shell: Shell, url: str) -> None:
    (shell.home / "token").write_text("token of another server")
    assert shell("context", "add", "other", "--server", NOWHERE, "--token-file", "token").code == 0
    (shell.home / "token").unlink()
    assert shell("queues").code == 2, "the token is needed"
    assert shell("queues", "--server", url).code == 0
    assert shell("queues", CURBSTONE_SERVER=url).code == 0


def test_invalid_context_is_reported(shell: Shell) -> None:
    done = shell("context", "add", "here", "--server", NOWHERE, "--token-file", "missing")
    assert (done.code, done.err) == (2, "curbstone: no such file: missing\n")
    (shell.home / "config/curbstone").mkdir(parents=True)
    (shell.home / "config/curbstone/contexts.json").write_text("[]")
    assert "this is not a file of contexts" in shell("queues").err


@pytest.mark.parametrize("words", sorted(EXAMPLES))
def test_command_help_has_examples_and_no_type_names(shell: Shell, words: str) -> None:
    done = shell(*words.split(), "--help")
    assert done.code == 0
    assert all(f"  {line}\n" in done.out for line in EXAMPLES[words])
    assert not re.search(r"<(str|int|float|list|path)", done.out.partition("Examples:")[0])
    assert "{" not in done.out.partition("\n")[0]
    assert not re.search(r"--(count|interval|limit|parallel|rate|timeout|wait|window) (?!N|SECONDS)[A-Z]", done.out)


def test_help_lists_all_commands_with_full_summaries(shell: Shell) -> None:
    out = shell("--help").out
    assert "..." not in out.partition("Server:")[2]
    commands = {words.split()[0] for words in EXAMPLES}
    assert all(f"\n  {command} " in out for command in commands)
