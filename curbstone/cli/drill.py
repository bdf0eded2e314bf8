"""`curbstone drill`: tests whether confirmed messages survive crashes on this disk.

A server is killed repeatedly under load, and afterwards every confirmed message must exist. The disk's syncs are timed.
All files are in a new directory inside the given one.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from contextlib import closing
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Annotated, Any

import typer

from curbstone.cli.options import Json
from curbstone.cli.output import console, counted, print_json, progress
from curbstone.exit_codes import DAMAGED, FAILED, WRONG, CommandFailed
from curbstone.http_client import Connection

if TYPE_CHECKING:
    from curbstone.drill.disk import DiskCheck
    from curbstone.drill.load import Account

SYNC_PART = 0.1
"""The share of the time that is used to time syncs."""
SYNC_S_MAX = 10
KILL_S = (0.3, 3.0)
SHOWN_MAX = 10
TIMEOUT_S = 30


def drill(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="A directory on the disk to be tested")],
    seconds: Annotated[int, typer.Option("--seconds", min=3, max=86_400, help="How long the test runs")] = 60,
    as_json: Json = False,
) -> int:
    """Kill a server under load repeatedly, and check that nothing confirmed is lost.

    The server works on your own disk, in a new subdirectory of DIR, and a picture of the test is left there. The exit
    code is 6 if a confirmed message was lost, or if the disk reports syncs that it does not make. This test has no
    power cut: only pulling the plug shows what a disk really keeps.
    """
    if not directory.is_dir():
        raise CommandFailed(f"no such directory: {directory}", WRONG)
    try:
        place = Path(tempfile.mkdtemp(prefix="curbstone-drill-", dir=directory))
        disk, account = _run(place, seconds, show=not as_json)
        verdict, is_good = judge(disk, account)
        picture = place / "drill.svg"
        facts = _facts(disk, account)
        picture.write_text(_picture(disk, account, verdict), encoding="utf-8")
        if not account.wrong:
            shutil.rmtree(place / "data")
    except OSError as error:
        raise CommandFailed(f"can't use {error.filename or directory}: {error.strerror}", FAILED) from None
    if as_json:
        print_json({"ok": is_good, "verdict": verdict, **facts, "picture": str(picture)})
        return 0 if is_good else DAMAGED
    out = console()
    out.print(verdict)
    for line in _lines(disk, account):
        out.print(f"  {line}")
    for text in account.wrong[:SHOWN_MAX]:
        out.print(f"  {text}")
    if account.wrong:
        out.print(f"  the data and the log of the server are kept in {place}")
    out.print(f"picture: {picture}")
    return 0 if is_good else DAMAGED


def _run(place: Path, seconds: int, *, show: bool) -> tuple[DiskCheck, Account]:
    from curbstone.drill.disk import check_disk
    from curbstone.drill.load import CAP_TEXT, PATH, Account, Clients, Server

    sync_s = min(seconds * SYNC_PART, SYNC_S_MAX)
    with progress("Syncs, then kills", seconds if show else None) as done:
        disk = check_disk(place, sync_s)
        done(round(sync_s))
        account = Account()
        server = Server(place, account)
        server.start()
        _put(server.url, PATH, CAP_TEXT)
        clients = Clients(server, account)
        clients.start()
        dice = Random()
        end = time.perf_counter() + seconds - sync_s
        try:
            while (now := time.perf_counter()) < end:
                until = min(now + dice.uniform(*KILL_S), end)
                while time.perf_counter() < until:
                    server.check()
                    time.sleep(0.01)
                server.kill()
                server.check()
                server.start()
                done(round(time.perf_counter() - now))
            if not clients.finish():
                account.wrong.append("the queue could not be drained")
        finally:
            server.end()
            server.kill()
            account.kills.pop()
    account.close()
    return disk, account


def _put(url: str, path: str, cap: str) -> None:
    with closing(Connection(f"http://{url}", timeout_s=TIMEOUT_S)) as client:
        reply = client.send_json("PUT", path, {"cap": cap})
    if reply.status >= 400:
        raise CommandFailed(f"the server answered {reply.status}: {reply.body!r}", FAILED)


def judge(disk: DiskCheck, account: Account) -> tuple[str, bool]:
    """Return the verdict, and whether it is good."""
    from curbstone.drill.load import CAP

    if account.bytes_most > CAP:
        account.wrong.append(f"the directory held {account.bytes_most} bytes, the cap is {CAP}")
    if account.wrong:
        return f"FAILED: {counted(len(account.wrong), 'error')} in {counted(len(account.kills), 'kill')}", False
    confirmed = len(account.confirmed)
    kept = (
        f"{confirmed:,} confirmed message{'s' * (confirmed != 1)}, {counted(len(account.kills), 'kill')}, nothing lost"
    )
    if disk.doubts:
        return f"UNRELIABLE: {kept}; but {disk.doubts[0]}", False
    return f"PASSED: {kept}", True


def _facts(disk: DiskCheck, account: Account) -> dict[str, Any]:
    from curbstone.cli.bench import quantiles_ms
    from curbstone.drill.load import CAP

    return {
        "file_system": disk.file_system,
        "doubts": disk.doubts,
        "remarks": disk.remarks,
        "sync_ms": quantiles_ms(disk.syncs_s),
        "confirm_ms": quantiles_ms([took for _, took in account.confirms]),
        "restart_ms": quantiles_ms([took for _, took in account.starts]),
        "sent": len(account.sent),
        "confirmed": len(account.confirmed),
        "refused": account.refused,
        "delivered": len(account.delivered),
        "kills": len(account.kills),
        "bytes_most": account.bytes_most,
        "cap": CAP,
        "wrong": account.wrong,
    }


def _lines(disk: DiskCheck, account: Account) -> list[str]:
    facts = _facts(disk, account)

    def times(name: str) -> str:
        return ", ".join(f"{quantile} {value:g} ms" for quantile, value in facts[name].items() if quantile != "p99.9")

    return [
        f"{facts['sent']:,} sent, {facts['confirmed']:,} confirmed, {facts['refused']:,} refused at the cap;"
        f" at most {facts['bytes_most']:,} of {facts['cap']:,} bytes on disk",
        f"confirm: {times('confirm_ms')}",
        f"bare sync on {facts['file_system']}: {times('sync_ms')}",
        f"restart: {times('restart_ms')}",
        *disk.remarks,
        "no program can see what a power cut takes: for that, pull the plug",
    ]


def _picture(disk: DiskCheck, account: Account, verdict: str) -> str:
    from curbstone.drill.picture import draw

    return draw(account, disk.syncs_s, verdict, _lines(disk, account))
