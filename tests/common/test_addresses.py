"""Addresses of the form host:port."""

import pytest

from penstock.common.addresses import has_port, host_of, is_address


@pytest.mark.parametrize(
    ("text", "with_port", "connectable"),
    [
        ("127.0.0.1:4150", True, True),
        ("[::1]:4150", True, True),
        ("host:65535", True, True),
        ("host:65536", False, False),
        ("host:0", True, False),
        (":8125", True, False),
        ("host", False, False),
        ("host:", False, False),
        ("host:port", False, False),
        ("", False, False),
    ],
)
def test_addresses_are_parsed_or_refused(text: str, with_port: bool, connectable: bool) -> None:
    assert (with_port, connectable) == (has_port(text), is_address(text))


@pytest.mark.parametrize(
    ("address", "host"), [("10.0.0.1:80", "10.0.0.1"), ("[::1]:80", "[::1]"), ("@", "")]
)
def test_the_host_of_a_peer_address(address: str, host: str) -> None:
    assert host == host_of(address)
