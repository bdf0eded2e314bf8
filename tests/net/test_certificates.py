"""The server's certificate files: what serves, and one line for what does not."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest

from curbstone.net.certificates import BadCertificate, CertificateFiles, load, readable_by_others
from tests.kit.authority import Authority, Pair


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


def refusal(*files: Path | None) -> str:
    with pytest.raises(BadCertificate) as caught:
        load(CertificateFiles(*files))  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_certificate_and_key_can_be_one_file_or_two(authority: Authority, tmp_path: Path) -> None:
    pair = authority.signed("server")
    assert load(CertificateFiles(*pair)).verify_mode == ssl.CERT_NONE
    both = tmp_path / "both.pem"
    both.write_bytes(pair.certificate.read_bytes() + pair.key.read_bytes())
    assert load(CertificateFiles(both, client_authorities=authority.file)).verify_mode == ssl.CERT_OPTIONAL


def test_context_allows_only_current_versions_and_ciphers(authority: Authority) -> None:
    context = load(CertificateFiles(*authority.signed("server")))
    assert context.minimum_version == ssl.TLSVersion.TLSv1_2
    for cipher in context.get_ciphers():
        assert cipher["aead"], cipher["name"]
        assert cipher["name"].startswith(("TLS_", "ECDHE-")), cipher["name"]
    assert context.options & ssl.OP_NO_RENEGOTIATION


def test_unusable_certificate_is_reported_with_file_and_reason(authority: Authority, tmp_path: Path) -> None:
    one, two = authority.signed("one"), authority.signed("two")
    text = tmp_path / "text.pem"
    text.write_text("no certificate")
    assert (
        refusal(one.certificate, two.key) == f"the key in {two.key} is not that of the certificate in {one.certificate}"
    )
    assert refusal(tmp_path / "none.pem") == f"can't read {tmp_path / 'none.pem'}: No such file or directory"
    assert refusal(tmp_path) == f"can't read {tmp_path}: Is a directory"
    assert refusal(text, one.key) == f"{text} and {one.key} do not contain a certificate and key in PEM"
    assert (
        refusal(one.certificate)
        == f"{one.certificate} and {one.certificate} do not contain a certificate and key in PEM"
    )
    assert refusal(*one, text) == f"{text} does not contain a certificate in PEM"
    assert "is larger than" in refusal(Path("/dev/zero"))


def test_encrypted_key_is_refused_without_prompting(authority: Authority, tmp_path: Path) -> None:
    from cryptography.hazmat.primitives import serialization

    pair = authority.signed("server")
    key = serialization.load_pem_private_key(pair.key.read_bytes(), None)
    locked = tmp_path / "locked.key"
    secret = serialization.BestAvailableEncryption(b"secret")
    locked.write_bytes(key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, secret))
    assert refusal(pair.certificate, locked).startswith("the key is encrypted")


def test_world_readable_key_is_detected(authority: Authority) -> None:
    pair: Pair = authority.signed("server")
    assert not readable_by_others(CertificateFiles(*pair))
    pair.key.chmod(0o644)
    assert readable_by_others(CertificateFiles(*pair))
