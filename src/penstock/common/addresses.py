"""Addresses of the form host:port, as in options and logs."""

__all__ = ["PORT_MAX", "has_port", "host_of", "is_address", "join_address"]

PORT_MAX = 65535


def is_address(text: str) -> bool:
    """Whether this is a host:port to which a client can connect."""
    host, _, port = text.rpartition(":")
    return has_port(text) and bool(host) and int(port) > 0


def has_port(text: str) -> bool:
    """Whether this is a host:port; the host may be empty and the port 0."""
    _, colon, port = text.rpartition(":")
    return bool(colon) and port.isdecimal() and int(port) <= PORT_MAX


def host_of(address: str) -> str:
    """The host of a host:port; empty for `@`, the address of a peer on a unix socket."""
    return address.rpartition(":")[0]


def join_address(host: str, port: int) -> str:
    """Returns host:port; an IPv6 address is put in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
