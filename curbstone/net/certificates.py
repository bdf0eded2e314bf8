"""The server's certificate, its key, and the authorities it trusts for client certificates, loaded from files.

The files can be reloaded while the server runs. New files are tested with a handshake in memory before they are used.
Connections keep the context they started with. TLS 1.3 is allowed, and TLS 1.2 with ephemeral keys and authenticated
ciphers.
"""

from __future__ import annotations

import ssl
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

CIPHERS = "ECDHE+AESGCM:ECDHE+CHACHA20"
"""The ciphers for TLS 1.2. Those of TLS 1.3 are all of this kind."""
FILE_BYTES_MAX = 1024 * 1024


class BadCertificate(Exception):
    """The files can't be used; the text is one line with the file and the reason."""


class Contexts(Protocol):
    """Supplies the TLS context of each new connection."""

    @property
    def context(self) -> ssl.SSLContext:
        """The context for new connections."""


@dataclass(frozen=True, slots=True)
class CertificateFiles:
    """The files of a certificate, all in PEM."""

    certificate: Path
    """The server's certificate, followed by the chain up to an authority."""
    key: Path | None = None
    """The private key; None if it is in the same file as the certificate."""
    client_authorities: Path | None = None
    """The authorities that sign client certificates. With None, no client certificate is requested; otherwise one
    signed by another authority is refused."""

    @property
    def paths(self) -> Sequence[Path]:
        """The files that are set."""
        return [path for path in (self.certificate, self.key, self.client_authorities) if path is not None]


class Certificates:
    """The TLS context of the last valid version of the files."""

    def __init__(self, files: CertificateFiles) -> None:
        """Load the files; raise BadCertificate."""
        self.files = files
        self.context = load(files)
        """The context for new connections."""

    def take(self, context: ssl.SSLContext) -> None:
        """Use this context for new connections."""
        self.context = context


def load(files: CertificateFiles) -> ssl.SSLContext:
    """Return a server context made from these files; raise BadCertificate. Blocks, and may run in a thread."""
    for path in files.paths:
        _check_file(path)
    key = files.key or files.certificate
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION | ssl.OP_CIPHER_SERVER_PREFERENCE
    context.set_ciphers(CIPHERS)
    try:
        context.load_cert_chain(files.certificate, files.key, password=_no_password)
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise BadCertificate(f"the key in {key} is not that of the certificate in {files.certificate}") from None
        raise BadCertificate(f"{files.certificate} and {key} do not contain a certificate and key in PEM") from None
    if files.client_authorities is not None:
        try:
            context.load_verify_locations(files.client_authorities)
        except ssl.SSLError:
            raise BadCertificate(f"{files.client_authorities} does not contain a certificate in PEM") from None
        context.verify_mode = ssl.CERT_OPTIONAL
    _try(context, files)
    return context


def readable_by_others(files: CertificateFiles) -> bool:
    """Return whether any user of this machine may read the key."""
    return bool((files.key or files.certificate).stat().st_mode & stat.S_IROTH)


def _no_password() -> str:
    raise BadCertificate("the key is encrypted; use an unencrypted key in a file that only the server may read")


def _check_file(path: Path) -> None:
    try:
        with path.open("rb") as file:
            size = len(file.read(FILE_BYTES_MAX + 1))
    except OSError as error:
        raise BadCertificate(f"can't read {path}: {error.strerror}") from None
    if size > FILE_BYTES_MAX:
        raise BadCertificate(f"{path} is larger than {FILE_BYTES_MAX} bytes, so it is not a certificate")


def _try(context: ssl.SSLContext, files: CertificateFiles) -> None:
    """Try a handshake in memory, because some certificates load although no allowed cipher supports them."""
    any_server = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    any_server.check_hostname = False
    any_server.verify_mode = ssl.CERT_NONE
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        context.wrap_bio(to_server, to_client, server_side=True),
        any_server.wrap_bio(to_client, to_server),
    ]
    waiting = True
    try:
        for _ in range(4):
            waiting = False
            for end in reversed(ends):
                try:
                    end.do_handshake()
                except ssl.SSLWantReadError:
                    waiting = True
    except ssl.SSLError as error:
        raise BadCertificate(f"no client can use the certificate in {files.certificate}: {error.reason}") from None
    if waiting:
        raise BadCertificate(f"no client can use the certificate in {files.certificate}")
