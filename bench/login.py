"""A server with users, for `--users`, to measure the cost of logins and rights.

The load generators log in with a token from the environment, which their processes inherit. Without a token they do not
log in.
"""

import os
import time
from pathlib import Path

TOKEN_VARIABLE = "CURBSTONE_BENCH_TOKEN"

_USERS = """\
[users.bench]
grants = ["send,receive,peek,manage */*", "send,receive topic:*/*", "metrics server"]

[quotas.default]
bytes = "16TiB"
queues = 100000
"""


def token() -> str:
    return os.environ.get(TOKEN_VARIABLE, "")


def header() -> str:
    """Return the header line that logs in; empty without users."""
    return f"Authorization: Bearer {token()}\r\n" if token() else ""


def make_users(folder: Path, data: Path) -> list[str]:
    """Write a users file, and a token for all generators into the data directory. Return the server's options."""
    from curbstone.access import tokens
    from curbstone.core.disk import OsDisk

    file = folder / "users.toml"
    file.write_text(_USERS, encoding="utf-8")
    data.mkdir(mode=0o700)
    now_ms = int(time.time() * 1000)
    secret, kept = tokens.new_token("bench", now_ms, grants=None, expires_ms=0, label="bench")
    disk = OsDisk(data)
    tokens.write(disk, [kept])
    disk.close()
    os.environ[TOKEN_VARIABLE] = str(secret)
    return ["--users", str(file)]
