"""Notifications: a POST to --notification-http-endpoint for every change, with the user.

One task sends them in order, after the change; no request waits for them. Failed notifications are
logged, not repeated. If the endpoint is too slow, notifications beyond the queue limit are dropped
and logged, and so are those still queued a few seconds after nsqadmin was told to stop.
"""

import asyncio
import base64
import binascii
import os
import time

import msgspec
from starlette.requests import Request

from penstock.common.errors import HttpRequestError
from penstock.common.logs import Logger
from penstock.net.http_client.client import HttpClient
from penstock.net.http_server import to_json

__all__ = ["ChangeEvent", "Notifier", "basic_auth_user"]

# More changes than operators make in a day.
QUEUE_MAX = 1000

# Time limit for sending the queued notifications when nsqadmin stops.
FLUSH_SECONDS = 3.0


class ChangeEvent(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A change: `verb` is NSQ's name for it, such as `pause_channel`."""

    verb: str
    topic: str
    channel: str = ""
    node: str = ""
    client: str = ""  # Penstock only
    message_id: str = ""  # Penstock only


class Notifier:
    """Sends notifications to one endpoint, or nowhere if it is empty."""

    def __init__(self, endpoint: str, http: HttpClient, log: Logger) -> None:
        self._endpoint = endpoint
        self._http = http
        self._log = log
        self._queue: asyncio.Queue[bytes] = asyncio.Queue(QUEUE_MAX)
        self._sending: bytes | None = None

    def notify(self, event: ChangeEvent, request: Request) -> None:
        """Queue a notification. Never waits and never raises."""
        if not self._endpoint:
            return
        try:
            self._queue.put_nowait(to_json(_notification(event, request)))
        except asyncio.QueueFull:
            self._log.error("failed to POST notification of %s - queue is full", event.verb)

    async def run(self) -> None:
        """Send notifications until cancelled."""
        while True:
            self._sending = await self._queue.get()
            await self._post(self._sending)
            self._sending = None
            self._queue.task_done()

    async def flush(self) -> None:
        """Wait until `run` has sent everything, or drop what is left after the time limit."""
        try:
            async with asyncio.timeout(FLUSH_SECONDS):
                await self._queue.join()
        except TimeoutError:
            self._drop_unsent()

    def _drop_unsent(self) -> None:
        unsent = [] if self._sending is None else [self._sending]
        while not self._queue.empty():
            unsent.append(self._queue.get_nowait())
        for body in unsent:
            self._log.error(
                "notification dropped, endpoint did not respond in time: %s", body.decode()
            )

    async def _post(self, body: bytes) -> None:
        self._log.info("POSTing notification to %s", self._endpoint)
        headers = (("Content-Type", "application/json"),)
        try:
            reply = await self._http.fetch("POST", self._endpoint, headers=headers, body=body)
        except HttpRequestError as error:
            self._log.error("failed to POST notification - %s", error)
        else:
            if reply.status >= 400:
                self._log.error(
                    "failed to POST notification - got response status %d", reply.status
                )


def _notification(event: ChangeEvent, request: Request) -> dict[str, object]:
    """JSON object with NSQ's keys in NSQ's order. Empty values are omitted where NSQ omits them."""
    notification: dict[str, object] = {"action": event.verb, "topic": event.topic}
    if event.channel:
        notification["channel"] = event.channel
    if event.node:
        notification["node"] = event.node
    if event.client:
        notification["client"] = event.client
    if event.message_id:
        notification["message_id"] = event.message_id
    notification["timestamp"] = int(time.time())
    if user := basic_auth_user(request.headers.get("authorization", "")):
        notification["user"] = user
    return notification | {
        "remote_ip": _remote_address(request),
        "user_agent": request.headers.get("user-agent", ""),
        "url": _url(request),
        "via": os.uname().nodename,
    }


def _remote_address(request: Request) -> str:
    if request.client is None:
        return "@"
    host, port = request.client.host, request.client.port
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _url(request: Request) -> str:
    is_secure = request.url.scheme == "https" or request.headers.get("x-scheme") == "https"
    return str(request.url.replace(scheme="https" if is_secure else "http"))


def basic_auth_user(authorization: str) -> str:
    """The user of an `Authorization: Basic` header; empty if there is none."""
    scheme, _, credentials = authorization.partition(" ")
    if scheme != "Basic":
        return ""
    try:
        user, colon, _ = base64.b64decode(credentials, validate=True).decode().partition(":")
    except (binascii.Error, UnicodeDecodeError):
        return ""
    return user if colon else ""
