"""The address of a cluster, such as `amqp://user:password@a,b:5673,c/vhost`, parsed. Pure."""

from __future__ import annotations

from typing import NamedTuple
from urllib.parse import unquote

from curbstone.core.errors import BadRequest

_PORTS = {"amqp": 5672, "amqps": 5671}


class Address(NamedTuple):
    """The nodes of a cluster, and how to log in."""

    nodes: tuple[tuple[str, int], ...]
    user: str
    password: str
    vhost: str
    is_tls: bool
    ca: str | None = None

    def __str__(self) -> str:
        """Return the URL without the password."""
        scheme = "amqps" if self.is_tls else "amqp"
        hosts = ",".join(f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in self.nodes)
        return f"{scheme}://{self.user}@{hosts}/{self.vhost}"


def parse(url: str, password: str = "", ca: str | None = None) -> Address:
    """Return the address in a URL. Raise BadRequest if it is malformed; its text never shows a password."""
    scheme, separator, rest = url.partition("://")
    if scheme not in _PORTS or not separator:
        raise BadRequest("bad engine: amqp://user:password@host,host:port/vhost, or amqps://…")
    if ca is not None and scheme == "amqp":
        raise BadRequest("a CA for the engine needs amqps://")
    front, slash, vhost = rest.partition("/")
    login, _, hosts = front.rpartition("@")
    user, _, given = login.partition(":")
    nodes = tuple(_node(text.strip(), _PORTS[scheme]) for text in hosts.split(","))
    return Address(
        nodes,
        unquote(user) or "guest",
        password or unquote(given) or "guest",
        unquote(vhost) if slash and vhost else "/",
        scheme == "amqps",
        ca,
    )


def _node(text: str, default_port: int) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if not colon or text.endswith("]"):
        host, port = text, str(default_port)
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    if not host or "[" in host or "]" in host or not (port.isascii() and port.isdigit()) or not 0 < int(port) < 65536:
        raise BadRequest(f"bad engine: {text[:80]!r} is not a node; host, host:port or [::1]:port, with commas between")
    return host, int(port)
