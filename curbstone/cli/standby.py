"""`curbstone standby`, `switchover` and `promote`: a second machine with a copy of a server, which can take over."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from curbstone.cli.client import Client
from curbstone.cli.connection import CaFileOption, CertFileOption, TokenFileOption, connect
from curbstone.cli.parameters import add_parameters
from curbstone.cli.serve import parameters, run_server, was_given
from curbstone.cli.times import seconds_of

if TYPE_CHECKING:
    from curbstone.net.address import Address
    from curbstone.settings import Settings

BACKLOG = "64MiB"
"""The default of --standby-backlog for a promoted server."""

Of = Annotated[str, typer.Option("--of", metavar="URL", help="HTTP address of the server; it needs --standby-backlog")]
StatusAddr = Annotated[
    list[str] | None,
    typer.Option(
        "--status-addr",
        metavar="ADDRESS",
        help="Address of /healthz, /readyz, /metrics and /v2/standby, without a login, until the standby is promoted;"
        " in the form of --http-addr. Repeatable, or off. Default: --http-addr",
    ),
]
Discard = Annotated[
    bool,
    typer.Option(
        "--discard", help="Overwrite the data of a former server in DIR; by default they are moved to DIR.kept-TERM"
    ),
]
VerifyEvery = Annotated[
    str,
    typer.Option(
        "--verify-every",
        metavar="TIME",
        help="How often the copy is compared with the server, by digests and slowly, and what differs is copied again;"
        " or never",
    ),
]


def standby(
    of: Of,
    discard: Discard = False,
    verify_every: VerifyEvery = "24h",
    status_addr: StatusAddr = None,
    token_file: TokenFileOption = "",
    ca_file: CaFileOption = "",
    cert_file: CertFileOption = "",
    **given: Any,
) -> int:
    """Keep a copy of a running server, and replace that server when promoted.

    The directory of --data receives a full copy, and then each change as the server makes it. `curbstone promote DIR`
    promotes it: this process then serves, with the options of `curbstone serve` that are given here. A directory that
    was promoted before is served again, unless the server at URL was promoted after it; then it follows that one. With
    --lease it promotes itself when the server fails. TIME is a number with s, m, h or d.

    Until then it serves only its own status, and replies to all other requests with 503. It logs as `curbstone serve`
    does, and stops at SIGTERM or Ctrl-C.
    """
    from curbstone.cli.standby_process import StandbyProcess, should_serve
    from curbstone.gateway.resources.server.standby_status import StandbyStatus
    from curbstone.process import logs
    from curbstone.settings import load
    from curbstone.standby_listener import StandbyListener

    settings = load({"standby_backlog": BACKLOG, **{name: value for name, value in given.items() if was_given(value)}})
    options = {"server": of, "token_file": token_file, "ca_file": ca_file, "cert_file": cert_file}
    connect({name: value for name, value in options.items() if value})
    addresses = _status_addresses(status_addr, settings)
    verify_every_s = None if verify_every == "never" else seconds_of(verify_every, "--verify-every")
    logs.begin(settings.log_level, settings.log_format)
    lease = None
    if settings.lease:
        from curbstone.standby.lease_watch import LeaseWatch

        lease = LeaseWatch(settings)
    if not should_serve(settings.data, lease):
        process = StandbyProcess(settings.data, discards=discard, lease=lease, verify_every_s=verify_every_s)
        try:
            status = StandbyStatus(of, process.figures, str(settings.sync), settings.max_ttl)
            with StandbyListener(settings, addresses, status):
                process.run()
        except KeyboardInterrupt:
            return 0
    return run_server(settings)


def _status_addresses(given: list[str] | None, settings: Settings) -> Sequence[Address]:
    """Return the addresses of the status. Raise SettingsError."""
    from curbstone.option_values import ADDRESSES
    from curbstone.settings import SettingsError, lacking

    if given is None:
        return settings.http_addr
    try:
        addresses: tuple[Address, ...] = ADDRESSES.read(given)
    except ValueError as error:
        raise SettingsError(f"--status-addr: {error}") from None
    for address in addresses:
        if reason := lacking(address, settings):
            raise SettingsError(f"--status-addr: {reason}")
    return addresses


add_parameters(standby, standby, parameters(), None, without="given")


def switchover() -> None:
    """Switch over to the standby, without loss.

    The server stops confirming, waits until the standby has everything, and shuts down. Clients reconnect to the
    standby, which then serves. If that is not possible within 10 seconds, the server continues.
    """
    with Client() as client:
        done = client.call("POST", "/v2/standby/switchover").json()
        print(f"{client.url} has handed over to {done['standby']}, which serves as term {done['term']}")


def promote(
    data: Annotated[Path, typer.Argument(metavar="DIR", help="The data directory of the standby, on this machine")],
    accept_loss: Annotated[
        bool,
        typer.Option("--accept-loss", help="Promote it although something that was confirmed may be missing"),
    ] = False,
) -> None:
    """Promote a standby to the server, for example because the server's machine has failed.

    If `curbstone standby` runs on DIR, it starts serving. Otherwise start `curbstone serve` on it. Make sure that the
    former server is stopped: it shuts down by itself only when a standby of the new server connects to it.
    """
    from curbstone.cli.standby_process import promote as promote_copy

    print(promote_copy(data, accepts_loss=accept_loss))
