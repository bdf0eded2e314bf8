"""The client reports what goes wrong: handlers that raise, servers that are not there, queues that are full."""

from __future__ import annotations

import asyncio
import inspect
import logging
import re
import signal
import socket
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

import curbstone_client as aio
from curbstone_client import CantConnect, NotAllowed, Reject, Retry, sync
from tests.client.shells import SHELLS, WAIT_S_MAX
from tests.kit.server import ServerProcess

CLIENTS: list[Callable[..., Any]] = [aio.Client, sync.Client]


@pytest.fixture
def closed_port() -> int:
    """A port that nothing listens on."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port: int = taken.getsockname()[1]
    return port


async def _publish(client: aio.Client) -> None:
    await client.queue("jobs").publish("x")


async def _flush(client: aio.Client) -> None:
    await client.queue("jobs").send("x")
    await client.flush()


async def _consume(client: aio.Client) -> None:
    await anext(client.queue("jobs").consume())


async def _subscribe(client: aio.Client) -> None:
    await client.event("sold").subscribe().established()


def _flush_all(client: sync.Client) -> None:
    client.queue("jobs").send("x")
    client.flush()


USES: dict[str, tuple[Callable[..., Any], Callable[[sync.Client], object]]] = {
    "publish": (_publish, lambda client: client.queue("jobs").publish("x")),
    "flush": (_flush, _flush_all),
    "consume": (_consume, lambda client: next(client.queue("jobs").consume())),
    "subscribe": (_subscribe, lambda client: client.event("sold").subscribe().established()),
}


def use(name: str, what: str, url: str, **settings: Any) -> None:
    """Make a client that is not entered by `with`, use it twice, and close it; raise what the second use raises."""
    if name == "threads":
        client = sync.Client(url, **settings)
        try:
            for _ in range(2):
                error = raised_by(lambda: USES[what][1](client))
        finally:
            client.close(0)
        raise error

    async def run() -> None:
        client = aio.Client(url, **settings)
        try:
            for _ in range(2):
                with pytest.raises(Exception) as raised:
                    await asyncio.wait_for(USES[what][0](client), WAIT_S_MAX)
        finally:
            await client.close(0)
        raise raised.value

    asyncio.run(run())


def raised_by(call: Callable[[], object]) -> BaseException:
    with pytest.raises(Exception) as raised:
        call()
    return raised.value


@pytest.mark.parametrize("what", USES)
@pytest.mark.parametrize("name", SHELLS)
def test_client_without_context_manager_gives_up_its_first_connection(
    closed_port: int, name: str, what: str, caplog: pytest.LogCaptureFixture
) -> None:
    """It waited for ever, and logged nothing."""
    with pytest.raises(CantConnect, match=r"not connected within 0\.3 s: .*127\.0\.0\.1"):
        use(name, what, f"http://127.0.0.1:{closed_port}", connect_timeout=0.3)
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    expected = rf"can't connect to http://127\.0\.0\.1:{closed_port}: .+; next attempt in \d+\.\d s"
    assert warnings
    assert all(re.fullmatch(expected, each) for each in warnings), warnings


@contextmanager
def refusing_server() -> Iterator[str]:
    """A server that answers each connection with 401, as a problem in JSON."""
    body = b'{"type": "about:blank", "title": "Unauthorized", "status": 401, "detail": "a login is needed"}'
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                with connection:
                    connection.recv(10_000)
                    connection.sendall(b"HTTP/1.1 401 Unauthorized\r\n\r\n" + body)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()


@pytest.mark.parametrize("what", USES)
@pytest.mark.parametrize("name", SHELLS)
def test_failed_login_is_raised_without_context_manager(name: str, what: str) -> None:
    with refusing_server() as url, pytest.raises(NotAllowed) as refused:
        use(name, what, url, connect_timeout=60)
    assert str(refused.value) == "the server answered 401 Unauthorized: a login is needed"


def broken(_message: Any) -> None:
    raise KeyError("a bug in the handler")


def rejecting(_message: Any) -> None:
    raise Reject("no such customer")


def retrying(_message: Any) -> None:
    raise Retry(3600)


@pytest.mark.parametrize("handler", [broken, rejecting, retrying])
@pytest.mark.parametrize("name", SHELLS)
def test_a_handler_that_raises_is_logged_with_its_traceback(
    process: ServerProcess, name: str, handler: Callable[[Any], None], caplog: pytest.LogCaptureFixture
) -> None:
    """Only `Reject` and `Retry` are no errors: they are how a handler ends a delivery."""
    queue = f"raises-{name}-{handler.__name__}"
    with SHELLS[name](process.url) as shell:
        shell.call("declare", queue, max_tries=5, dead_letter=f"{queue}-dead")
        raised = threading.Event()

        def handle(message: Any) -> None:
            try:
                handler(message)
            finally:
                raised.set()

        stop = shell.work(queue, handle)
        shell.publish(queue, "x")
        assert raised.wait(WAIT_S_MAX)
        stop()
    errors = [record for record in caplog.records if record.levelno >= logging.ERROR]
    if handler is not broken:
        assert not errors
        return
    [error] = errors
    assert error.name == "curbstone_client"
    assert error.exc_info is not None and error.exc_info[0] is KeyError
    assert "in broken" in "".join(traceback.format_exception(*error.exc_info))
    assert re.fullmatch(rf"{queue}: the handler failed for <message .+>", error.getMessage())


@pytest.mark.parametrize("name", SHELLS)
def test_a_publisher_that_waits_for_a_full_queue_warns_once(
    process: ServerProcess, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    queue = f"full-{name}"
    warned = threading.Event()

    def note(_record: logging.LogRecord) -> bool:
        warned.set()
        return True

    caplog.handler.addFilter(note)
    with SHELLS[name](process.url) as shell:
        shell.call("declare", queue, cap=131072)
        for _ in range(40):
            shell.send(queue, bytes(5000))
        assert warned.wait(WAIT_S_MAX)
        messages = shell.consume(queue, 5)
        for _ in range(40):
            shell.settle(shell.take(messages), "ack")
        shell.flush()
    [warning] = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert re.match(rf"publishing to /queue/shop/{queue} waits until the queue has space: .*131072", warning)


@pytest.mark.parametrize("name", SHELLS)
def test_a_lost_connection_is_logged_and_a_closed_one_is_not(
    server: ServerProcess, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    with SHELLS[name](server.url) as shell:
        shell.publish("jobs", "1")
        server.kill()
        sent = shell.send("jobs", "2")
        server.restart(same_ports=True)
        shell.result(sent)
    lost = [record.getMessage() for record in caplog.records if "lost the connection" in record.getMessage()]
    assert len(lost) == 1
    assert re.fullmatch(rf"lost the connection to {re.escape(server.url)}: .+; next attempt in \d\.\d s", lost[0])


STUCK = {
    "asyncio": """
import asyncio, sys
from curbstone_client import Client
client = Client(sys.argv[1], project="shop")
@client.worker("stuck-asyncio")
async def handle(message):
    print("handling", flush=True)
    await asyncio.Event().wait()
asyncio.run(client.run())
""",
    "threads": """
import sys, threading
from curbstone_client.sync import Client
client = Client(sys.argv[1], project="shop")
@client.worker("stuck-threads")
def handle(message):
    print("handling", flush=True)
    threading.Event().wait()
client.run()
""",
}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("name", SHELLS)
def test_stop_waiting_for_a_handler_is_logged_and_a_second_signal_ends_it(
    process: ServerProcess, name: str, number: signal.Signals
) -> None:
    """It waited in silence for ever, and no signal but SIGKILL ended it."""
    with SHELLS[name](process.url) as shell:
        shell.call("declare", f"stuck-{name}", max_tries=10)
        shell.publish(f"stuck-{name}", "x")
    command = [sys.executable, "-c", STUCK[name], process.url]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None and program.stderr is not None
        assert program.stdout.readline() == "handling\n"
        program.send_signal(number)
        assert program.stderr.readline().startswith("stopping: handlers are still running; another signal ends")
        program.send_signal(number)
        assert program.wait(WAIT_S_MAX) == -number


@pytest.mark.parametrize("client", CLIENTS)
def test_parameters_have_names_and_types(client: Any) -> None:
    assert {"url", "project", "token", "connect_timeout", "on_full", "ca_file"} < set(parameters(client))
    declared = {"cap", "max_tries", "dead_letter", "ttl", "unused", "schema", "idempotency_window"}
    assert declared < set(parameters(client.declare))
    queue = client("http://127.0.0.1:1").queue("orders")
    assert {"to", "limit", "id"} == set(parameters(queue.redrive))
    assert {"limit", "within", "id", "group"} == set(parameters(queue.undo))
    assert {"limit", "by", "group"} == set(parameters(queue.keys))
    assert {"group", "parallel", "prefetch"} < set(parameters(client.worker))


def parameters(callable: Any) -> list[str]:
    """The names of its parameters; each has a type, and none stands for any others."""
    found = [each for each in inspect.signature(callable).parameters.values() if each.name != "self"]
    assert all(each.annotation is not each.empty for each in found)
    assert not {each.kind for each in found} & {inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL}
    return [each.name for each in found]


@pytest.mark.parametrize("client", CLIENTS)
def test_repr_of_a_queue_has_its_name(client: Any) -> None:
    made = client(["http://127.0.0.1:1", "stomp://127.0.0.1:2"], project="shop")
    assert repr(made) == "<client of http://127.0.0.1:1, stomp://127.0.0.1:2>"
    assert repr(made.queue("orders")) == "<queue shop/orders>"
    assert repr(made.event("sold")) == "<event shop/sold>"
