"""The settings that an operator can make, their sources, and their rules.

One frozen `Settings` is made at start and passed on; nothing else reads the environment. A value is taken from the
first source that has it: the command line, `CURBSTONE_*`, the older names `PORT` and `NARCONI_*`, the TOML file of
`--config`, the default. Any error becomes a `SettingsError`, one line that names the source of the value.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, PlainValidator, ValidationError, field_validator
from pydantic_settings import (
    BaseSettings,
    InitSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)

from curbstone.core.errors import CurbstoneError
from curbstone.core.names import queue_name
from curbstone.core.options import CAP_BYTES_MAX, CAP_BYTES_MIN, SECONDS_MAX, SyncMode, parse_size
from curbstone.exit_codes import WRONG, CommandFailed
from curbstone.logs import LogFormat
from curbstone.net.address import LOOPBACK, Address, parse_address
from curbstone.net.certificates import CertificateFiles
from curbstone.net.limits import BUFFERED_BYTES_MAX
from curbstone.net.peer import Networks
from curbstone.rabbit.amqp.address import Address as ClusterAddress
from curbstone.rabbit.amqp.address import parse as parse_cluster

ENVIRONMENT_PREFIX = "CURBSTONE_"
MESSAGE_BYTES_MAX = 1 << 30
LIMIT_MAX = 100_000
LEASE_S_MAX = 7 * 86400
CONNECTIONS_MAX = 1_000_000

LISTENERS = ("stomp_addr", "http_addr", "mqks_addr")

OF_THE_LOCAL_ENGINE = ("data", "sync", "max_staged", "staged_ttl")
OF_A_CLUSTER = ("engine_password_file", "engine_ca", "engine_prefix")

# The names that other servers have for these settings. The value is rewritten into our own form first.
OLDER_NAMES = {
    "PORT": ("http_addr", ":{}"),
    "NARCONI_MAX_MESSAGE_SIZE": ("max_message_size", "{}"),
    "NARCONI_MAX_MESSAGE_TTL": ("max_ttl", "{}"),
    "NARCONI_DEFAULT_LIMIT": ("default_limit", "{}"),
}

FOREIGN_BROKER = "NARCONI_AMQP_URI"
"""The broker that Narconi connected to. Curbstone has no use for it, and warns if it is set."""


class SettingsError(CommandFailed):
    """A setting is unknown or bad. The text is one line that names where it was set and which rule it breaks."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason, WRONG)


def _size(value: object) -> object:
    return parse_size(value) if isinstance(value, str) else value


def _named(value: object) -> object:
    if value == "":
        raise ValueError("an empty path; the current directory is .")
    return value


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"bad value {value!r}: a text in quotes is wanted")
    return value


def _listed(value: object) -> object:
    return [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value


def _addresses(value: object) -> tuple[Address, ...]:
    """Return the addresses of a listener, given as a list or as a text with commas. An empty value means none."""
    texts = value.split(",") if isinstance(value, str) else value
    if not isinstance(texts, (list, tuple)):
        raise ValueError(f"bad value {value!r}: a text in quotes is wanted, or a list of them")
    return tuple(address for text in texts if (address := parse_address(_text(text))) is not None)


def _engine(value: object) -> ClusterAddress | None:
    return parse_cluster(text) if (text := _text(value)) else None


def _collector(value: object) -> str | None:
    text = _text(value)
    if text and not re.fullmatch(r"https?://[^\s/]+(/\S*)?", text):
        raise ValueError(f"bad address {text!r}: http://host:port or https://host:port of a collector")
    return text or None


Engine = Annotated[ClusterAddress | None, PlainValidator(_engine)]
ListenAddresses = Annotated[tuple[Address, ...], PlainValidator(_addresses)]
Size = Annotated[int, BeforeValidator(_size)]


class Settings(BaseSettings):
    """The settings of `curbstone serve`. The fields have the names of the options, with underscores."""

    model_config = SettingsConfigDict(
        env_prefix=ENVIRONMENT_PREFIX, frozen=True, extra="forbid", enable_decoding=False, validate_default=False
    )

    config: Path | None = None
    data: Annotated[Path, BeforeValidator(_named)] = Path("curbstone-data")
    cap: Size = Field(default=10 * 1024 * 1024, ge=CAP_BYTES_MIN, le=CAP_BYTES_MAX)
    max_cap: Size = Field(default=10 * 1024 * 1024 * 1024, ge=CAP_BYTES_MIN, le=CAP_BYTES_MAX)
    sync: Annotated[SyncMode, PlainValidator(lambda value: SyncMode.parse(_text(value)))] = SyncMode()
    stomp_addr: ListenAddresses = (Address(LOOPBACK, 61613),)
    http_addr: ListenAddresses = (Address(LOOPBACK, 8080),)
    mqks_addr: ListenAddresses = (Address(LOOPBACK, 25000),)
    mq_delay: float = Field(default=10, ge=0.001, le=LEASE_S_MAX, allow_inf_nan=False)
    max_message_size: Size = Field(default=1024 * 1024, ge=1, le=MESSAGE_BYTES_MAX)
    max_ttl: float = Field(default=3600, gt=0, le=SECONDS_MAX, allow_inf_nan=False)
    default_limit: int = Field(default=10, ge=1, le=LIMIT_MAX)
    max_staged: Size = Field(default=1024 * 1024 * 1024, ge=1, le=CAP_BYTES_MAX)
    max_buffered: Size = Field(default=BUFFERED_BYTES_MAX, ge=1, le=CAP_BYTES_MAX)
    staged_ttl: float = Field(default=3600, ge=1, le=SECONDS_MAX, allow_inf_nan=False)
    single_queue: str = ""
    cors_origin: Annotated[tuple[str, ...], BeforeValidator(_listed)] = ()
    http_host: Annotated[tuple[str, ...], BeforeValidator(_listed)] = ()
    metrics_queues: Annotated[tuple[str, ...], BeforeValidator(_listed)] = ("*/*",)
    max_connections_per_address: int = Field(default=256, ge=0, le=CONNECTIONS_MAX)
    tls_cert: Annotated[Path | None, BeforeValidator(_named)] = None
    tls_key: Annotated[Path | None, BeforeValidator(_named)] = None
    tls_client_ca: Annotated[Path | None, BeforeValidator(_named)] = None
    trusted_proxy: Annotated[tuple[str, ...], BeforeValidator(_listed)] = ()
    users: Annotated[Path | None, BeforeValidator(_named)] = None
    plaintext: bool = False
    insecure: bool = False
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_format: LogFormat = "text"
    otlp: Annotated[str | None, PlainValidator(_collector)] = None
    engine: Engine = None
    engine_password_file: Annotated[Path | None, BeforeValidator(_named)] = None
    engine_ca: Annotated[Path | None, BeforeValidator(_named)] = None
    engine_prefix: str = "cs/"

    @field_validator("engine_prefix")
    @classmethod
    def _is_a_prefix(cls, value: str) -> str:
        if not re.fullmatch(r"[A-Za-z0-9_-]{1,32}/", value):
            raise ValueError(f"bad prefix {value!r}: 1 to 32 of A-Z a-z 0-9 _ - and a slash")
        return value

    @field_validator("single_queue")
    @classmethod
    def _is_a_queue_name(cls, value: str) -> str:
        if value:
            queue_name(value)
        return value

    @field_validator("cors_origin")
    @classmethod
    def _are_origins(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for origin in value:
            if origin == "*":
                continue
            scheme, separator, rest = origin.partition("://")
            if scheme not in ("http", "https") or not separator or not rest or "/" in rest or "*" in rest:
                raise ValueError(f"bad origin {origin!r}: http(s)://host, http(s)://host:port, or * for all")
        return value

    @field_validator("metrics_queues")
    @classmethod
    def _are_patterns(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for pattern in filter(None, value):
            if "/" not in pattern:
                raise ValueError(f"bad pattern {pattern!r}: project/queue, where * stands for any text")
        return tuple(filter(None, value))

    @field_validator("trusted_proxy")
    @classmethod
    def _are_networks(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        Networks(value)
        return value

    @field_validator("*", mode="wrap")
    @classmethod
    def _engine_errors_are_bad_values(cls, value: object, handler: Any) -> object:
        """Turn the errors of the engine's parsers into those of a bad value. This validator must stay the last one."""
        try:
            return handler(value)
        except CurbstoneError as error:
            raise ValueError(str(error)) from error

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
        return CertificateFiles(self.tls_cert, self.tls_key, self.tls_client_ca) if self.tls_cert else None

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Put the sources in the order that the module promises. No .env file and no secrets directory is read."""
        file = init_settings().get("config") or env_settings().get("config")
        return (
            init_settings,
            env_settings,
            InitSettingsSource(settings_cls, _from_older_names(os.environ)),
            InitSettingsSource(settings_cls, _from_file(file)),
        )


def load(command_line: Mapping[str, object]) -> Settings:
    """Return the settings, with the values given on the command line. Raise SettingsError."""
    try:
        settings = Settings(**dict(command_line))  # type: ignore[arg-type]
    except ValidationError as error:
        raise SettingsError(_explain(error, command_line)) from None
    if not any(settings.addresses.values()):
        raise SettingsError("nothing to listen on: --stomp-addr, --http-addr and --mqks-addr are all off")
    _check_engine(settings, command_line)
    if settings.tls_cert is None and (settings.tls_key or settings.tls_client_ca):
        raise SettingsError("--tls-key and --tls-client-ca mean nothing without --tls-cert")
    for name, addresses in settings.addresses.items():
        for address in addresses:
            reason = _why_not(address, settings)
            if reason:
                raise SettingsError(f"{_origin(name, command_line)}: {reason}")
    return settings


def _why_not(address: Address, settings: Settings) -> str:
    """Return why the server must not listen at an address, or "" if it may."""
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


def _check_engine(settings: Settings, command_line: Mapping[str, object]) -> None:
    """Raise SettingsError if a setting was given that means nothing for the chosen engine."""
    given = settings.model_fields_set
    wrong = OF_THE_LOCAL_ENGINE if settings.engine is not None else OF_A_CLUSTER
    for name in wrong:
        if name == "data" and settings.users is not None:
            continue  # the audit of this gateway is kept in the data directory
        if name in given:
            other = (
                "has no meaning with --engine: the cluster keeps the messages" if settings.engine else "needs --engine"
            )
            raise SettingsError(f"{_origin(name, command_line)}: it {other}")


def warnings() -> list[str]:
    """Return a line for each environment variable of another server that has no meaning here. Values are not shown."""
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


def _from_file(file: str | Path | None) -> dict[str, Any]:
    """Return the values of the TOML file. `stomp-addr` and `stomp_addr` are the same key."""
    if not file:
        return {}
    try:
        content = tomllib.loads(Path(file).read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingsError(f"can't read the config file {file}: {error.strerror}") from None
    except ValueError as error:  # not TOML, or not UTF-8
        raise SettingsError(f"the config file {file} is not TOML: {error}") from None
    for key in content:
        if key.replace("-", "_") not in Settings.model_fields or key == "config":
            known = ", ".join(name.replace("_", "-") for name in Settings.model_fields if name != "config")
            raise SettingsError(f"unknown key {key!r} in the config file {file}; there are {known}")
    return {key.replace("-", "_"): value for key, value in content.items()}


def _explain(error: ValidationError, command_line: Mapping[str, object]) -> str:
    first = error.errors()[0]
    if first["type"] == "value_error":
        reason = str(first["ctx"]["error"])
    else:
        reason = f"bad value {first['input']!r}: {first['msg'].removeprefix('Input ')}"
    return f"{_origin(str(first['loc'][0]), command_line)}: {reason}"


def _origin(field: str, command_line: Mapping[str, object]) -> str:
    """Return the source of a field's value, by the name that the operator knows."""
    if field in command_line:
        return "--" + field.replace("_", "-")
    if (variable := ENVIRONMENT_PREFIX + field.upper()) in {name.upper() for name in os.environ}:
        return variable
    for name, (older_field, _form) in OLDER_NAMES.items():
        if older_field == field and os.environ.get(name):
            return name
    return f"{field.replace('_', '-')} in the config file"
