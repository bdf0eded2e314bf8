"""The settings of a server: the options of `curbstone serve`, their sources, and their rules.

One frozen `Settings` is created at the start; nothing else reads the environment. A value is taken from the
first source that has it: the command line, `CURBSTONE_*`, the older names `PORT` and `NARCONI_*`, the TOML file of
`--config`, the default. Any error becomes a `SettingsError`, one line that names the source of the value.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from curbstone import option_values as values
from curbstone.core.errors import CurbstoneError
from curbstone.core.options import CAP_BYTES_MAX, CAP_BYTES_MIN, SECONDS_MAX, SyncMode
from curbstone.exit_codes import WRONG, CommandFailed
from curbstone.net.address import LOOPBACK, Address
from curbstone.net.limits import BUFFERED_BYTES_MAX

if TYPE_CHECKING:
    from curbstone.net.certificates import CertificateFiles
    from curbstone.process.logs import LogFormat
    from curbstone.rabbit.amqp.address import Address as ClusterAddress

ENVIRONMENT_PREFIX = "CURBSTONE_"
MESSAGE_BYTES_MAX = 1 << 30
LIMIT_MAX = 100_000
LEASE_S_MAX = 7 * 86400
LEASE_TTL_S_MIN = 6
CONNECTIONS_MAX = 1_000_000

LISTENERS = ("stomp_addr", "http_addr", "mqks_addr")

OF_THE_LOCAL_ENGINE = (
    "data",
    "sync",
    "max_staged",
    "staged_ttl",
    "standby_backlog",
    "confirm_with",
    "standby_patience",
    "lease",
    "lease_ttl",
    "failover_lag",
    "failover_on_fault",
    "advertise",
)
OF_A_CLUSTER = ("engine_password_file", "engine_ca", "engine_prefix")

# The names of these settings in other servers. The value is converted first.
OLDER_NAMES = {
    "PORT": ("http_addr", ":{}"),
    "NARCONI_MAX_MESSAGE_SIZE": ("max_message_size", "{}"),
    "NARCONI_MAX_MESSAGE_TTL": ("max_ttl", "{}"),
    "NARCONI_DEFAULT_LIMIT": ("default_limit", "{}"),
}

FOREIGN_BROKER = "NARCONI_AMQP_URI"
"""The broker that Narconi connected to. Curbstone ignores it with a warning."""


class SettingsError(CommandFailed):
    """A setting is unknown or bad. The text is one line that names where it was set and which rule it breaks."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason, WRONG)


class Option(NamedTuple):
    """The option of a setting. On the command line it has the field's name, with hyphens."""

    kind: values.Kind
    help: str
    also: str = ""
    """Another name on the command line."""


def option(default: Any, kind: values.Kind, help: str, also: str = "") -> Any:
    """Return the field of a setting. The default is added to the help, unless the text describes it."""
    if "Default: " not in help and default not in (None, False, ""):
        help = f"{help}. Default: {kind.show(default)}"
    return field(default=default, metadata={"option": Option(kind, help, also)})


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The settings of `curbstone serve`."""

    data: Path = option(Path("curbstone-data"), values.DIRECTORY, "The data directory")
    engine: ClusterAddress | None = option(
        None,
        values.CLUSTER,
        "Keep the messages in a RabbitMQ cluster, and nothing on this machine. URL is"
        " amqp://user:password@a,b,c/vhost, or amqps://. Other users can see a password on the command line: use"
        " CURBSTONE_ENGINE or --engine-password-file instead. Default: messages are kept in --data",
    )
    engine_password_file: Path | None = option(None, values.FILE, "File with the password for the cluster")
    engine_ca: Path | None = option(
        None,
        values.FILE,
        "CA certificates to verify an amqps:// cluster",
    )
    engine_prefix: str = option("cs/", values.PREFIX, "The prefix of all names in the cluster")
    cap: int = option(
        10 << 20,
        values.size(CAP_BYTES_MIN, CAP_BYTES_MAX),
        "The maximum size of a queue on disk",
        also="-cap",
    )
    max_cap: int = option(
        10 << 30,
        values.size(CAP_BYTES_MIN, CAP_BYTES_MAX),
        "The largest cap that clients can set for a queue. Default: 10GiB, or --cap if it is larger",
    )
    sync: SyncMode = option(
        SyncMode(),
        values.SYNC_MODE,
        "When messages are synced to disk: always (before they are confirmed), interval:MS (every MS"
        " milliseconds) or never",
    )
    stomp_addr: tuple[Address, ...] = option(
        (Address(LOOPBACK, 61613),),
        values.ADDRESSES,
        "Address of STOMP: host:port, or :port for this machine only. An IPv6 address is in brackets, port 0"
        " picks a free port, and off disables the listener. Prefix it with tls:// for TLS, and with proxy:// or"
        " proxy+tls:// for a proxy that sends the PROXY protocol. Repeatable",
        also="-addr",
    )
    http_addr: tuple[Address, ...] = option(
        (Address(LOOPBACK, 8080),),
        values.ADDRESSES,
        "Address of HTTP and WebSocket, in the same form",
    )
    mqks_addr: tuple[Address, ...] = option(
        (Address(LOOPBACK, 25000),),
        values.ADDRESSES,
        "Address of MQKS, in the same form",
    )
    max_message_size: int = option(
        1 << 20,
        values.size(1, MESSAGE_BYTES_MAX),
        "The maximum size of a message body",
    )
    max_ttl: float = option(
        3600,
        values.seconds(0.001, SECONDS_MAX),
        "The maximum ttl of a message that is published over HTTP",
    )
    default_limit: int = option(
        10,
        values.integer(1, LIMIT_MAX),
        "The default window of a WebSocket consumer",
    )
    max_staged: int = option(
        1 << 30,
        values.size(1, CAP_BYTES_MAX),
        "The maximum size of all staged transactions. The last sixteenth is reserved for users (without"
        " users: projects) that stage no more than that",
    )
    staged_ttl: float = option(
        3600,
        values.seconds(1, SECONDS_MAX),
        "After how long without a call a staged transaction is dropped if it is not committed",
    )
    standby_backlog: int = option(
        0,
        values.size(0, CAP_BYTES_MAX),
        "Enable followers (curbstone standby, curbstone backup --follow). So much of the latest changes is kept in"
        " memory for those that are disconnected or slow; 64MiB is enough for most. Default: 0, no followers",
    )
    confirm_with: str = option(
        "local",
        values.one_of("WHAT", "local", "standby"),
        "When messages and acks are confirmed: local (when they are on this disk) or standby (when a standby has them,"
        " too; this needs --standby-backlog)",
    )
    standby_patience: float | None = option(
        10,
        values.seconds_or_never(1, SECONDS_MAX),
        "With --confirm-with standby: after how many seconds without a standby the server continues alone and raises an"
        " alarm; or never, so that it confirms nothing without one",
    )
    lease: str = option(
        "",
        values.LEASE,
        "Confirm only while this server holds the lease at URL: s3://bucket/key, gs://… or az://… (this needs"
        " curbstone[objects]), or k8s://namespace/name. A standby with the same option takes it, and serves, when this"
        " server fails. It needs --standby-backlog. Default: none, and a standby is promoted manually",
    )
    lease_ttl: float = option(
        15,
        values.seconds(LEASE_TTL_S_MIN, 3600),
        "With --lease: its TTL; it is renewed three times in that time. If that fails, the server shuts down 2 seconds"
        " before the lease expires",
    )
    failover_lag: float | None = option(
        None,
        values.seconds_or_never(1, SECONDS_MAX),
        "With --lease: the maximum lag, in seconds before the last renewal of the lease, of a standby that takes over"
        " although confirms did not wait for it. What was confirmed after that is lost. Default: never",
    )
    failover_on_fault: float | None = option(
        None,
        values.seconds_or_never(1, SECONDS_MAX),
        "With --lease: hand over to the standby when calls to the disk have failed for so many seconds, for another"
        " reason than that it is full. Default: never",
    )
    advertise: str = option(
        "",
        values.SERVER_URL,
        "With --lease: the HTTP address of this server for its standbys, which they follow when it holds the lease."
        " Default: they follow the one of --of",
    )
    max_buffered: int = option(
        BUFFERED_BYTES_MAX,
        values.size(1, CAP_BYTES_MAX),
        "The maximum memory for unfinished input and unread output of all connections. A user (without users: an"
        " address) may hold a quarter of it. At least four of the largest requests",
    )
    mq_delay: float = option(
        10,
        values.seconds(0.001, LEASE_S_MAX),
        "After how long a message that was fetched at /mq, but not deleted, is ready again",
    )
    single_queue: str = option("", values.QUEUE, "Use this queue for every STOMP destination")
    cors_origin: tuple[str, ...] = option(
        (),
        values.ORIGINS,
        "An origin whose pages may call over HTTP; repeatable. Default: none",
    )
    http_host: tuple[str, ...] = option(
        (),
        values.NAMES,
        "A host name that HTTP requests may use, in addition to addresses, localhost and this machine's own name;"
        " * allows any name; repeatable. Default: none",
    )
    metrics_queues: tuple[str, ...] = option(
        ("*/*",),
        values.PATTERNS,
        "Queues with their own metrics in /metrics, as project/queue, where * stands for any text;"
        ' repeatable. "" disables metrics of single queues. Default: */*, and at most 1000 queues in any case',
    )
    max_connections_per_address: int = option(
        256,
        values.integer(0, CONNECTIONS_MAX),
        "The most connections from one address of another machine (with IPv6: from one /64), over all protocols"
        " together; 0 for no limit",
    )
    tls_cert: Path | None = option(
        None,
        values.FILE,
        "PEM file with the certificate chain for tls://. It is read again when it changes",
    )
    tls_key: Path | None = option(
        None,
        values.FILE,
        "PEM file with the key of the certificate, not encrypted. Default: the key is in the file of --tls-cert",
    )
    tls_client_ca: Path | None = option(
        None,
        values.FILE,
        "CA certificates to verify clients. Clients are then asked for a certificate, but may connect without one",
    )
    trusted_proxy: tuple[str, ...] = option(
        (),
        values.NETWORKS,
        "Address or network of trusted proxies: the client's address is taken from the PROXY protocol on proxy://, and"
        " from X-Forwarded-For, X-Forwarded-Proto and Forwarded over HTTP. Repeatable."
        " Default: none",
    )
    users: Path | None = option(
        None,
        values.FILE,
        "File with users and their rights (see docs/security.md). With it, every client has to log in. Default:"
        " every user of this machine has all rights",
    )
    plaintext: bool = option(
        False,
        values.FLAG,
        "With --users, allow listeners without TLS that other machines can reach: behind a proxy that terminates TLS,"
        " or in a trusted network",
    )
    insecure: bool = option(
        False,
        values.FLAG,
        "Allow listeners that other machines can reach without a login. Every client has all rights",
    )
    log_level: str = option(
        "info",
        values.one_of("LEVEL", "debug", "info", "warning", "error"),
        "The log level: debug, info, warning or error",
    )
    log_format: LogFormat = option(
        "text",
        values.one_of("FORMAT", "text", "json"),
        "The log format: text, or json with one object per line",
    )
    otlp: str | None = option(
        None,
        values.COLLECTOR,
        "Send traces to this OpenTelemetry collector by OTLP over HTTP, for example http://127.0.0.1:4318. This"
        " needs curbstone[otel]. Default: no traces",
    )
    config: Path | None = option(
        None,
        values.FILE,
        'TOML file with any of these options, such as stomp-addr = ":61613"',
    )

    @property
    def addresses(self) -> Mapping[str, tuple[Address, ...]]:
        """All addresses to listen at, by the name of their option."""
        return {name: getattr(self, name) for name in LISTENERS}

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can connect."""
        return all(address.is_loopback for addresses in self.addresses.values() for address in addresses)

    @property
    def certificate_files(self) -> CertificateFiles | None:
        """The files of the certificate, if one is set."""
        from curbstone.net.certificates import (
            CertificateFiles,
        )  # not at the top, because `curbstone --help` needs no TLS

        return CertificateFiles(self.tls_cert, self.tls_key, self.tls_client_ca) if self.tls_cert else None


OPTIONS: dict[str, Option] = {each.name: each.metadata["option"] for each in fields(Settings)}


class _Given(NamedTuple):
    """A value, with its source by the name that the operator uses."""

    value: object
    origin: str


def load(command_line: Mapping[str, object]) -> Settings:
    """Load the settings, with the values given on the command line. Raise SettingsError."""
    given = _given(command_line)
    found = {}
    for name, (value, origin) in given.items():
        try:
            found[name] = OPTIONS[name].kind.read(value)
        except (ValueError, CurbstoneError) as error:
            raise SettingsError(f"{origin}: {error}") from None
    settings = Settings(**found)
    if not any(settings.addresses.values()):
        raise SettingsError("nothing to listen on: --stomp-addr, --http-addr and --mqks-addr are all off")
    _check_engine(settings, given)
    if settings.confirm_with == "standby" and not settings.standby_backlog:
        raise SettingsError("--confirm-with standby needs --standby-backlog, as in --standby-backlog 64MiB")
    if settings.lease and not settings.standby_backlog:
        raise SettingsError("--lease needs --standby-backlog, as in --standby-backlog 64MiB")
    if settings.failover_on_fault is not None and not settings.lease:
        raise SettingsError("--failover-on-fault needs --lease, which decides what serves after that")
    if settings.tls_cert is None and (settings.tls_key or settings.tls_client_ca):
        raise SettingsError("--tls-key and --tls-client-ca need --tls-cert")
    for name, addresses in settings.addresses.items():
        for address in addresses:
            reason = _why_not(address, settings)
            if reason:
                raise SettingsError(f"{given[name].origin}: {reason}")
    return settings


def _given(command_line: Mapping[str, object]) -> dict[str, _Given]:
    """Return the given value of each setting, from its first source."""
    environment = {name.upper(): value for name, value in os.environ.items()}
    found: dict[str, _Given] = {}
    for name, value in command_line.items():
        if name not in OPTIONS:
            raise SettingsError(f"unknown setting {name!r}; there are {', '.join(OPTIONS)}")
        found[name] = _Given(value, "--" + name.replace("_", "-"))
    for name in OPTIONS:
        variable = ENVIRONMENT_PREFIX + name.upper()
        if name not in found and variable in environment:
            found[name] = _Given(environment[variable], variable)
    for variable, (name, form) in OLDER_NAMES.items():
        if name not in found and os.environ.get(variable):
            found[name] = _Given(form.format(os.environ[variable]), variable)
    file = found["config"].value if "config" in found else None
    for name, value in _from_file(file).items():
        if name not in found:
            found[name] = _Given(value, f"{name.replace('_', '-')} in the config file")
    return found


def lacking(address: Address, settings: Settings) -> str:
    """Return what else has to be set to listen at an address, or "" for nothing."""
    if address.tls and settings.tls_cert is None:
        return f"{address} needs a certificate: --tls-cert, and --tls-key where the key is in another file"
    if address.proxy and not settings.trusted_proxy:
        return f"{address} is for proxies, but no proxy is trusted; add --trusted-proxy"
    return ""


def _why_not(address: Address, settings: Settings) -> str:
    """Return why the server must not listen at an address, or "" if it may."""
    if reason := lacking(address, settings):
        return reason
    if address.is_loopback or settings.insecure:
        return ""
    if settings.users is None:
        return (
            f"{address} can be reached from other machines without a login; add --users FILE (see"
            " curbstone access init), use a loopback address, or add --insecure if the network is trusted"
        )
    if not address.tls and not settings.plaintext:
        return (
            f"{address} can be reached from other machines, and passwords and tokens would cross the network as plain"
            " text; listen on tls://, or add --plaintext behind a proxy that terminates TLS or in a trusted network"
        )
    return ""


def _check_engine(settings: Settings, given: Mapping[str, _Given]) -> None:
    """Raise SettingsError if a setting was given that does not apply to the engine."""
    wrong = OF_THE_LOCAL_ENGINE if settings.engine is not None else OF_A_CLUSTER
    for name in wrong:
        if name == "data" and settings.users is not None:
            continue  # the audit log of this gateway is in the data directory
        if name in given:
            other = (
                "can't be used with --engine: the cluster keeps the messages" if settings.engine else "needs --engine"
            )
            raise SettingsError(f"{given[name].origin}: it {other}")


def warnings() -> list[str]:
    """Return a warning for each ignored environment variable of another server. Values are not shown."""
    if not os.environ.get(FOREIGN_BROKER):
        return []
    return [
        f"{FOREIGN_BROKER} is ignored: Curbstone is the broker itself and keeps messages in --data; it needs no"
        " RabbitMQ, and does not read from it"
    ]


def _from_file(file: Any) -> dict[str, Any]:
    """Read the values of the TOML file. `stomp-addr` and `stomp_addr` are the same key."""
    if not file:
        return {}
    try:
        content = tomllib.loads(Path(file).read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingsError(f"can't read the config file {file}: {error.strerror}") from None
    except ValueError as error:  # not TOML, or not UTF-8
        raise SettingsError(f"the config file {file} is not TOML: {error}") from None
    for key in content:
        if key.replace("-", "_") not in OPTIONS or key == "config":
            known = ", ".join(name.replace("_", "-") for name in OPTIONS if name != "config")
            raise SettingsError(f"unknown key {key!r} in the config file {file}; there are {known}")
    return {key.replace("-", "_"): value for key, value in content.items()}
