"""Permissions of clients to publish and subscribe, as auth servers grant them.

An `Authenticator` queries the servers of --auth-http-address without blocking the event loop. It
returns `Authorizations`, which decide without I/O until they expire; then the connection queries
again.

The errors for refused clients are here, too. They do not say why the auth servers refused; the
reason is logged.
"""

import asyncio
import random
import ssl
from dataclasses import dataclass, field
from typing import Annotated, Literal
from urllib.parse import quote_plus

import msgspec

from penstock.common.clock import SECOND_NS, Clock
from penstock.common.errors import AuthError, ConfigError, HttpRequestError, ProtocolError
from penstock.common.go_json import decode_json, to_json
from penstock.common.logs import Logger
from penstock.common.re2 import Pattern, compile_pattern
from penstock.net.http_client.client import HttpClient
from penstock.net.http_client.messages import without_secrets
from penstock.nsqd.options import NsqdOptions

__all__ = [
    "Authenticator",
    "Authorizations",
    "auth_already_set",
    "auth_disabled",
    "auth_failed",
    "auth_first",
    "no_authorizations",
    "unauthorized",
]

# Maximum size of an auth server's response: some thousand authorizations.
REPLY_BYTES_MAX = 256 * 1024

# Decisions that are cached per connection.
CACHED_DECISIONS_MAX = 4096

_JSON = ("Content-Type", "application/json")

Permission = Literal["publish", "subscribe"]


# Errors for clients. All are fatal.


def auth_disabled() -> ProtocolError:
    """The error for an AUTH while no auth server is configured."""
    return ProtocolError("E_AUTH_DISABLED", "AUTH disabled")


def auth_already_set() -> ProtocolError:
    """The error for a second AUTH."""
    return ProtocolError("E_INVALID", "AUTH already set")


def auth_failed() -> ProtocolError:
    """The error if no auth server gives a valid response."""
    return ProtocolError("E_AUTH_FAILED", "AUTH failed")


def no_authorizations() -> ProtocolError:
    """The error if the auth server grants no authorizations."""
    return ProtocolError("E_UNAUTHORIZED", "AUTH no authorizations found")


def auth_first(command: str) -> ProtocolError:
    """The error for a command sent before AUTH."""
    return ProtocolError("E_AUTH_FIRST", f"AUTH required before {command}")


def unauthorized(command: str, topic: str, channel: str = "") -> ProtocolError:
    """The error for a command for which the client has no permission."""
    return ProtocolError("E_UNAUTHORIZED", f'AUTH failed for {command} on "{topic}" "{channel}"')


# Responses of auth servers.


class _Entry(msgspec.Struct):
    topic: str | None = None
    channels: list[str | None] | None = None
    permissions: list[Permission] | None = None


class _Reply(msgspec.Struct):
    ttl: Annotated[int, msgspec.Meta(ge=1, le=2**63 - 1)]
    identity: str | None = None
    identity_url: str | None = None
    authorizations: list[_Entry] | None = None


@dataclass(frozen=True, slots=True)
class _Rule:
    """One authorization: permissions on the topics and channels that match."""

    topic: Pattern
    channels: tuple[Pattern, ...]
    permissions: frozenset[Permission]

    def allows(self, permission: Permission, topic: str, channel: str) -> bool:
        return (
            permission in self.permissions
            and self.topic.search(topic)
            and any(pattern.search(channel) for pattern in self.channels)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Authorizations:
    """The permissions of one client. Immutable, so that decisions can be cached: publishing to the
    same topic again costs one dictionary lookup.
    """

    identity: str
    identity_url: str
    ttl_seconds: int
    expires_at_ns: int  # on the steady clock
    _rules: tuple[_Rule, ...] = field(repr=False)
    _decisions: dict[tuple[str, str] | str, bool] = field(default_factory=dict, repr=False)

    @property
    def count(self) -> int:
        """Number of authorizations; with 0, nothing is allowed."""
        return len(self._rules)

    def is_expired(self, now_ns: int) -> bool:
        """Whether the servers have to be queried again."""
        return now_ns >= self.expires_at_ns

    def allows_publish(self, topic: str) -> bool:
        """Whether the client may publish to `topic`."""
        allowed = self._decisions.get(topic)
        if allowed is None:
            # nsq compat: one of the channel patterns must match the empty name.
            allowed = self._decide(topic, "publish", topic, "")
        return allowed

    def allows_subscribe(self, topic: str, channel: str) -> bool:
        """Whether the client may subscribe to `channel` of `topic`."""
        key = (topic, channel)
        allowed = self._decisions.get(key)
        return self._decide(key, "subscribe", topic, channel) if allowed is None else allowed

    def response(self) -> bytes:
        """The response to a successful AUTH."""
        return to_json(
            {
                "identity": self.identity,
                "identity_url": self.identity_url,
                "permission_count": self.count,
            }
        )

    def _decide(
        self, key: tuple[str, str] | str, permission: Permission, topic: str, channel: str
    ) -> bool:
        if len(self._decisions) >= CACHED_DECISIONS_MAX:
            self._decisions.clear()
        allowed = any(rule.allows(permission, topic, channel) for rule in self._rules)
        self._decisions[key] = allowed
        return allowed


def parse_reply(body: bytes, now_ns: int) -> Authorizations:
    """Parses the response of an auth server, received at `now_ns`. Raises ValueError."""
    reply = decode_json(body, _Reply)
    return Authorizations(
        identity=reply.identity or "",
        identity_url=reply.identity_url or "",
        ttl_seconds=reply.ttl,
        expires_at_ns=now_ns + reply.ttl * SECOND_NS,
        _rules=tuple(map(_rule, reply.authorizations or ())),
    )


def _rule(entry: _Entry) -> _Rule:
    """Raises ValueError if a regular expression is invalid."""
    return _Rule(
        compile_pattern(entry.topic or ""),
        tuple(compile_pattern(channel or "") for channel in entry.channels or ()),
        frozenset(entry.permissions or ()),
    )


# Queries.


class Authenticator:
    """Queries the auth servers of one nsqd."""

    def __init__(self, options: NsqdOptions, clock: Clock, log: Logger) -> None:
        """Raises ConfigError if the CA certificates cannot be used."""
        self._servers = tuple(map(_url, options.auth_http_addresses))
        self._posts = options.auth_http_request_method == "post"
        self._clock = clock
        self._log = log
        self._client = HttpClient(
            connect_timeout_seconds=options.http_client_connect_timeout_ns / SECOND_NS,
            request_timeout_seconds=options.http_client_request_timeout_ns / SECOND_NS,
            body_bytes_max=REPLY_BYTES_MAX,
            ssl_context=_ssl_context(options.tls_root_ca_file) if self._servers else None,
        )

    @property
    def is_enabled(self) -> bool:
        """Whether clients have to AUTH."""
        return bool(self._servers)

    async def query(
        self, secret: bytes, *, remote_ip: str, tls: bool, common_name: str = ""
    ) -> Authorizations:
        """The permissions of a client, from the first server that responds. Raises AuthError.

        `remote_ip` is empty on a unix socket; `common_name` is that of the client's certificate.
        """
        arguments = {
            "common_name": common_name.encode("utf-8", "surrogateescape"),
            "remote_ip": remote_ip.encode(),
            "secret": secret,
            "tls": b"true" if tls else b"false",
        }
        start = random.randrange(len(self._servers))  # noqa: S311 (it spreads the load)
        for server in (*self._servers[start:], *self._servers[:start]):
            try:
                return await self._query_server(server, arguments)
            except HttpRequestError as error:
                self._log.error("failed auth against %s", error)
        raise AuthError("no auth server gave a valid response")

    async def _query_server(self, server: str, arguments: dict[str, bytes]) -> Authorizations:
        if self._posts:
            body = await self._client.call(
                "POST", server, headers=[_JSON], body=_as_json(arguments)
            )
        else:
            query = "&".join(f"{name}={quote_plus(value)}" for name, value in arguments.items())
            body = await self._client.call("GET", f"{server}{'&' if '?' in server else '?'}{query}")
        # In a thread: compiling the regular expressions of an auth server can take long.
        try:
            return await asyncio.to_thread(parse_reply, body, self._clock.now_ns())
        except ValueError as error:
            raise HttpRequestError(without_secrets(server), f"invalid response: {error}") from None


def _url(address: str) -> str:
    return address if "://" in address else f"http://{address}/auth"


def _as_json(arguments: dict[str, bytes]) -> bytes:
    return to_json(
        {name: [value.decode("utf-8", "surrogateescape")] for name, value in arguments.items()}
    )


def _ssl_context(root_ca_file: str) -> ssl.SSLContext:
    """Trusts the CAs of the file, or those of the system if it is empty."""
    try:
        return ssl.create_default_context(cafile=root_ca_file or None)
    except OSError as error:
        raise ConfigError(f"--tls-root-ca-file: {error}") from error
