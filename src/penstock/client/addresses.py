"""Addresses of nsqds and nsqlookupds: `host:port`, or the path of a unix socket."""

from collections.abc import Iterable

from penstock.common.addresses import is_address
from penstock.common.errors import ConfigError

__all__ = ["Addresses", "host_and_port", "parse_addresses", "parse_lookupds", "parse_servers"]

Addresses = str | Iterable[str]
"""One address, or several."""


def parse_servers(nsqd: Addresses, lookupd: Addresses, user: str) -> tuple[list[str], list[str]]:
    """The nsqds, and the base URLs of the nsqlookupds, of a `user`: a producer or a consumer.
    Raises ConfigError if an address is invalid, or if there is none."""
    nsqds, lookupds = parse_addresses(nsqd), parse_lookupds(lookupd)
    if not nsqds and not lookupds:
        raise ConfigError(f"{user} without an address: pass nsqd= or lookupd=")
    return nsqds, lookupds


def parse_addresses(addresses: Addresses) -> list[str]:
    """The distinct addresses, in the order given. Raises ConfigError if one is invalid."""
    listed = [addresses] if isinstance(addresses, str) else list(addresses)
    for address in listed:
        host_and_port(address)
    return list(dict.fromkeys(listed))


def host_and_port(address: str) -> tuple[str, int] | None:
    """Host and port; None for the path of a unix socket. Raises ConfigError if invalid."""
    if address.startswith(("/", "./")):
        return None
    if not is_address(address):
        raise ConfigError(f"not an address (host:port): {address!r}")
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


def parse_lookupds(addresses: Addresses) -> list[str]:
    """Base URLs of nsqlookupds given as URLs or as host:port. Raises ConfigError."""
    listed = [addresses] if isinstance(addresses, str) else list(addresses)
    return list(dict.fromkeys(map(_lookupd_url, listed)))


def _lookupd_url(address: str) -> str:
    if "://" in address:
        return address.rstrip("/")
    host_and_port(address)
    return f"http://{address}"
