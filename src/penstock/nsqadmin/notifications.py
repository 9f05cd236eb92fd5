"""Tells an HTTP endpoint what was changed, and by whom.

It is told after the change, in order, by one task; no request waits for it. An endpoint that does
not answer, or says no, is logged. One that stays behind loses what exceeds the queue, and what it
has not taken soon after the end; that is logged too.
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

__all__ = ["Action", "Notifier", "basic_auth_user"]

# A busy day's changes; beyond that the endpoint has been gone for long.
WAITING_MAX = 1000

# How long an endpoint may take at the end for all that waits.
LEAVING_SECONDS = 3.0


class Action(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What was done: `verb` is one of NSQ's words for it, such as `pause_channel`."""

    verb: str
    topic: str
    channel: str = ""
    node: str = ""
    client: str = ""  # ours, as is the next
    message_id: str = ""


class Notifier:
    """Tells one endpoint; none if it is empty."""

    def __init__(self, endpoint: str, http: HttpClient, log: Logger) -> None:
        self._endpoint = endpoint
        self._http = http
        self._log = log
        self._waiting: asyncio.Queue[bytes] = asyncio.Queue(WAITING_MAX)
        self._in_hand: bytes | None = None

    def notify(self, action: Action, request: Request) -> None:
        """Never fails, and never waits."""
        if not self._endpoint:
            return
        try:
            self._waiting.put_nowait(to_json(_notification(action, request)))
        except asyncio.QueueFull:
            self._log.error("failed to POST notification of %s - too many wait", action.verb)

    async def run(self) -> None:
        """Sends what there is to send, until it is cancelled."""
        while True:
            self._in_hand = await self._waiting.get()
            await self._post(self._in_hand)
            self._in_hand = None
            self._waiting.task_done()

    async def settle(self) -> None:
        """Returns when all has been sent by `run`, or given up."""
        try:
            async with asyncio.timeout(LEAVING_SECONDS):
                await self._waiting.join()
        except TimeoutError:
            self._give_up()

    def _give_up(self) -> None:
        left = [] if self._in_hand is None else [self._in_hand]
        while not self._waiting.empty():
            left.append(self._waiting.get_nowait())
        for body in left:
            self._log.error("notification given up, not taken in time: %s", body.decode())

    async def _post(self, body: bytes) -> None:
        self._log.info("POSTing notification to %s", self._endpoint)
        headers = (("Content-Type", "application/json"),)
        try:
            reply = await self._http.fetch("POST", self._endpoint, headers=headers, body=body)
        except HttpRequestError as error:
            self._log.error("failed to POST notification - %s", error)
        else:
            if reply.status >= 400:
                self._log.error("failed to POST notification - it was answered %d", reply.status)


def _notification(action: Action, request: Request) -> dict[str, object]:
    """NSQ's keys, in NSQ's order; those that are empty are left out where NSQ does so."""
    notification: dict[str, object] = {"action": action.verb, "topic": action.topic}
    if action.channel:
        notification["channel"] = action.channel
    if action.node:
        notification["node"] = action.node
    if action.client:
        notification["client"] = action.client
    if action.message_id:
        notification["message_id"] = action.message_id
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
    """The user that `Authorization: Basic ...` names, or none."""
    scheme, _, credentials = authorization.partition(" ")
    if scheme != "Basic":
        return ""
    try:
        user, colon, _ = base64.b64decode(credentials, validate=True).decode().partition(":")
    except (binascii.Error, UnicodeDecodeError):
        return ""
    return user if colon else ""
