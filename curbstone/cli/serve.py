"""`curbstone serve`: its options. `settings` defines their meaning and their rules; `serve` does the work.

An option that is not given is None, so that `settings` can tell it from one that was given the default's value.
"""

from __future__ import annotations

import gc
from typing import Annotated

import typer


def _option(*names: str, metavar: str, help: str) -> typer.models.OptionInfo:
    option = typer.Option(*names, metavar=metavar, help=help, show_default=False)
    assert isinstance(option, typer.models.OptionInfo)
    return option


Data = Annotated[str | None, _option("--data", metavar="DIR", help="Data directory. Default: ./curbstone-data")]
Engine = Annotated[
    str | None,
    _option(
        "--engine",
        metavar="URL",
        help="Keep messages in a RabbitMQ cluster and nothing here: amqp://user:password@a,b,c/vhost, or amqps://."
        " The password is better in CURBSTONE_ENGINE or a file. Default: this machine's --data",
    ),
]
EnginePasswordFile = Annotated[
    str | None, _option("--engine-password-file", metavar="FILE", help="File with the password for the cluster")
]
EngineCa = Annotated[
    str | None, _option("--engine-ca", metavar="FILE", help="Certificates that the nodes of amqps:// are checked by")
]
EnginePrefix = Annotated[
    str | None,
    _option("--engine-prefix", metavar="TEXT", help="What all names in the cluster begin with. Default: cs/"),
]
Cap = Annotated[
    str | None,
    _option("--cap", "-cap", metavar="SIZE", help="Most bytes the directory of a queue may hold. Default: 10MiB"),
]
Sync = Annotated[
    str | None,
    _option(
        "--sync",
        metavar="MODE",
        help="When a commit is made durable: always (before its confirm), interval:MS or never. Default: always",
    ),
]
StompAddr = Annotated[
    list[str] | None,
    _option(
        "--stomp-addr",
        "-addr",
        metavar="ADDRESS",
        help="host:port, :port for this machine only, or an IPv6 address in brackets; port 0 picks a free one;"
        ' "" turns the listener off. tls:// before it for TLS, proxy:// or proxy+tls:// for a proxy that speaks the'
        " PROXY protocol; repeatable. Default: 127.0.0.1:61613",
    ),
]
HttpAddr = Annotated[
    list[str] | None,
    _option("--http-addr", metavar="ADDRESS", help="HTTP and WebSocket, likewise. Default: 127.0.0.1:8080"),
]
MqksAddr = Annotated[
    list[str] | None, _option("--mqks-addr", metavar="ADDRESS", help="MQKS, likewise. Default: 127.0.0.1:25000")
]
TlsCert = Annotated[
    str | None,
    _option(
        "--tls-cert",
        metavar="FILE",
        help="Certificate for tls://, and behind it those that lead to an authority; PEM. Read again when it changes",
    ),
]
TlsKey = Annotated[
    str | None, _option("--tls-key", metavar="FILE", help="Its key, where that is not in the same file; not encrypted")
]
TlsClientCa = Annotated[
    str | None,
    _option(
        "--tls-client-ca",
        metavar="FILE",
        help="Authorities of client certificates. With it clients are asked for one, and may have none",
    ),
]
TrustedProxy = Annotated[
    list[str] | None,
    _option(
        "--trusted-proxy",
        metavar="NETWORK",
        help="Address or network of proxies that are believed when they say for whom they speak: the PROXY protocol on"
        " proxy://, and X-Forwarded-For, X-Forwarded-Proto and Forwarded over HTTP; repeatable. Default: none",
    ),
]
MaxMessageSize = Annotated[
    str | None, _option("--max-message-size", metavar="SIZE", help="Largest body of a message. Default: 1MiB")
]
MaxTtl = Annotated[
    str | None, _option("--max-ttl", metavar="SECONDS", help="Longest time to live of a message. Default: 3600")
]
DefaultLimit = Annotated[
    str | None,
    _option("--default-limit", metavar="N", help="Window of a WebSocket consumer that names none. Default: 10"),
]
MaxCap = Annotated[
    str | None,
    _option("--max-cap", metavar="SIZE", help="Largest cap that a client may give a queue. Default: 10GiB, or --cap"),
]
MaxStaged = Annotated[
    str | None,
    _option(
        "--max-staged",
        metavar="SIZE",
        help="Most that staged transactions may take; a 16th is for projects that take little. Default: 1GiB",
    ),
]
StagedTtl = Annotated[
    str | None,
    _option(
        "--staged-ttl",
        metavar="SECONDS",
        help="When a staged transaction that is not committed and not called for is dropped. Default: 3600",
    ),
]
MqDelay = Annotated[
    str | None,
    _option("--mq-delay", metavar="SECONDS", help="When a message fetched at /mq and not deleted returns. Default: 10"),
]
SingleQueue = Annotated[
    str | None, _option("--single-queue", metavar="NAME", help="Make every STOMP destination this queue")
]
CorsOrigin = Annotated[
    list[str] | None,
    _option("--cors-origin", metavar="ORIGIN", help="Origin whose pages may call over HTTP; repeatable. Default: none"),
]
HttpHost = Annotated[
    list[str] | None,
    _option(
        "--http-host",
        metavar="NAME",
        help="Name that HTTP requests may come under, beside addresses, localhost and this machine's own name;"
        " * for any; repeatable. Default: none",
    ),
]
MaxConnectionsPerAddress = Annotated[
    str | None,
    _option(
        "--max-connections-per-address",
        metavar="N",
        help="Most connections from one address of another machine (of IPv6: one /64), over all protocols; 0 for any"
        " number. Default: 256",
    ),
]
Users = Annotated[
    str | None,
    _option(
        "--users",
        metavar="FILE",
        help="Who may do what (see docs/security.md); with it everybody has to log in. Default: everybody on this"
        " machine may do everything",
    ),
]
Plaintext = Annotated[
    bool | None,
    typer.Option(
        "--plaintext",
        help="With --users, allow addresses without TLS beyond this machine: behind a proxy, or on a trusted wire",
        show_default=False,
    ),
]
Insecure = Annotated[
    bool | None,
    typer.Option(
        "--insecure",
        help="Allow addresses that other machines can reach without any login: whoever connects may do everything",
        show_default=False,
    ),
]
LogLevel = Annotated[
    str | None, _option("--log-level", metavar="LEVEL", help="debug, info, warning or error. Default: info")
]
LogFormat = Annotated[
    str | None,
    _option("--log-format", metavar="FORMAT", help="text, or json: an object a line on stderr. Default: text"),
]
Otlp = Annotated[
    str | None,
    _option(
        "--otlp",
        metavar="URL",
        help="Send traces to an OpenTelemetry collector, by OTLP over HTTP: http://127.0.0.1:4318. Needs"
        " curbstone[otel]. Default: no traces",
    ),
]
Config = Annotated[
    str | None, _option("--config", metavar="FILE", help='TOML file with any of these, as in stomp-addr = ":61613"')
]


def serve(
    ctx: typer.Context,
    data: Data = None,
    engine: Engine = None,
    engine_password_file: EnginePasswordFile = None,
    engine_ca: EngineCa = None,
    engine_prefix: EnginePrefix = None,
    cap: Cap = None,
    max_cap: MaxCap = None,
    sync: Sync = None,
    stomp_addr: StompAddr = None,
    http_addr: HttpAddr = None,
    mqks_addr: MqksAddr = None,
    max_message_size: MaxMessageSize = None,
    max_ttl: MaxTtl = None,
    default_limit: DefaultLimit = None,
    max_staged: MaxStaged = None,
    staged_ttl: StagedTtl = None,
    mq_delay: MqDelay = None,
    single_queue: SingleQueue = None,
    cors_origin: CorsOrigin = None,
    http_host: HttpHost = None,
    max_connections_per_address: MaxConnectionsPerAddress = None,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
    tls_client_ca: TlsClientCa = None,
    trusted_proxy: TrustedProxy = None,
    users: Users = None,
    plaintext: Plaintext = None,
    insecure: Insecure = None,
    log_level: LogLevel = None,
    log_format: LogFormat = None,
    otlp: Otlp = None,
    config: Config = None,
) -> int:
    """Serve queues until SIGTERM or SIGINT.

    Each option is also an environment variable (CURBSTONE_CAP for --cap) and a key of the TOML file; the command
    line wins over the environment, the environment over the file. PORT, NARCONI_MAX_MESSAGE_SIZE,
    NARCONI_MAX_MESSAGE_TTL and NARCONI_DEFAULT_LIMIT are honoured too; NARCONI_AMQP_URI is not, which a warning
    says. Logs go to stderr; one line on stdout says when everything listens.
    """
    # The settings and the server are imported only here, because that takes a while and no other command needs them.
    # Without garbage collection it takes a tenth less. `run` turns collection on again.
    gc.disable()
    from curbstone.settings import load

    chosen = load({name: value for name, value in ctx.params.items() if value not in (None, [], ())})
    from curbstone.serve import run  # after `load`, so that a wrong setting is reported at once

    return run(chosen)
