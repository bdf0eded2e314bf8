"""Who a peer is: addresses, networks, and what a client certificate says."""

from __future__ import annotations

import pytest

from curbstone.net.peer import Networks, Peer, certificate_of, plain_host


@pytest.mark.parametrize(
    ("host", "is_in"),
    [
        ("10.1.2.3", True),
        ("11.1.2.3", False),
        ("192.0.2.1", True),
        ("192.0.2.2", False),
        ("::ffff:10.1.2.3", True),
        ("2001:db8::1", True),
        ("fe80::1%eth0", False),
        ("no address", False),
        ("", False),
    ],
)
def test_address_matches_its_networks(host: str, is_in: bool) -> None:
    assert (host in Networks(["10.0.0.0/8", "192.0.2.1", "2001:db8::/32"])) is is_in
    assert host not in Networks()


@pytest.mark.parametrize("text", ["10.0.0.1/8", "10.0.0.0/33", "everybody", ""])
def test_invalid_network_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="bad network"):
        Networks([text])


def test_ipv4_is_never_written_as_ipv6() -> None:
    assert [plain_host(host) for host in ("::ffff:10.0.0.1", "::1", "10.0.0.1", "::ffff:1")] == [
        *("10.0.0.1", "::1", "10.0.0.1", "::ffff:1")
    ]
    assert [str(Peer(host, 7)) for host in ("::1", "10.0.0.1")] == ["[::1]:7", "10.0.0.1:7"]


def test_certificate_names_and_subject_are_canonical() -> None:
    found = certificate_of(
        {
            "subject": ((("countryName", "DE"),), (("organizationName", 'A, "B"+C'),), (("commonName", "#orders "),)),
            "subjectAltName": (("URI", "spiffe://example/orders"), ("DNS", "a.example"), ("email", "a@example"))
            + (("IP Address", "10.0.0.1"),),
        }
    )
    assert found.names == ("URI:spiffe://example/orders", "DNS:a.example", "EMAIL:a@example")
    assert found.subject == r"CN=\#orders\ ,O=A\, \"B\"\+C,C=DE"


def test_a_subject_with_a_part_of_two_attributes_keeps_them_together() -> None:
    fields = {"subject": ((("commonName", "a"), ("userId", "7")), (("emailAddress", "x@y"),))}
    assert certificate_of(fields).subject == "emailAddress=x@y,CN=a+UID=7"
