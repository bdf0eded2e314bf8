"""What an operator can set, where it comes from, and the rules it keeps.

One frozen `Settings` is made at start and handed on; nothing else reads the environment. A value is taken
from the first of: the command line, `CURBSTONE_*`, the older names `PORT` and `NARCONI_*`, the TOML file of
`--config`, the default. Whatever is wrong becomes one `SettingsError` of one line that names its source.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, get_args

from curbstone import setting_values as values
from curbstone.core.errors import CurbstoneError
from curbstone.core.names import queue_name
from curbstone.core.options import CAP_BYTES_MAX, CAP_BYTES_MIN, SECONDS_MAX, SyncMode
from curbstone.logs import LogFormat
from curbstone.net.address import LOOPBACK, Address, parse_address
from curbstone.net.certificates import CertificateFiles
from curbstone.net.peer import Networks
from curbstone.rabbit.address import Address as ClusterAddress
from curbstone.rabbit.address import parse as parse_cluster

ENVIRONMENT_PREFIX = "CURBSTONE_"
MESSAGE_BYTES_MAX = 1 << 30
LIMIT_MAX = 100_000
LEASE_S_MAX = 7 * 86400
CONNECTIONS_MAX = 1_000_000

LISTENERS = ("stomp_addr", "http_addr", "mqks_addr")

OF_THE_LOCAL_ENGINE = ("data", "sync", "max_staged", "staged_ttl")
OF_A_CLUSTER = ("engine_password_file", "engine_ca", "engine_prefix")

# What other servers call these settings. The value is rewritten into our own form first.
OLDER_NAMES = {
    "PORT": ("http_addr", ":{}"),
    "NARCONI_MAX_MESSAGE_SIZE": ("max_message_size", "{}"),
    "NARCONI_MAX_MESSAGE_TTL": ("max_ttl", "{}"),
    "NARCONI_DEFAULT_LIMIT": ("default_limit", "{}"),
}

FOREIGN_BROKER = "NARCONI_AMQP_URI"
"""Where Narconi's messages were. There is nothing here to connect to."""


class SettingsError(Exception):
    """A setting is unknown or bad; the text is one line that names where it was set and the rule it breaks."""


def _addresses(value: object) -> tuple[Address, ...]:
    """Return the addresses of a listener: of a list, or of a text with commas; none where there is nothing in it."""
    found = (parse_address(values.text(text)) for text in values.many(value))
    return tuple(address for address in found if address is not None)


def _engine(value: object) -> ClusterAddress | None:
    return parse_cluster(text) if (text := values.text(value)) else None


def _collector(value: object) -> str | None:
    text = values.text(value)
    if text and not re.fullmatch(r"https?://[^\s/]+(/\S*)?", text):
        raise ValueError(f"bad address {text!r}: http://host:port or https://host:port of a collector")
    return text or None


def _prefix(value: object) -> str:
    if not re.fullmatch(r"[A-Za-z0-9_-]{1,32}/", text := values.text(value)):
        raise ValueError(f"bad prefix {text!r}: 1 to 32 of A-Z a-z 0-9 _ - and a slash")
    return text


def _queue(value: object) -> str:
    if text := values.text(value):
        queue_name(text)
    return text


def _origins(value: object) -> tuple[str, ...]:
    for origin in (found := values.texts(value)):
        scheme, separator, rest = origin.partition("://")
        if origin != "*" and (
            scheme not in ("http", "https") or not separator or not rest or "/" in rest or "*" in rest
        ):
            raise ValueError(f"bad origin {origin!r}: http(s)://host, http(s)://host:port, or * for all")
    return found


def _networks(value: object) -> tuple[str, ...]:
    Networks(found := values.texts(value))
    return found


def _setting(parse: values.Parse, default: Any = None) -> Any:
    """Return a field of `Settings`; `parse` is what its values have to go through, the default does not."""
    return field(default=default, metadata={"parse": parse})


MIB, GIB = 1 << 20, 1 << 30


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The settings of `curbstone serve`; the field names are the options', with underscores."""

    config: Path | None = _setting(values.path)
    data: Path = _setting(values.path, Path("curbstone-data"))
    cap: int = _setting(values.size(CAP_BYTES_MIN, CAP_BYTES_MAX), 10 * MIB)
    max_cap: int = _setting(values.size(CAP_BYTES_MIN, CAP_BYTES_MAX), 10 * GIB)
    sync: SyncMode = _setting(lambda value: SyncMode.parse(values.text(value)), SyncMode())
    stomp_addr: tuple[Address, ...] = _setting(_addresses, (Address(LOOPBACK, 61613),))
    http_addr: tuple[Address, ...] = _setting(_addresses, (Address(LOOPBACK, 8080),))
    mqks_addr: tuple[Address, ...] = _setting(_addresses, (Address(LOOPBACK, 25000),))
    mq_delay: float = _setting(values.seconds(0.001, LEASE_S_MAX), 10)
    max_message_size: int = _setting(values.size(1, MESSAGE_BYTES_MAX), MIB)
    max_ttl: float = _setting(values.seconds(0, SECONDS_MAX), 3600)
    default_limit: int = _setting(values.whole(1, LIMIT_MAX), 10)
    max_staged: int = _setting(values.size(1, CAP_BYTES_MAX), GIB)
    staged_ttl: float = _setting(values.seconds(1, SECONDS_MAX), 3600)
    single_queue: str = _setting(_queue, "")
    cors_origin: tuple[str, ...] = _setting(_origins, ())
    http_host: tuple[str, ...] = _setting(values.texts, ())
    max_connections_per_address: int = _setting(values.whole(0, CONNECTIONS_MAX), 256)
    tls_cert: Path | None = _setting(values.path)
    tls_key: Path | None = _setting(values.path)
    tls_client_ca: Path | None = _setting(values.path)
    trusted_proxy: tuple[str, ...] = _setting(_networks, ())
    users: Path | None = _setting(values.path)
    plaintext: bool = _setting(values.switch, False)
    insecure: bool = _setting(values.switch, False)
    log_level: str = _setting(values.one_of("debug", "info", "warning", "error"), "info")
    log_format: LogFormat = _setting(values.one_of(*get_args(LogFormat)), "text")
    otlp: str | None = _setting(_collector)
    engine: ClusterAddress | None = _setting(_engine)
    engine_password_file: Path | None = _setting(values.path)
    engine_ca: Path | None = _setting(values.path)
    engine_prefix: str = _setting(_prefix, "cs/")

    @property
    def addresses(self) -> Mapping[str, tuple[Address, ...]]:
        """All that is listened on, by the name of its option."""
        return {name: getattr(self, name) for name in LISTENERS}

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can connect."""
        return all(address.is_loopback for addresses in self.addresses.values() for address in addresses)

    @property
    def certificate_files(self) -> CertificateFiles | None:
        """Where the certificate is, if there is one."""
        return CertificateFiles(self.tls_cert, self.tls_key, self.tls_client_ca) if self.tls_cert else None


NAMES = tuple(each.name for each in fields(Settings))


def load(command_line: Mapping[str, object]) -> Settings:
    """Return the settings with what the command line gave; raise SettingsError with one line."""
    environment = {name.upper(): value for name, value in os.environ.items()}
    variables = {name: f"{ENVIRONMENT_PREFIX}{name.upper()}" for name in NAMES}
    given: dict[str, object] = {name: environment[of] for name, of in variables.items() if of in environment}
    given |= command_line
    given = _from_file(given.get("config")) | _from_older_names(os.environ) | given
    chosen = {name: _parsed(name, value, command_line) for name, value in given.items()}
    settings = Settings(**chosen)
    if not any(settings.addresses.values()):
        raise SettingsError("nothing to listen on: --stomp-addr, --http-addr and --mqks-addr are all off")
    _check_engine(settings, chosen, command_line)
    if settings.tls_cert is None and (settings.tls_key or settings.tls_client_ca):
        raise SettingsError("--tls-key and --tls-client-ca mean nothing without --tls-cert")
    for name, addresses in settings.addresses.items():
        for address in addresses:
            reason = _why_not(address, settings)
            if reason:
                raise SettingsError(f"{_origin(name, command_line)}: {reason}")
    return settings


def _parsed(name: str, value: object, command_line: Mapping[str, object]) -> Any:
    try:
        return Settings.__dataclass_fields__[name].metadata["parse"](value)
    except (CurbstoneError, ValueError) as error:
        raise SettingsError(f"{_origin(name, command_line)}: {error}") from None


def _why_not(address: Address, settings: Settings) -> str:
    """Return why nobody may listen there, "" if one may."""
    if address.tls and settings.tls_cert is None:
        return f"{address} needs a certificate: --tls-cert, and --tls-key where the key is in another file"
    if address.proxy and not settings.trusted_proxy:
        return f"{address} is for proxies, and none is trusted: say with --trusted-proxy which"
    if address.is_loopback or settings.insecure:
        return ""
    if settings.users is None:
        return (
            f"{address} can be reached from other machines and nobody would have to log in; add --users FILE (see"
            " curbstone access init), use a loopback address, or add --insecure if the network is trusted"
        )
    if not address.tls and not settings.plaintext:
        return (
            f"{address} can be reached from other machines, and passwords and tokens would cross the network as they"
            " are; listen on tls://, or add --plaintext behind a proxy that ends TLS or on a trusted wire"
        )
    return ""


def _check_engine(settings: Settings, given: Mapping[str, object], command_line: Mapping[str, object]) -> None:
    """What belongs to one engine means nothing for the other."""
    wrong = OF_THE_LOCAL_ENGINE if settings.engine is not None else OF_A_CLUSTER
    for name in wrong:
        if name == "data" and settings.users is not None:
            continue  # the audit of who came through this gateway
        if name in given:
            other = (
                "has no meaning with --engine: the cluster keeps the messages" if settings.engine else "needs --engine"
            )
            raise SettingsError(f"{_origin(name, command_line)}: it {other}")


def warnings() -> list[str]:
    """Return a line for each variable of another server that is set and means nothing here; never its value."""
    if not os.environ.get(FOREIGN_BROKER):
        return []
    return [
        f"{FOREIGN_BROKER} is ignored: Curbstone is the broker itself and keeps messages in --data; it needs no"
        " RabbitMQ, and reads none of what is there"
    ]


def _from_older_names(environment: Mapping[str, str]) -> dict[str, Any]:
    return {
        field: form.format(environment[name]) for name, (field, form) in OLDER_NAMES.items() if environment.get(name)
    }


def _from_file(file: object) -> dict[str, Any]:
    """Return what the TOML file says; `stomp-addr` and `stomp_addr` are the same key."""
    if not file:
        return {}
    try:
        content = tomllib.loads(values.path(file).read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingsError(f"can't read the config file {file}: {error.strerror}") from None
    except ValueError as error:  # not TOML, or not UTF-8
        raise SettingsError(f"the config file {file} is not TOML: {error}") from None
    for key in content:
        if key.replace("-", "_") not in NAMES or key == "config":
            known = ", ".join(name.replace("_", "-") for name in NAMES if name != "config")
            raise SettingsError(f"unknown key {key!r} in the config file {file}; there are {known}")
    return {key.replace("-", "_"): value for key, value in content.items()}


def _origin(field: str, command_line: Mapping[str, object]) -> str:
    """Return where the value of `field` came from, as the operator knows it."""
    if field in command_line:
        return "--" + field.replace("_", "-")
    if (variable := ENVIRONMENT_PREFIX + field.upper()) in {name.upper() for name in os.environ}:
        return variable
    for name, (older_field, _form) in OLDER_NAMES.items():
        if older_field == field and os.environ.get(name):
            return name
    return f"{field.replace('_', '-')} in the config file"
