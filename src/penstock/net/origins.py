"""Detection of requests that a browser sends on behalf of another web site.

A page of any site can make a visitor's browser send POSTs to hosts in the visitor's private
network. The browser identifies such requests by headers that a page cannot forge:

- `Sec-Fetch-Site`, sent over HTTPS and to localhost, says whether page and host are the same site;
- `Origin`, sent with everything but GET and HEAD, names the page's own scheme, host and port.

Programs other than browsers send neither header, and are never refused here.

A page can also come from a host name whose owner lets it resolve to our address (DNS rebinding).
The names of page and host are then equal, so only the kind of name can reveal the request: see
`is_public_name`.
"""

from collections.abc import Collection, Iterable, Mapping
from ipaddress import ip_address

__all__ = ["SAFE_METHODS", "OriginPolicy", "is_cross_site", "is_public_name"]

SAFE_METHODS = frozenset(["GET", "HEAD", "OPTIONS"])
"""Methods that change nothing."""

ANY = "*"

# Top-level domains in which the public cannot register names: RFC 6761, 6762, 8375, ICANN's list of
# 2018 and its `.internal`.
_PRIVATE_DOMAINS = frozenset(
    ["arpa", "corp", "home", "internal", "lan", "local", "localdomain", "localhost", "mail", "test"]
)


class OriginPolicy:
    """Decides which requests of browsers an API accepts."""

    def __init__(self, allowed: Iterable[str] = ()) -> None:
        """`allowed` origins are never refused; `*` stands for all."""
        self._allowed = frozenset(allowed)

    def refuses(self, method: str, headers: Mapping[bytes, bytes]) -> bool:
        """Whether a request would change something on behalf of another site."""
        if method in SAFE_METHODS or ANY in self._allowed:
            return False
        origin = _text(headers, b"origin")
        if origin is None and b"sec-fetch-site" not in headers:
            return False
        if origin in self._allowed:
            return False
        site = _text(headers, b"sec-fetch-site")
        hosts = [_text(headers, b"host"), _text(headers, b"x-forwarded-host")]
        if is_cross_site(site, origin, [host for host in hosts if host]):
            return True
        return site is None and origin is not None and _may_be_rebound(origin)


def is_cross_site(site: str | None, origin: str | None, hosts: Collection[str]) -> bool:
    """Whether a request comes from an origin other than `hosts`, which are the values of the Host
    and X-Forwarded-Host headers. `site` and `origin` are the Sec-Fetch-Site and Origin headers."""
    if site is not None:
        return site not in ("same-origin", "none")
    if origin is None:
        return False
    netloc = origin.partition("://")[2].lower()
    return netloc not in [host.lower() for host in hosts if host]


def is_public_name(host: str) -> bool:
    """Whether a host, given without its port, is a name that an attacker could register and let
    resolve to our address. IP addresses, names without a dot and names in private domains are not.
    """
    try:
        ip_address(host.strip("[]"))
    except ValueError:
        labels = host.lower().removesuffix(".").split(".")
        return len(labels) > 1 and labels[-1] not in _PRIVATE_DOMAINS
    return False


def _may_be_rebound(origin: str) -> bool:
    """Whether the page may use DNS rebinding: its origin is a public name with a port. Without a
    port, the page comes from port 80 or 443, so a reverse proxy there has forwarded the request."""
    host, colon, _ = origin.partition("://")[2].rpartition(":")
    return bool(colon) and is_public_name(host)


def _text(headers: Mapping[bytes, bytes], name: bytes) -> str | None:
    value = headers.get(name)
    return None if value is None else value.decode("latin-1")
