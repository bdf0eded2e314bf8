"""An authority of the test's own that signs certificates, in files of a directory of the test."""

from __future__ import annotations

import base64
import datetime
import hashlib
import ssl
from collections.abc import Sequence
from ipaddress import ip_address
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

DAY = datetime.timedelta(days=1)


class Pair(NamedTuple):
    """A certificate and its key, each in a PEM file."""

    certificate: Path
    key: Path


class Authority:
    """Its own certificate is in `file`."""

    def __init__(self, folder: Path, name: str = "authority") -> None:
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name(name)
        certificate = self._builder(self._name, self._key).add_extension(
            x509.BasicConstraints(True, None), critical=True
        )
        usage = x509.KeyUsage(False, False, False, False, False, True, True, False, False)
        signed = certificate.add_extension(usage, critical=True).sign(self._key, hashes.SHA256())
        self.file = folder / f"{name}.pem"
        self.file.write_bytes(signed.public_bytes(serialization.Encoding.PEM))

    def signed(self, name: str, names: Sequence[str] = ("IP:127.0.0.1", "IP:::1", "DNS:localhost")) -> Pair:
        """Sign a certificate whose subject is `name`, with these alternative names, in files of that name."""
        key = ec.generate_private_key(ec.SECP256R1())
        builder = self._builder(_name(name), key)
        if names:
            builder = builder.add_extension(
                x509.SubjectAlternativeName([_general(text) for text in names]), critical=False
            )
        signed = builder.sign(self._key, hashes.SHA256())
        pair = Pair(self._folder / f"{name}.pem", self._folder / f"{name}.key")
        pair.certificate.write_bytes(signed.public_bytes(serialization.Encoding.PEM))
        plain = serialization.NoEncryption()
        pair.key.touch(0o600)
        pair.key.write_bytes(key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain))
        return pair

    def client(self, pair: Pair | None = None) -> ssl.SSLContext:
        """Return the context of a client that trusts this authority, with a certificate of its own if given."""
        context = ssl.create_default_context(cafile=str(self.file))
        if pair is not None:
            context.load_cert_chain(*pair)
        return context

    def _builder(self, subject: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
        now = datetime.datetime.now(datetime.UTC)
        builder = x509.CertificateBuilder().subject_name(subject).issuer_name(self._name)
        builder = builder.public_key(key.public_key()).serial_number(x509.random_serial_number())
        return builder.not_valid_before(now - DAY).not_valid_after(now + DAY)


def trust_flag(certificate: Path) -> str:
    """Return the flag that makes Chromium trust this certificate: it does not know the authority of a test."""
    key = x509.load_pem_x509_certificate(certificate.read_bytes()).public_key()
    known = key.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    digest = base64.b64encode(hashlib.sha256(known).digest()).decode()
    return f"--ignore-certificate-errors-spki-list={digest}"


def _name(text: str) -> x509.Name:
    parts = [(NameOID.ORGANIZATION_NAME, "Example"), (NameOID.COMMON_NAME, text)]
    return x509.Name([x509.NameAttribute(kind, value) for kind, value in parts])


def _general(text: str) -> x509.GeneralName:
    kind, _, value = text.partition(":")
    match kind:
        case "IP":
            return x509.IPAddress(ip_address(value))
        case "DNS":
            return x509.DNSName(value)
        case "URI":
            return x509.UniformResourceIdentifier(value)
        case _:
            return x509.RFC822Name(value)
