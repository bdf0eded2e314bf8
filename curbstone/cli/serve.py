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


Data = Annotated[str | None, _option("--data", metavar="DIR", help="The data directory. Default: ./curbstone-data")]
Engine = Annotated[
    str | None,
    _option(
        "--engine",
        metavar="URL",
        help="Keep the messages in a RabbitMQ cluster, and nothing on this machine. URL is"
        " amqp://user:password@a,b,c/vhost, or amqps://. Others can see a password on the command line: rather use"
        " CURBSTONE_ENGINE or --engine-password-file. Default: messages are kept in --data",
    ),
]
EnginePasswordFile = Annotated[
    str | None, _option("--engine-password-file", metavar="FILE", help="File with the password for the cluster")
]
EngineCa = Annotated[
    str | None,
    _option(
        "--engine-ca", metavar="FILE", help="Certificates of the authorities that signed those of an amqps:// cluster"
    ),
]
EnginePrefix = Annotated[
    str | None,
    _option("--engine-prefix", metavar="TEXT", help="The beginning of all names in the cluster. Default: cs/"),
]
Cap = Annotated[
    str | None,
    _option("--cap", "-cap", metavar="SIZE", help="The most bytes that a queue may take on disk. Default: 10MiB"),
]
Sync = Annotated[
    str | None,
    _option(
        "--sync",
        metavar="MODE",
        help="When messages are synced to disk: always (before they are confirmed), interval:MS (once in MS"
        " milliseconds) or never. Default: always",
    ),
]
StompAddr = Annotated[
    list[str] | None,
    _option(
        "--stomp-addr",
        "-addr",
        metavar="ADDRESS",
        help="Where STOMP listens: host:port, or :port for this machine only. An IPv6 address is in brackets, port 0"
        ' picks a free port, and "" turns the listener off. Write tls:// before it for TLS, and proxy:// or'
        " proxy+tls:// if a proxy that speaks the PROXY protocol connects to it. Repeatable. Default: 127.0.0.1:61613",
    ),
]
HttpAddr = Annotated[
    list[str] | None,
    _option(
        "--http-addr",
        metavar="ADDRESS",
        help="Where HTTP and WebSocket listen, in the same form. Default: 127.0.0.1:8080",
    ),
]
MqksAddr = Annotated[
    list[str] | None,
    _option("--mqks-addr", metavar="ADDRESS", help="Where MQKS listens, in the same form. Default: 127.0.0.1:25000"),
]
TlsCert = Annotated[
    str | None,
    _option(
        "--tls-cert",
        metavar="FILE",
        help="PEM file with the certificate for tls://, followed by those that lead to an authority. It is read again"
        " when it changes",
    ),
]
TlsKey = Annotated[
    str | None,
    _option(
        "--tls-key",
        metavar="FILE",
        help="PEM file with the key of the certificate, not encrypted. Default: the key is in the file of --tls-cert",
    ),
]
TlsClientCa = Annotated[
    str | None,
    _option(
        "--tls-client-ca",
        metavar="FILE",
        help="Certificates of the authorities that sign those of clients. Clients are then asked for a certificate, but"
        " may connect without one",
    ),
]
TrustedProxy = Annotated[
    list[str] | None,
    _option(
        "--trusted-proxy",
        metavar="NETWORK",
        help="Address or network of proxies that are believed when they name the client behind them: in the PROXY"
        " protocol on proxy://, and in X-Forwarded-For, X-Forwarded-Proto and Forwarded over HTTP. Repeatable."
        " Default: none",
    ),
]
MaxMessageSize = Annotated[
    str | None,
    _option("--max-message-size", metavar="SIZE", help="The largest body that a message may have. Default: 1MiB"),
]
MaxTtl = Annotated[
    str | None,
    _option(
        "--max-ttl", metavar="SECONDS", help="The longest ttl that a message may be given over HTTP. Default: 3600"
    ),
]
DefaultLimit = Annotated[
    str | None,
    _option("--default-limit", metavar="N", help="The window of a WebSocket consumer that asks for none. Default: 10"),
]
MaxCap = Annotated[
    str | None,
    _option(
        "--max-cap",
        metavar="SIZE",
        help="The largest cap that a client may give a queue. Default: 10GiB, or --cap if it is larger",
    ),
]
MaxStaged = Annotated[
    str | None,
    _option(
        "--max-staged",
        metavar="SIZE",
        help="The most bytes that all staged transactions may take. The last sixteenth is kept for users (without"
        " users: projects) that stage no more than that. Default: 1GiB",
    ),
]
MaxBuffered = Annotated[
    str | None,
    _option(
        "--max-buffered",
        metavar="SIZE",
        help="The most memory for unfinished input and unread output of all connections. A user (without users: an"
        " address) may hold a quarter of it. At least four of the largest requests. Default: 256MiB",
    ),
]
StagedTtl = Annotated[
    str | None,
    _option(
        "--staged-ttl",
        metavar="SECONDS",
        help="After how long without a call a staged transaction is dropped if it is not committed. Default: 3600",
    ),
]
MqDelay = Annotated[
    str | None,
    _option(
        "--mq-delay",
        metavar="SECONDS",
        help="After how long a message that was fetched at /mq, but not deleted, is ready again. Default: 10",
    ),
]
SingleQueue = Annotated[
    str | None, _option("--single-queue", metavar="NAME", help="Use this queue for every STOMP destination")
]
CorsOrigin = Annotated[
    list[str] | None,
    _option(
        "--cors-origin", metavar="ORIGIN", help="An origin whose pages may call over HTTP; repeatable. Default: none"
    ),
]
HttpHost = Annotated[
    list[str] | None,
    _option(
        "--http-host",
        metavar="NAME",
        help="A host name that HTTP requests may use, in addition to addresses, localhost and this machine's own name;"
        " * allows any name; repeatable. Default: none",
    ),
]
MaxConnectionsPerAddress = Annotated[
    str | None,
    _option(
        "--max-connections-per-address",
        metavar="N",
        help="The most connections from one address of another machine (with IPv6: from one /64), over all protocols"
        " together; 0 for no limit. Default: 256",
    ),
]
MetricsQueues = Annotated[
    list[str] | None,
    _option(
        "--metrics-queues",
        metavar="PATTERN",
        help="Queues that have figures of their own in /metrics, as project/queue, where * stands for any text;"
        ' repeatable. "" leaves figures of single queues out. Default: */*, and at most 1000 queues in any case',
    ),
]
Users = Annotated[
    str | None,
    _option(
        "--users",
        metavar="FILE",
        help="File that says who may do what (see docs/security.md). With it, everybody has to log in. Default:"
        " everybody on this machine may do everything",
    ),
]
Plaintext = Annotated[
    bool | None,
    typer.Option(
        "--plaintext",
        help="With --users, allow listeners without TLS that other machines can reach: behind a proxy that ends TLS, or"
        " in a trusted network",
        show_default=False,
    ),
]
Insecure = Annotated[
    bool | None,
    typer.Option(
        "--insecure",
        help="Allow listeners that other machines can reach without a login. Whoever connects may do everything",
        show_default=False,
    ),
]
LogLevel = Annotated[
    str | None,
    _option(
        "--log-level", metavar="LEVEL", help="Log from this level on: debug, info, warning or error. Default: info"
    ),
]
LogFormat = Annotated[
    str | None,
    _option("--log-format", metavar="FORMAT", help="Log as text, or as json: one object on each line. Default: text"),
]
Otlp = Annotated[
    str | None,
    _option(
        "--otlp",
        metavar="URL",
        help="Send traces to this OpenTelemetry collector by OTLP over HTTP, for example http://127.0.0.1:4318. This"
        " needs curbstone[otel]. Default: no traces",
    ),
]
Config = Annotated[
    str | None,
    _option("--config", metavar="FILE", help='TOML file with any of these options, such as stomp-addr = ":61613"'),
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
    max_buffered: MaxBuffered = None,
    mq_delay: MqDelay = None,
    single_queue: SingleQueue = None,
    cors_origin: CorsOrigin = None,
    http_host: HttpHost = None,
    metrics_queues: MetricsQueues = None,
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

    Each option can also be given as an environment variable (CURBSTONE_CAP for --cap), or as a key of the TOML file of
    --config. The command line counts before the environment, and the environment before the file. The variables PORT,
    NARCONI_MAX_MESSAGE_SIZE, NARCONI_MAX_MESSAGE_TTL and NARCONI_DEFAULT_LIMIT are used, too. NARCONI_AMQP_URI is not
    used, and a warning says so. Logs go to stderr. One line on stdout says when all listeners are open.
    """
    # The settings and the server are imported only here, because that takes a while and no other command needs them.
    # Without garbage collection it takes a tenth less. `run` turns collection on again.
    gc.disable()
    from curbstone.settings import load

    chosen = load({name: value for name, value in ctx.params.items() if value not in (None, [], ())})
    from curbstone.serve import run  # after `load`, so that a wrong setting is reported at once

    return run(chosen)
