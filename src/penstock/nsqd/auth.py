"""Who may publish and subscribe to what: the auth servers are asked, and their word is kept.

An `Authenticator` asks the servers of --auth-http-address, without holding up anybody else, and
hands back `Authorizations`, which know no socket and no clock: they answer from memory until the
connection that they belong to finds that they have expired, and asks again.

What a refused client is told is here too, so that the connection need only raise it. It is never
told why the servers did not vouch for it: that is for our log.
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

# Of an auth server's answer: some thousand authorizations.
REPLY_BYTES_MAX = 256 * 1024

# Topics and channels that one connection's answers are remembered for.
REMEMBERED_MAX = 4096

_JSON = ("Content-Type", "application/json")

Permission = Literal["publish", "subscribe"]


# What clients are told. All of it is fatal.


def auth_disabled() -> ProtocolError:
    """AUTH came although there is no auth server to ask."""
    return ProtocolError("E_AUTH_DISABLED", "AUTH disabled")


def auth_already_set() -> ProtocolError:
    """A second AUTH came."""
    return ProtocolError("E_INVALID", "AUTH already set")


def auth_failed() -> ProtocolError:
    """No auth server gave a good answer."""
    return ProtocolError("E_AUTH_FAILED", "AUTH failed")


def no_authorizations() -> ProtocolError:
    """The answer to AUTH allows nothing at all."""
    return ProtocolError("E_UNAUTHORIZED", "AUTH no authorizations found")


def auth_first(word: str) -> ProtocolError:
    """The command `word` came before AUTH."""
    return ProtocolError("E_AUTH_FIRST", f"AUTH required before {word}")


def unauthorized(word: str, topic: str, channel: str = "") -> ProtocolError:
    """The command `word` is not allowed to this client."""
    return ProtocolError("E_UNAUTHORIZED", f'AUTH failed for {word} on "{topic}" "{channel}"')


# What the servers say.


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
    """One authorization: these permissions on what matches both."""

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
    """What an auth server has said of one client. Never changes, so that it can remember what it
    has answered: a topic that is published to again costs one look-up.
    """

    identity: str
    identity_url: str
    ttl_seconds: int
    expires_at_ns: int  # on the steady clock
    _rules: tuple[_Rule, ...] = field(repr=False)
    _remembered: dict[tuple[str, str] | str, bool] = field(default_factory=dict, repr=False)

    @property
    def count(self) -> int:
        """How many there are; none allows nothing."""
        return len(self._rules)

    def is_expired(self, now_ns: int) -> bool:
        """Whether the servers have to be asked again."""
        return now_ns >= self.expires_at_ns

    def allows_publish(self, topic: str) -> bool:
        """Whether the client may publish to `topic`."""
        allowed = self._remembered.get(topic)
        if allowed is None:
            # nsq compat: one of the channels has to match the name that is no channel's.
            allowed = self._remember(topic, "publish", topic, "")
        return allowed

    def allows_subscribe(self, topic: str, channel: str) -> bool:
        """Whether the client may subscribe to `channel` of `topic`."""
        key = (topic, channel)
        allowed = self._remembered.get(key)
        return self._remember(key, "subscribe", topic, channel) if allowed is None else allowed

    def response(self) -> bytes:
        """What the client is told when AUTH has gone well."""
        return to_json(
            {
                "identity": self.identity,
                "identity_url": self.identity_url,
                "permission_count": self.count,
            }
        )

    def _remember(
        self, key: tuple[str, str] | str, permission: Permission, topic: str, channel: str
    ) -> bool:
        if len(self._remembered) >= REMEMBERED_MAX:
            self._remembered.clear()
        allowed = any(rule.allows(permission, topic, channel) for rule in self._rules)
        self._remembered[key] = allowed
        return allowed


def parse_reply(body: bytes, now_ns: int) -> Authorizations:
    """An auth server's answer, received at `now_ns`. Raises ValueError if it is not a good one."""
    reply = decode_json(body, _Reply)
    return Authorizations(
        identity=reply.identity or "",
        identity_url=reply.identity_url or "",
        ttl_seconds=reply.ttl,
        expires_at_ns=now_ns + reply.ttl * SECOND_NS,
        _rules=tuple(map(_rule, reply.authorizations or ())),
    )


def _rule(entry: _Entry) -> _Rule:
    """Raises ValueError if an expression is none."""
    return _Rule(
        compile_pattern(entry.topic or ""),
        tuple(compile_pattern(channel or "") for channel in entry.channels or ()),
        frozenset(entry.permissions or ()),
    )


# Asking them.


class Authenticator:
    """Asks the auth servers of one nsqd."""

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
    def enabled(self) -> bool:
        """Whether clients have to AUTH."""
        return bool(self._servers)

    async def query(
        self, secret: bytes, *, remote_ip: str, tls: bool, common_name: str = ""
    ) -> Authorizations:
        """What the first server to give a good answer says of a client. Raises AuthError.

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
                return await self._ask(server, arguments)
            except HttpRequestError as error:
                self._log.error("failed auth against %s", error)
        raise AuthError("no auth server gave a good answer")

    async def _ask(self, server: str, arguments: dict[str, bytes]) -> Authorizations:
        if self._posts:
            body = await self._client.call(
                "POST", server, headers=[_JSON], body=_as_json(arguments)
            )
        else:
            query = "&".join(f"{name}={quote_plus(value)}" for name, value in arguments.items())
            body = await self._client.call("GET", f"{server}{'&' if '?' in server else '?'}{query}")
        # In a thread: nobody can say how long another's expressions take to read.
        try:
            return await asyncio.to_thread(parse_reply, body, self._clock.now_ns())
        except ValueError as error:
            raise HttpRequestError(without_secrets(server), f"unexpected answer: {error}") from None


def _url(address: str) -> str:
    return address if "://" in address else f"http://{address}/auth"


def _as_json(arguments: dict[str, bytes]) -> bytes:
    return to_json(
        {name: [value.decode("utf-8", "surrogateescape")] for name, value in arguments.items()}
    )


def _ssl_context(root_ca_file: str) -> ssl.SSLContext:
    """Trusts the CAs of the file, or without one those of the system."""
    try:
        return ssl.create_default_context(cafile=root_ca_file or None)
    except OSError as error:
        raise ConfigError(f"--tls-root-ca-file: {error}") from error
