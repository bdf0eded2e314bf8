"""The exit codes of commands, and the error that carries one.

  0  done
  1  the server refused, or can't do it now
  2  the command line or a setting is wrong
  3  the server can't be reached
  4  there is no such queue
  5  there was no message to receive or to show
  6  `check` or `repair` found damage, a backup is damaged, `drill` failed, a users file breaks a rule
  7  another server has replaced this one, or was asked to
130  interrupted
143  ended by SIGTERM
"""

from __future__ import annotations

FAILED, WRONG, UNREACHABLE, NO_QUEUE, NOTHING, DAMAGED, REPLACED = range(1, 8)
INTERRUPTED, TERMINATED = 130, 143


class CommandFailed(Exception):
    """A command can't continue. The text is one line for stderr."""

    def __init__(self, reason: str, code: int = FAILED) -> None:
        super().__init__(reason)
        self.code = code
