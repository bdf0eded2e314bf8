"""A process that has imported what Curbstone's commands need, and forks: each fork is one command, ready at once.

`tests.kit.processes` starts it as a script, with a socket for requests. It has one thread, and runs nothing of
Curbstone itself. A fork continues as `python -m curbstone` would, with an environment, a directory and files of its
own; at its end it does all that a Python process does, but does not take apart what was imported.
"""

from __future__ import annotations

import atexit
import gc
import json
import os
import runpy
import signal
import socket
import sys
import threading
from functools import cache
from typing import Any

import httpcore  # noqa: F401  # imported here, so that no fork has to
import httpx  # noqa: F401
import typer.main
import uvloop  # noqa: F401

import curbstone.cli.client
import curbstone.cli.main
import curbstone.cli.output
import curbstone.serve

REQUEST_BYTES_MAX = 1 << 17
"""What a message over a local socket may have; an environment is much smaller."""


def forked(requests: socket.socket) -> list[str]:
    """Answer requests until who sends them is gone; return in forks only, with the arguments to begin with.

    A fork that ended stays as a zombie until it is asked for, so that its id is not reused until then.
    """
    while True:
        request, files, _, _ = socket.recv_fds(requests, REQUEST_BYTES_MAX, 3)
        if not request:
            sys.exit()
        asked = json.loads(request)
        if "ended" in asked:
            pid, status = os.waitpid(asked["ended"], os.WNOHANG)
            answer = os.waitstatus_to_exitcode(status) if pid else None
        elif answer := os.fork():
            for file in files:
                os.close(file)
        else:
            requests.close()
            _become(asked["cwd"], asked["env"], files)
            return list(asked["args"])
        requests.send(json.dumps(answer).encode())


def _become(cwd: str, env: dict[str, str], files: list[int]) -> None:
    """Take what a process has from its start."""
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    os.chdir(cwd)
    sys.path.insert(0, cwd)
    os.environ.clear()
    os.environ.update(env)
    signal.signal(signal.SIGINT, signal.default_int_handler)


def _prepare(command: Any) -> None:
    """Let typer make what reads the values of each option: in each fork that would take longer than most commands."""
    for param in command.params:
        param.get_runtime_param()
    for each in getattr(command, "commands", {}).values():
        _prepare(each)


def _end(code: int) -> None:
    """End as Python does, but leave all modules as they are: to take them apart took half the time of a command.

    Return if the output can't be written: Python itself then says so.
    """
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    gc.collect()  # what complains when it is dropped
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except OSError:
        return
    os._exit(code)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for pytest, which ends and closes the socket
    typer.main.get_command = cache(typer.main.get_command)
    _prepare(typer.main.get_command(curbstone.cli.main.app))  # here, and not in each fork again
    gc.collect()
    gc.freeze()  # else each fork would go through all of this when it collects
    sys.argv[1:] = forked(socket.socket(fileno=int(sys.argv[1])))
    exec(os.environ.pop("CURBSTONE_TESTS_FIRST", ""))
    try:
        runpy.run_module("curbstone", run_name="__main__", alter_sys=True)
    except SystemExit as end:
        if isinstance(end.code, int):
            _end(end.code)
        raise
