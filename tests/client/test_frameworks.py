"""Celery, dramatiq and taskiq on Curbstone with real workers: each task is done, also where both sides are killed."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx
import pytest
from dramatiq import Message
from dramatiq.errors import QueueJoinTimeout
from kombu import Connection, Exchange, Queue
from taskiq import BrokerMessage

import curbstone_client.celery  # noqa: F401 - registers the scheme curbstone://
from curbstone_client import taskiq
from curbstone_client.dramatiq import CurbstoneBroker
from curbstone_client.sync import Client
from tests.kit.server import ServerProcess, clean_environment

WAIT_S_MAX = 120
LOOK_S = 0.02

COMMON = """
import os, sys, time
def note(text):
    with open("done", "a") as file:  # one write: whole lines, from several processes
        file.write(f"{text}\\n")
"""

APPS = {
    "celery": COMMON
    + """
import curbstone_client.celery
from celery import Celery
app = Celery("app", broker=os.environ["BROKER"].replace("http", "curbstone") + "/shop", backend="rpc://")
app.conf.update(task_acks_late=True, worker_hijack_root_logger=False, broker_connection_retry_on_startup=True,
                broker_connection_max_retries=None, worker_cancel_long_running_tasks_on_connection_loss=False)

@app.task
def work(n):
    note(n)
    return n

@app.task(bind=True, max_retries=3)
def flaky(self, n):
    note(f"{n} try {self.request.retries}")
    if self.request.retries < 1:
        raise self.retry(countdown=0.1)

def send(n):
    work.apply_async((n,), retry=True, retry_policy={"max_retries": None, "interval_max": 1})
def later(n, delay):
    work.apply_async((n,), countdown=delay)
def fails(n):
    flaky.delay(n)
""",
    "dramatiq": COMMON
    + """
import dramatiq
from dramatiq.errors import ConnectionClosed
from curbstone_client.dramatiq import CurbstoneBroker
dramatiq.set_broker(CurbstoneBroker(os.environ["BROKER"], project="shop"))

@dramatiq.actor
def work(n):
    note(n)

@dramatiq.actor(max_retries=3, min_backoff=100, max_backoff=200)
def flaky(n):
    retries = dramatiq.middleware.CurrentMessage.get_current_message().options.get("retries", 0)
    note(f"{n} try {retries}")
    if retries < 1:
        raise ValueError("not yet")

dramatiq.get_broker().add_middleware(dramatiq.middleware.CurrentMessage())

def send(n):
    work.send(n)
def later(n, delay):
    work.send_with_options(args=(n,), delay=delay * 1000)
def fails(n):
    flaky.send(n)
""",
    "taskiq": COMMON
    + """
import asyncio
from taskiq import SimpleRetryMiddleware
from curbstone_client.taskiq import CurbstoneBroker
broker = CurbstoneBroker(os.environ["BROKER"], project="shop").with_middlewares(SimpleRetryMiddleware(3))
runner = asyncio.Runner()

@broker.task
async def work(n):
    note(n)

@broker.task(retry_on_error=True)
async def flaky(n):
    tries = open("done").read().count(f"{n} try ") if os.path.exists("done") else 0
    note(f"{n} try {tries}")
    if tries < 1:
        raise ValueError("not yet")

def kick(sending):
    async def go():
        if not getattr(broker, "is_up", False):
            broker.is_up = True
            await broker.startup()
        await sending()
    runner.run(go())
def send(n):
    kick(lambda: work.kiq(n))
def later(n, delay):
    kick(lambda: work.kicker().with_labels(delay=delay).kiq(n))
def fails(n):
    kick(lambda: flaky.kiq(n))
""",
}

WORKERS = {
    "celery": ["celery", "-A", "app", "worker", "--concurrency=2", "--loglevel=INFO", "--without-mingle"],
    "dramatiq": ["dramatiq", "app", "--processes=1", "--threads=4"],
    "taskiq": ["taskiq", "worker", "app:broker", "--workers=1"],
}
QUEUES = {"celery": "celery", "dramatiq": "default", "taskiq": "taskiq"}


@pytest.fixture(params=sorted(APPS))
def framework(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def leave_time() -> None:
    """Let others have the processor before looking again."""
    threading.Event().wait(LOOK_S)


class App:
    """A folder with an application of one of the frameworks, and its workers."""

    def __init__(self, folder: Path, framework: str, server: ServerProcess) -> None:
        self.folder = folder
        self.queue = QUEUES[framework]
        self._framework = framework
        self._environment = clean_environment(BROKER=server.url)
        self._log = folder / "worker.log"
        (folder / "app.py").write_text(APPS[framework])

    @contextmanager
    def worker(self, *more: str) -> Iterator[subprocess.Popen[bytes]]:
        """Run a worker; it is asked to stop at the end, and must."""
        process = self.start(*more)
        try:
            yield process
            process.send_signal(signal.SIGTERM)
            process.wait(WAIT_S_MAX)
        finally:
            self.kill(process)
            print(self._log.read_text(encoding="utf-8"))

    def start(self, *more: str) -> subprocess.Popen[bytes]:
        with self._log.open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", *WORKERS[self._framework], *more],
                cwd=self.folder, env=self._environment, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip

    def kill(self, process: subprocess.Popen[bytes]) -> None:
        """Kill the worker with all its processes, which are a group of their own."""
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def run(self, code: str) -> subprocess.Popen[bytes]:
        """Run code that knows the application."""
        with self._log.open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-c", f"from app import *\n{code}"],
                cwd=self.folder, env=self._environment, stdout=log, stderr=log,
            )  # fmt: skip

    def done(self) -> Counter[str]:
        path = self.folder / "done"
        return Counter(path.read_text().splitlines() if path.exists() else [])

    def wait_for(self, expected: set[str]) -> Counter[str]:
        """Wait until these are done; fail once nothing more is for too long."""
        count, since = -1, 0.0
        while not expected <= (done := self.done()).keys():
            if done.total() != count:
                count, since = done.total(), time.monotonic()
            assert time.monotonic() - since < WAIT_S_MAX, f"missing: {sorted(expected - done.keys())[:10]}"
            leave_time()
        return done

    def wait_until_settled(self, server: ServerProcess, *, delayed: int = 0) -> None:
        """Wait until the queue has nothing but so many messages whose time has not come."""
        with Client(server.url, project="shop") as client:
            deadline, counts = time.monotonic() + WAIT_S_MAX, (-1, -1, -1)
            while counts != (0, 0, delayed):
                assert time.monotonic() < deadline, f"ready, in flight, delayed: {counts}"
                info = client.queue(self.queue).info()
                counts = (info["rdy"], info["wip"], info["delayed"])
                leave_time()


@pytest.fixture
def app(tmp_path: Path, framework: str, server: ServerProcess) -> App:
    folder = tmp_path / "app"
    folder.mkdir()
    return App(folder, framework, server)


def test_tasks_are_executed_delayed_and_retried(app: App, server: ServerProcess) -> None:
    with app.worker():
        program = "for n in range(20): send(n)\nlater('later', 1)\nlater('much-later', 3600)\nfails('flaky')"
        assert app.run(program).wait(WAIT_S_MAX) == 0
        numbers = {str(n) for n in range(20)}
        done = app.wait_for(numbers | {"later", "flaky try 0", "flaky try 1"})
        assert set(done.values()) == {1}
        # Celery 5.7 may forget the end of a task that runs while it is asked to stop, whatever the broker.
        app.wait_until_settled(server, delayed=1)


@pytest.mark.parametrize("framework", ["celery"])
@pytest.mark.parametrize("pool", ["gevent", "eventlet"])
def test_celery_works_with_green_threads(app: App, server: ServerProcess, pool: str) -> None:
    with app.worker(f"--pool={pool}"):
        assert app.run("for n in range(20): send(n)\nfails('flaky')").wait(WAIT_S_MAX) == 0
        done = app.wait_for({*map(str, range(20)), "flaky try 0", "flaky try 1"})
        assert set(done.values()) == {1}


def work_through_kills(app: App, server: ServerProcess, count: int, kills: int) -> Counter[str]:
    """Have tasks done while workers and the server are killed in turn; return how often each was."""
    worker = app.start()
    producer = app.run(
        f"for n in range({count}):\n"
        "    while True:\n"
        "        try:\n            send(n)\n            break\n"
        "        except Exception as error: print(repr(error)); time.sleep(0.1)"
    )
    try:
        for kill in range(kills):
            while len(app.done()) < (kill + 1) * count // (kills + 2):
                assert producer.poll() in (None, 0)
                leave_time()
            if kill % 2:
                server.kill()
                server.restart(same_ports=True)
            else:
                app.kill(worker)
                worker = app.start()
        assert producer.wait(WAIT_S_MAX) == 0
        return app.wait_for({str(n) for n in range(count)})
    finally:
        producer.kill()
        producer.wait()
        app.kill(worker)
        print((app.folder / "worker.log").read_text(encoding="utf-8")[-10_000:])


@pytest.mark.parametrize("framework", ["celery"])
def test_killing_worker_and_server_loses_no_task(app: App, server: ServerProcess) -> None:
    done = work_through_kills(app, server, 150, 2)
    assert set(done) == {str(n) for n in range(150)}


@pytest.mark.soak
def test_ten_thousand_tasks_survive_kills(app: App, server: ServerProcess) -> None:
    done = work_through_kills(app, server, 10_000, 10)
    assert set(done) == {str(n) for n in range(10_000)}
    print(f"{sum(done.values()) - 10_000} were run again")


def test_celery_answers_control_events_and_results(tmp_path: Path, server: ServerProcess) -> None:
    folder = tmp_path / "app"
    folder.mkdir()
    app = App(folder, "celery", server)
    program = """
from celery.exceptions import TaskRevokedError
def answer(call):
    for _ in range(60):
        if found := call(): return found
    raise AssertionError("no answer")
pong = answer(lambda: app.control.ping(timeout=1))
assert [*pong[0].values()] == [{"ok": "pong"}], pong
assert "app.work" in [*answer(app.control.inspect(timeout=1).registered).values()][0]
assert work.delay(7).get(timeout=60) == 7
answer(lambda: app.control.revoke("unwanted", reply=True, limit=1, timeout=1))
try:
    work.apply_async((8,), task_id="unwanted").get(timeout=60)
except TaskRevokedError:
    note("revoked")
work.apply_async((9,), countdown=3600)
assert app.control.purge() == 1
"""
    with app.worker():
        code = app.run(program).wait(3 * WAIT_S_MAX)
        assert code == 0, (folder / "worker.log").read_text()
    assert app.done() == Counter({"7": 1, "revoked": 1})


def test_celery_result_queues_are_deleted(tmp_path: Path, server: ServerProcess) -> None:
    """Each process that waited for a result left one for ever."""
    folder = tmp_path / "app"
    folder.mkdir()
    app = App(folder, "celery", server)
    with app.worker():
        assert app.run("assert work.delay(7).get(timeout=60) == 7; os._exit(0)").wait(WAIT_S_MAX) == 0
        [replies] = [name for name in queues_of(server) if name != "celery"]
        assert option_of(server, replies, "unused") == 60
        # A result for a process that is gone already creates its queue again.
        assert httpx.delete(f"{server.url}/v2/shop/queues/{replies}").status_code == 204
        assert app.run("work.delay(8); os._exit(0)").wait(WAIT_S_MAX) == 0
        deadline = time.monotonic() + WAIT_S_MAX
        while app.done() != Counter({"7": 1, "8": 1}) or len(queues_of(server)) < 2:
            assert time.monotonic() < deadline
            leave_time()
        for name in queues_of(server):
            assert option_of(server, name, "unused") == (None if name == "celery" else 60)


def test_celery_declares_queues_that_expire(server: ServerProcess) -> None:
    with Connection(server.url.replace("http", "curbstone") + "/shop") as connection:
        Queue("some", expires=600)(connection.default_channel).declare()
        assert option_of(server, "some", "unused") == 600
        connection.Producer().publish(1, routing_key="some", correlation_id="1")
        assert option_of(server, "some", "unused") == 600
    with Connection(server.url.replace("http", "curbstone") + "/shop") as connection:
        connection.Producer().publish(1, routing_key="some", correlation_id="1")
        connection.Producer().publish(1, routing_key="gone", correlation_id="1")
        connection.Producer().publish(1, routing_key="kept")
        assert [option_of(server, name, "unused") for name in ("some", "gone", "kept")] == [600, 60, None]


def test_celery_result_is_kept_until_it_is_read(server: ServerProcess) -> None:
    """As with AMQP, a queue that ends with its connection takes messages from its declaration on."""
    address = server.url.replace("http", "curbstone") + "/shop"
    found: list[object] = []
    with Connection(address) as connection, Connection(address) as other:
        for number in range(3):
            exchange = Exchange("replies", "direct", durable=False)
            replies = Queue("replies.to.me", exchange, "me", auto_delete=True, expires=600)
            replies(connection.default_channel).declare()
            other.Producer().publish({"number": number}, exchange=exchange, routing_key="me")
            with connection.Consumer([replies], callbacks=[lambda body, _: found.append(body)], no_ack=True):
                connection.drain_events(timeout=WAIT_S_MAX)
            assert found[-1] == {"number": number}
            # It ends with its last consumer, and leaves nothing behind.
            assert connection.transport.event_queues == {}
            assert connection.transport.state.exchanges["replies"]["table"] == []
    assert queues_of(server) == []


@pytest.mark.parametrize("is_auto_delete", [False, True])
def test_celery_gets_single_messages(server: ServerProcess, is_auto_delete: bool) -> None:
    with Connection(server.url.replace("http", "curbstone") + "/shop") as connection:
        exchange = Exchange("some", "direct", durable=False)
        queue = Queue("some", exchange, "some", auto_delete=is_auto_delete)(connection.default_channel)
        queue.declare()
        assert queue.get() is None
        connection.Producer().publish(1, exchange=exchange, routing_key="some")
        deadline = time.monotonic() + WAIT_S_MAX
        while (message := queue.get()) is None:
            assert time.monotonic() < deadline
        assert message.payload == 1
        message.ack()
        assert queue.get() is None
    assert queues_of(server) == ([] if is_auto_delete else ["some"])


def test_dramatiq_join_honours_its_timeout(server: ServerProcess) -> None:
    """`join` waited for ever, whatever its timeout was."""
    broker = CurbstoneBroker(server.url, project="shop")
    try:
        broker.declare_queue("default")
        broker.join("default")  # the queue is made with its first message
        broker.enqueue(Message[None](queue_name="default", actor_name="work", args=(), kwargs={}, options={}))
        with pytest.raises(QueueJoinTimeout):
            broker.join("default", timeout=1)
        consumer = broker.consume("default", timeout=WAIT_S_MAX * 1000)
        message = next(consumer)
        assert message is not None
        with pytest.raises(QueueJoinTimeout):  # a message that a worker has counts, too
            broker.join("default", timeout=1)
        consumer.ack(message)
        consumer.close()
        broker.join("default", timeout=WAIT_S_MAX * 1000)
    finally:
        broker.close()


def option_of(server: ServerProcess, queue: str, option: str) -> object:
    return httpx.get(f"{server.url}/v2/shop/queues/{queue}").json()["options"][option]


def queues_of(server: ServerProcess) -> list[str]:
    return [queue["name"] for queue in httpx.get(f"{server.url}/v2/shop/queues").json()["queues"]]


@pytest.mark.parametrize(("order", "expected"), [("rabbitmq", [9, 5, 1, 0]), ("redis", [0, 1, 5, 9])])
def test_celery_priorities_follow_its_convention(server: ServerProcess, order: str, expected: list[int]) -> None:
    address = server.url.replace("http", "curbstone") + "/shop"
    with Connection(address, transport_options={"priority": order}) as connection:
        for priority in (5, 0, 9, 1):
            connection.Producer().publish(priority, routing_key=order, priority=priority)
        queue = Queue(order)(connection.default_channel)
        found = [queue.get() for _ in expected]
        assert [message.payload for message in found] == expected
        for message in found:
            message.ack()


def test_celery_refuses_an_invalid_priority_order(server: ServerProcess) -> None:
    address = server.url.replace("http", "curbstone") + "/shop"
    with pytest.raises(ValueError, match="bad priority 'fifo' in broker_transport_options: rabbitmq or redis"):
        Connection(address, transport_options={"priority": "fifo"}).connect()


def test_dramatiq_and_taskiq_deliver_by_priority(server: ServerProcess) -> None:
    broker = CurbstoneBroker(server.url, project="shop")
    broker.declare_queue("ranked")
    for number, priority in enumerate((None, 9, 0)):
        options = {} if priority is None else {"broker_priority": priority}
        broker.enqueue(
            Message[None](queue_name="ranked", actor_name="work", args=(number,), kwargs={}, options=options)
        )
    consumer = broker.consume("ranked", prefetch=3)
    assert [next(consumer).args for _ in range(3)] == [(1,), (0,), (2,)]
    consumer.close()
    broker.close()
    asyncio.run(_kick_by_priority(server.url))
    with Client(server.url, project="shop") as client:
        messages = client.queue("tasks").consume()
        found = [messages.get(WAIT_S_MAX) for _ in range(3)]
        assert [message and message.body for message in found] == [b"high", b"none", b"low"]


async def _kick_by_priority(url: str) -> None:
    broker = taskiq.CurbstoneBroker(url, project="shop", queue="tasks")
    await broker.startup()
    for text, labels in (("none", {}), ("high", {"priority": 9}), ("low", {"priority": "1"})):
        await broker.kick(BrokerMessage(task_id=text, task_name="task", message=text.encode(), labels=labels))
    await broker.shutdown()
