"""What an operator can set, where it comes from, and the rules it keeps.

One frozen `Settings` is made at start and handed on; nothing else reads the environment. A value is taken
from the first of: the command line, `CURBSTONE_*`, the older names `PORT` and `NARCONI_*`, the TOML file of
`--config`, the default. Whatever is wrong becomes one `SettingsError` of one line that names its source.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

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
from curbstone.logs import LogFormat

ENVIRONMENT_PREFIX = "CURBSTONE_"
LOOPBACK = "127.0.0.1"
MESSAGE_BYTES_MAX = 1 << 30
LIMIT_MAX = 100_000
LEASE_S_MAX = 7 * 86400
CONNECTIONS_MAX = 1_000_000

LISTENERS = ("stomp_addr", "http_addr", "mqks_addr")

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


class Address(NamedTuple):
    """Where a listener binds; port 0 picks a free one."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def is_loopback(self) -> bool:
        """True when only this machine can connect. A name other than localhost could be anything: False."""
        try:
            return ip_address(self.host.partition("%")[0]).is_loopback
        except ValueError:
            return self.host == "localhost"


def parse_address(text: str) -> Address | None:
    """Return the address of "host:port", "[::1]:port" or ":port" (loopback), None for ""; raise ValueError."""
    text = text.strip()
    if not text:
        return None
    host, colon, port = text.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host or "[" in host or "]" in host:
        raise ValueError(f"bad address {text!r}: write an IPv6 address in brackets, as in [::1]:8080")
    if not colon or not (port.isascii() and port.isdigit()) or int(port) > 65535:
        raise ValueError(f"bad address {text!r}: host:port, :port or [::1]:port with a port from 0 to 65535")
    return Address(host or LOOPBACK, int(port))


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


ListenAddress = Annotated[Address | None, PlainValidator(lambda value: parse_address(_text(value)))]
Size = Annotated[int, BeforeValidator(_size)]


class Settings(BaseSettings):
    """The settings of `curbstone serve`; the field names are the options', with underscores."""

    model_config = SettingsConfigDict(
        env_prefix=ENVIRONMENT_PREFIX, frozen=True, extra="forbid", enable_decoding=False, validate_default=False
    )

    config: Path | None = None
    data: Annotated[Path, BeforeValidator(_named)] = Path("curbstone-data")
    cap: Size = Field(default=10 * 1024 * 1024, ge=CAP_BYTES_MIN, le=CAP_BYTES_MAX)
    max_cap: Size = Field(default=10 * 1024 * 1024 * 1024, ge=CAP_BYTES_MIN, le=CAP_BYTES_MAX)
    sync: Annotated[SyncMode, PlainValidator(lambda value: SyncMode.parse(_text(value)))] = SyncMode()
    stomp_addr: ListenAddress = Address(LOOPBACK, 61613)
    http_addr: ListenAddress = Address(LOOPBACK, 8080)
    mqks_addr: ListenAddress = Address(LOOPBACK, 25000)
    mq_delay: float = Field(default=10, ge=0.001, le=LEASE_S_MAX, allow_inf_nan=False)
    max_message_size: Size = Field(default=1024 * 1024, ge=1, le=MESSAGE_BYTES_MAX)
    max_ttl: float = Field(default=3600, gt=0, le=SECONDS_MAX, allow_inf_nan=False)
    default_limit: int = Field(default=10, ge=1, le=LIMIT_MAX)
    max_staged: Size = Field(default=1024 * 1024 * 1024, ge=1, le=CAP_BYTES_MAX)
    staged_ttl: float = Field(default=3600, ge=1, le=SECONDS_MAX, allow_inf_nan=False)
    single_queue: str = ""
    cors_origin: Annotated[tuple[str, ...], BeforeValidator(_listed)] = ()
    http_host: Annotated[tuple[str, ...], BeforeValidator(_listed)] = ()
    max_connections_per_address: int = Field(default=256, ge=0, le=CONNECTIONS_MAX)
    insecure: bool = False
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_format: LogFormat = "text"

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

    @field_validator("*", mode="wrap")
    @classmethod
    def _engine_errors_are_bad_values(cls, value: object, handler: Any) -> object:
        """The engine's parsers raise its own errors; here they are bad values like any other. Must stay the last."""
        try:
            return handler(value)
        except CurbstoneError as error:
            raise ValueError(str(error)) from error

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Put the sources in the order the module promises; there is no .env file and no secrets directory."""
        file = init_settings().get("config") or env_settings().get("config")
        return (
            init_settings,
            env_settings,
            InitSettingsSource(settings_cls, _from_older_names(os.environ)),
            InitSettingsSource(settings_cls, _from_file(file)),
        )


def load(command_line: Mapping[str, object]) -> Settings:
    """Return the settings with what the command line gave; raise SettingsError with one line."""
    try:
        settings = Settings(**dict(command_line))  # type: ignore[arg-type]
    except ValidationError as error:
        raise SettingsError(_explain(error, command_line)) from None
    if not any(getattr(settings, name) for name in LISTENERS):
        raise SettingsError("nothing to listen on: --stomp-addr, --http-addr and --mqks-addr are all off")
    if not settings.insecure:
        for name in LISTENERS:
            address: Address | None = getattr(settings, name)
            if address is not None and not address.is_loopback:
                raise SettingsError(
                    f"{_origin(name, command_line)}: {address} can be reached from other machines and there is no"
                    " authentication yet; use a loopback address, or add --insecure if the network is trusted"
                )
    return settings


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


def _from_file(file: str | Path | None) -> dict[str, Any]:
    """Return what the TOML file says; `stomp-addr` and `stomp_addr` are the same key."""
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
    """Return where the value of `field` came from, as the operator knows it."""
    if field in command_line:
        return "--" + field.replace("_", "-")
    if (variable := ENVIRONMENT_PREFIX + field.upper()) in {name.upper() for name in os.environ}:
        return variable
    for name, (older_field, _form) in OLDER_NAMES.items():
        if older_field == field and os.environ.get(name):
            return name
    return f"{field.replace('_', '-')} in the config file"
