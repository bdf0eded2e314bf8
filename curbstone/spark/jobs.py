"""The common parts of the jobs: their command lines, exit codes and messages.

Exit codes: 0 done, also after SIGTERM or Ctrl-C if the job may be stopped; 1 failed; 2 wrong command line; 130
interrupted.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType

from curbstone.spark.failure import PipelineError, last_line
from curbstone.spark.options import DEFAULT_URL, TOKEN_VARIABLE, URL_VARIABLE
from curbstone.spark.session import PACKAGES, check_packages

DONE, FAILED, WRONG, INTERRUPTED = 0, 1, 2, 130


class UsageError(PipelineError):
    """The command line is wrong."""


def parser(name: str, text: str, *, server: bool = True) -> argparse.ArgumentParser:
    """Return a parser with the arguments of every job and, with `server`, those of jobs that use a server and Spark."""
    made = argparse.ArgumentParser(
        prog=f"curbstone pipeline {name}",
        description=text,
        epilog="Exit codes: 0 done; 1 failed; 2 the command line is wrong; 130 interrupted; 143 ended by SIGTERM.",
        allow_abbrev=False,
    )
    if not server:
        made.set_defaults(verbose=False)
        return made
    made.add_argument(
        "--server",
        metavar="URL",
        default=os.environ.get(URL_VARIABLE) or DEFAULT_URL,
        help=f"HTTP address of the server (${URL_VARIABLE})",
    )
    made.add_argument(
        "--token-file", metavar="FILE", help=f"file with a token, for a server that has users (${TOKEN_VARIABLE})"
    )
    made.add_argument(
        "--ca-file",
        metavar="FILE",
        help="certificates of the authority that signed the server's, if this machine does not trust it",
    )
    made.add_argument("--verbose", action="store_true", help="show Spark's own log on stderr")
    return made


def source_options(known: argparse.Namespace) -> dict[str, str]:
    """Return the options of the data source from the common arguments."""
    found = {"url": known.server}
    if known.token_file:
        found["tokenFile"] = known.token_file
    if known.ca_file:
        found["caFile"] = known.ca_file
    return found


LAKE_PACKAGES = ("deltalake", "pyarrow")
"""The packages for jobs on a lake."""
SQL_PACKAGES = (*LAKE_PACKAGES, "duckdb")
"""The packages for jobs with queries on a lake."""


def run(job: Callable[[argparse.Namespace], str], known: argparse.Namespace, *, needs: Sequence[str] = PACKAGES) -> int:
    """Run a job and print the line it returns, or its error as one line on stderr. Return the exit code."""
    try:
        check_packages(needs)
        print(job(known))
    except UsageError as error:
        return _fail(error, WRONG)
    except KeyboardInterrupt:
        return _fail(PipelineError("interrupted"), INTERRUPTED)
    except PipelineError as error:
        return _fail(error, FAILED)
    except Exception as error:
        # Spark and Java raise errors of any type with long stack traces. Only the first line counts, or our line in it.
        if known.verbose:
            raise
        return _fail(error, FAILED)
    return DONE


def _fail(error: BaseException, code: int) -> int:
    clear_status()
    print(f"curbstone: {last_line(error)}", file=sys.stderr)
    return code


@contextmanager
def stopping() -> Iterator[threading.Event]:
    """Yield an event that SIGTERM and SIGINT set instead of ending the process."""
    event = threading.Event()

    def stop(_number: int, _frame: FrameType | None) -> None:
        event.set()

    before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield event
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def quantity(count: int, what: str) -> str:
    """Return a number with its noun, such as 1 batch or 2,000 messages. The plural of the noun must end in s or es."""
    ending = "" if count == 1 else "es" if what.endswith("ch") else "s"
    return f"{count:,} {what}{ending}"


def show_status(text: str) -> None:
    """On a terminal, show the progress in one line that is overwritten."""
    if sys.stderr.isatty():
        print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)


def clear_status() -> None:
    """Remove the line of `show_status`."""
    if sys.stderr.isatty():
        print("\r\x1b[K", end="", file=sys.stderr, flush=True)


def warn(text: str) -> None:
    """Print a warning, even if stderr is not a terminal."""
    clear_status()
    print(f"curbstone: {text}", file=sys.stderr, flush=True)
