"""Client of etcd's v3 API, through its JSON gateway. No knowledge of replication.

    client = EtcdClient(EtcdConfig(("http://127.0.0.1:2379",)))
    found = await client.read_prefix("/penstock/shop/")
    async with client.watch_prefix("/penstock/shop/", found.header.revision + 1) as watch:
        events = await watch.receive(seconds=5)

Keys are text, values are bytes. Each request is sent once, to the current endpoint, and fails with
an `EtcdError`. The exception are requests that etcd rejects because the token of the client has
expired: they were not executed, and are repeated with a new token.

etcd up to 3.3 has the gateway under another path and is not supported.
"""

import asyncio
import base64
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Literal, TypeVar
from urllib.parse import urlsplit

import msgspec

from penstock.common.errors import EtcdError, HttpRequestError, ReplicationError
from penstock.net.http_client.client import HttpClient, ResponseStream
from penstock.net.http_client.messages import Headers, HttpReply, HttpTarget, without_secrets

__all__ = [
    "EtcdClient",
    "EtcdConfig",
    "EtcdWatch",
    "KeyEvent",
    "KeyValue",
    "LeaseExpiredError",
    "RangeResponse",
    "ResponseHeader",
]

T = TypeVar("T")

# Far above the few keys of a cluster; protects from a server that is not an etcd.
RESPONSE_BYTES_MAX = 16 << 20

# Codes of gRPC in error responses.
_NOT_FOUND = 5
_PERMISSION_DENIED = 7
_UNAUTHENTICATED = 16

_USER_REQUIRED = "user name is empty"
_WRONG_PASSWORD = "authentication failed"  # noqa: S105 (a text of etcd)
_AUTH_DISABLED = "authentication is not enabled"
_OLD_TOKENS = ("invalid auth token", "revision of auth store is old")


class LeaseExpiredError(EtcdError):
    """The lease that a request names does not exist any more; the request was not executed."""


@dataclass(frozen=True, slots=True)
class EtcdConfig:
    """Endpoints and credentials of etcd."""

    endpoints: tuple[str, ...]
    """URLs of the servers, such as http://10.0.0.1:2379."""
    user: str = ""
    password: str = field(default="", repr=False)
    tls: ssl.SSLContext | None = field(default=None, repr=False)
    """For https:// endpoints; by default the system's CAs are trusted."""
    request_timeout_seconds: float = 2.0

    def __post_init__(self) -> None:
        """Raises ReplicationError if an endpoint is invalid."""
        if not self.endpoints:
            raise ReplicationError("no endpoint of etcd is given")
        for endpoint in self.endpoints:
            _check_endpoint(endpoint)


# Responses. The gateway writes 64-bit numbers as strings, and leaves out zeros.


class ResponseHeader(msgspec.Struct):
    cluster_id: str
    revision: int = 0


class KeyValue(msgspec.Struct):
    raw_key: bytes = msgspec.field(name="key")
    mod_revision: int = 0
    value: bytes = b""
    lease: int = 0

    @property
    def key(self) -> str:
        return self.raw_key.decode("utf-8", "replace")


class RangeResponse(msgspec.Struct):
    header: ResponseHeader
    kvs: list[KeyValue] = []


class KeyEvent(msgspec.Struct):
    """A change of a key. After DELETE, `kv` has only the key and the revision of the deletion."""

    kv: KeyValue
    type: Literal["PUT", "DELETE"] = "PUT"


class _TxnResponse(msgspec.Struct):
    header: ResponseHeader
    succeeded: bool = False


class _LeaseResponse(msgspec.Struct):
    header: ResponseHeader
    id: int = msgspec.field(name="ID", default=0)
    ttl: int = msgspec.field(name="TTL", default=0)


class _RevokeResponse(msgspec.Struct):
    header: ResponseHeader


class _TokenResponse(msgspec.Struct):
    header: ResponseHeader
    token: str


class _WatchResponse(msgspec.Struct):
    header: ResponseHeader
    events: list[KeyEvent] = []
    canceled: bool = False
    cancel_reason: str = ""
    compact_revision: int = 0


class _StreamError(msgspec.Struct):
    message: str


class _KeepAliveItem(msgspec.Struct):
    result: _LeaseResponse | None = None
    error: _StreamError | None = None


class _WatchItem(msgspec.Struct):
    result: _WatchResponse | None = None
    error: _StreamError | None = None


class _ErrorResponse(msgspec.Struct):
    message: str
    code: int


class _VersionResponse(msgspec.Struct):
    etcdserver: str


class EtcdClient:
    """Sends requests to the current endpoint; the caller selects another one after a failure."""

    def __init__(self, config: EtcdConfig) -> None:
        self._config = config
        self._index = 0
        self._token: str | None = None  # None: not requested yet. "": etcd has no authentication.
        self._http = HttpClient(
            connect_timeout_seconds=config.request_timeout_seconds,
            request_timeout_seconds=config.request_timeout_seconds,
            body_bytes_max=RESPONSE_BYTES_MAX,
            ssl_context=config.tls,
            keep_alive=True,
        )

    @property
    def endpoint(self) -> str:
        """URL of the current endpoint, without a slash at its end."""
        return self._config.endpoints[self._index].rstrip("/")

    def use_next_endpoint(self) -> None:
        self._index = (self._index + 1) % len(self._config.endpoints)

    def close(self) -> None:
        """Close the idle connections."""
        self._http.close()

    # Keys.

    async def read_prefix(self, prefix: str) -> RangeResponse:
        """All keys that start with `prefix`, as they are now. Raises EtcdError."""
        request = {"key": _encode(prefix), "range_end": _encode(_prefix_end(prefix))}
        return await self._call("/v3/kv/range", request, RangeResponse, resource=prefix)

    async def read_prefix_anywhere(self, prefix: str) -> RangeResponse:
        """Like `read_prefix`; tries all endpoints, and stays with the first that answers. Raises
        EtcdError, with the reason of each endpoint."""
        reasons = []
        for _ in self._config.endpoints:
            try:
                return await self.read_prefix(prefix)
            except EtcdError as error:
                if error.is_permanent:
                    raise
                reasons.append(str(error))
                self.use_next_endpoint()
        raise EtcdError("; ".join(reasons))

    async def read_key(self, key: str) -> KeyValue | None:
        """The value of a key; None if the key does not exist. Raises EtcdError."""
        found = await self._call("/v3/kv/range", {"key": _encode(key)}, RangeResponse, resource=key)
        return found.kvs[0] if found.kvs else None

    async def swap(
        self, key: str, value: bytes, *, expected_mod_revision: int, lease: int = 0
    ) -> bool:
        """Store a value if the key still has this revision; 0 expects that the key does not exist.
        Returns whether the value was stored. Raises EtcdError, in which case the value may be
        stored or not, and LeaseExpiredError."""
        encoded = _encode(key)
        request = {
            "compare": [
                {
                    "key": encoded,
                    "target": "MOD",
                    "result": "EQUAL",
                    "mod_revision": str(expected_mod_revision),
                }
            ],
            "success": [
                {
                    "request_put": {
                        "key": encoded,
                        "value": base64.b64encode(value).decode(),
                        "lease": str(lease),
                    }
                }
            ],
        }
        answer = await self._call("/v3/kv/txn", request, _TxnResponse, resource=key)
        return answer.succeeded

    # Leases.

    async def grant_lease(self, seconds: int) -> int:
        """Returns the id of a new lease. Raises EtcdError."""
        answer = await self._call("/v3/lease/grant", {"TTL": str(seconds)}, _LeaseResponse)
        return answer.id

    async def keep_lease_alive(self, lease: int) -> bool:
        """Extend a lease by its whole time. Returns whether it still exists. Raises EtcdError."""
        answer = await self._call("/v3/lease/keepalive", {"ID": str(lease)}, _KeepAliveItem)
        if answer.result is None:
            reason = answer.error.message if answer.error else "the response is empty"
            raise EtcdError(f"etcd at {self.endpoint}: {reason}")
        return answer.result.ttl > 0

    async def revoke_lease(self, lease: int) -> None:
        """Delete a lease and its keys. Raises EtcdError, and LeaseExpiredError."""
        await self._call("/v3/lease/revoke", {"ID": str(lease)}, _RevokeResponse)

    # Watch.

    @asynccontextmanager
    async def watch_prefix(self, prefix: str, start_revision: int) -> AsyncIterator["EtcdWatch"]:
        """Watch all changes of keys that start with `prefix`, from a revision on. Raises
        EtcdError."""
        endpoint = self.endpoint
        create = {
            "key": _encode(prefix),
            "range_end": _encode(_prefix_end(prefix)),
            "start_revision": str(start_revision),
        }
        body = msgspec.json.encode({"create_request": create})
        url = f"{endpoint}/v3/watch"
        try:
            headers = await self._authorization(endpoint)
            async with self._http.stream("POST", url, headers=headers, body=body) as stream:
                if stream.status != 200:
                    reply = HttpReply(stream.status, {}, await stream.read())
                    raise await self._failure(endpoint, reply, prefix)
                yield EtcdWatch(endpoint, stream)
        except HttpRequestError as error:
            raise _unreachable(endpoint, error) from None

    # Internal.

    async def _call(
        self, path: str, request: Mapping[str, object], type: type[T], *, resource: str = ""
    ) -> T:
        """Send a request to the current endpoint. `resource` names the keys in the error for denied
        access."""
        endpoint = self.endpoint
        try:
            reply = await self._post(endpoint, path, request, await self._authorization(endpoint))
            if self._config.user and _needs_new_token(reply):
                self._token = None
                headers = await self._authorization(endpoint)
                reply = await self._post(endpoint, path, request, headers)
            if reply.status != 200:
                raise await self._failure(endpoint, reply, resource)
        except HttpRequestError as error:
            raise _unreachable(endpoint, error) from None
        return _decode(endpoint, reply.body, type)

    async def _authorization(self, endpoint: str) -> Headers:
        if not self._config.user:
            return ()
        if self._token is None:
            self._token = await self._authenticate(endpoint)
        return (("Authorization", self._token),) if self._token else ()

    async def _authenticate(self, endpoint: str) -> str:
        """Log in to etcd and return a token; empty if etcd has no authentication."""
        request = {"name": self._config.user, "password": self._config.password}
        reply = await self._post(endpoint, "/v3/auth/authenticate", request, ())
        if reply.status == 200:
            return _decode(endpoint, reply.body, _TokenResponse).token
        if _AUTH_DISABLED in _error_response(reply).message:
            return ""
        raise await self._failure(endpoint, reply, "")

    async def _post(
        self, endpoint: str, path: str, request: Mapping[str, object], headers: Headers
    ) -> HttpReply:
        """Send a request as JSON. Raises HttpRequestError."""
        body = msgspec.json.encode(request)
        return await self._http.fetch("POST", endpoint + path, headers=headers, body=body)

    async def _failure(self, endpoint: str, reply: HttpReply, resource: str) -> EtcdError:
        """The error that describes a reply whose status is not 200."""
        error = _error_response(reply)
        name = self._config.user
        if not error.message:
            return await self._foreign_reply(endpoint, reply)
        if _USER_REQUIRED in error.message:
            return EtcdError(
                f"etcd at {endpoint} requires a user and a password", is_permanent=True
            )
        if _WRONG_PASSWORD in error.message:
            text = f"etcd at {endpoint} rejects the user {name!r} or the password"
            return EtcdError(text, is_permanent=True)
        if error.code == _PERMISSION_DENIED:
            text = (
                f"etcd at {endpoint} denies the user {name!r} the access to {resource or 'leases'}"
            )
            return EtcdError(text, is_permanent=True)
        if error.code == _NOT_FOUND and "lease" in error.message:
            return LeaseExpiredError(f"etcd at {endpoint}: {error.message}")
        return EtcdError(f"etcd at {endpoint}: {error.message}")

    async def _foreign_reply(self, endpoint: str, reply: HttpReply) -> EtcdError:
        """The error for a reply that no supported etcd gives. Raises HttpRequestError."""
        version = await self._http.fetch("GET", f"{endpoint}/version")
        try:
            found = msgspec.json.decode(version.body, type=_VersionResponse).etcdserver
        except msgspec.MsgspecError:
            return EtcdError(f"{endpoint} is not an etcd: it answers with HTTP {reply.status}")
        if reply.status != 404:
            return EtcdError(f"etcd at {endpoint} answers with HTTP {reply.status}")
        return EtcdError(
            f"etcd {found} at {endpoint} has no JSON gateway under /v3: use etcd 3.4 or later, "
            "with the gateway enabled"
        )


class EtcdWatch:
    """A running watch."""

    def __init__(self, endpoint: str, stream: ResponseStream) -> None:
        self._endpoint = endpoint
        self._stream = stream
        self._unparsed = b""

    async def receive(self, *, seconds: float) -> list[KeyEvent]:
        """The next changes, in order; empty if there were none for `seconds`. Raises EtcdError."""
        try:
            async with asyncio.timeout(seconds):
                data = await self._stream.read()
        except TimeoutError:
            return []
        except HttpRequestError as error:
            raise _unreachable(self._endpoint, error) from None
        if not data:
            raise EtcdError(f"etcd at {self._endpoint} ended the watch")
        *lines, self._unparsed = (self._unparsed + data).split(b"\n")
        if len(self._unparsed) > RESPONSE_BYTES_MAX:
            raise EtcdError(
                f"{self._endpoint} is not an etcd: a response to /v3/watch is too large"
            )
        return [event for line in lines if line for event in self._parse(line)]

    def _parse(self, line: bytes) -> list[KeyEvent]:
        item = _decode(self._endpoint, line, _WatchItem)
        if item.result is None:
            reason = item.error.message if item.error else "the response is empty"
        elif item.result.compact_revision:
            reason = f"revisions before {item.result.compact_revision} are compacted"
        elif item.result.canceled:
            reason = item.result.cancel_reason or "no reason is given"
        else:
            return item.result.events
        raise EtcdError(f"etcd at {self._endpoint} ended the watch: {reason}")


def _check_endpoint(endpoint: str) -> None:
    shown = without_secrets(endpoint)
    try:
        HttpTarget(endpoint)
    except HttpRequestError as error:
        raise ReplicationError(f"invalid endpoint of etcd: {error}") from None
    parts = urlsplit(endpoint)
    if parts.username is not None:
        raise ReplicationError(f"invalid endpoint of etcd: {shown}: give user and password apart")
    if parts.path.strip("/") or parts.query:
        raise ReplicationError(f"invalid endpoint of etcd: {shown}: only host and port are allowed")


def _encode(key: str) -> str:
    return base64.b64encode(key.encode()).decode()


def _prefix_end(prefix: str) -> str:
    """The first key after all keys with this prefix. The last character must be ASCII."""
    return prefix[:-1] + chr(ord(prefix[-1]) + 1)


def _unreachable(endpoint: str, error: HttpRequestError) -> EtcdError:
    return EtcdError(f"cannot reach etcd at {endpoint}: {error.reason}")


def _error_response(reply: HttpReply) -> _ErrorResponse:
    """The error in a reply of etcd; its message is empty if the reply contains no such error."""
    try:
        return msgspec.json.decode(reply.body, type=_ErrorResponse)
    except msgspec.MsgspecError:
        return _ErrorResponse("", 0)


def _needs_new_token(reply: HttpReply) -> bool:
    if reply.status == 200:
        return False
    error = _error_response(reply)
    is_old = error.code == _UNAUTHENTICATED or any(text in error.message for text in _OLD_TOKENS)
    return is_old or _USER_REQUIRED in error.message


def _decode(endpoint: str, data: bytes, type: type[T]) -> T:
    """Decode the JSON of a response. Raises EtcdError if it is invalid."""
    try:
        # Not strict: numbers are strings.
        return msgspec.json.decode(data, type=type, strict=False)
    except msgspec.MsgspecError as error:
        raise EtcdError(f"{endpoint} is not an etcd: unexpected response: {error}") from None
