"""Existing NSQ clients, as they are, with our nsqd.

Each client is driven by a program of its own in `clients/`, since each has its own event loop:

    CLIENT ADDRESS publish TOPIC                  one message, two at once, one deferred by 500 ms
    CLIENT ADDRESS consume TOPIC POLICY COUNT     COUNT deliveries from its channel
    CLIENT ADDRESS relay TOPIC TOPIC COUNT        COUNT messages from one topic to another
    CLIENT HTTP-ADDRESS operate TOPIC             what its HTTP client can do, if it has one

A consuming client prints a line of JSON for each delivery: body, attempts, and when it came. It
finishes every message, save at its first delivery as the policy says: requeue (at once), defer
(requeue by 500 ms), time-out (do not answer), touch (after 700 and 1400 ms, then finish).

What it is to negotiate is in NSQ_FEATURES, as JSON: tls with the files ca, cert and key; snappy,
deflate, auth_secret.
"""

import base64
import json
import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from tests.net.tls.certificates import Authority
from tests.nsqd.auth_server import AuthServer, auth_server

from penstock.testing.nsqd import NsqdProcess, run_nsqd
from penstock.testing.waiting import wait_until

pytestmark = pytest.mark.interop

HERE = Path(__file__).parent
CLIENTS = ["pynsq", "gnsq", "ansq", "nsqjs"]

CLIENT_SECONDS = 120

# Short enough to wait for, and long enough for a client to touch in time. ansq and nsqjs ask for it
# themselves.
MSG_TIMEOUT_SECONDS = 4


class Delivery(NamedTuple):
    """What a client reports."""

    body: str
    attempts: int
    at: float


@pytest.fixture(scope="module")
def nsqd() -> Iterator[NsqdProcess]:
    with run_nsqd() as process:
        yield process


@pytest.fixture(scope="module")
def hasty_nsqd() -> Iterator[NsqdProcess]:
    """Not every client can negotiate a message timeout."""
    with run_nsqd(f"--msg-timeout={MSG_TIMEOUT_SECONDS}s") as process:
        yield process


@pytest.fixture(params=CLIENTS)
def client(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    return str(request.node.name).partition("[")[0][-30:] + f"-{time.time_ns()}"


def command_of(client: str) -> list[str]:
    """What runs a client's program."""
    if client != "nsqjs":
        return [sys.executable, str(HERE / "clients" / f"{client}_client.py")]
    node = shutil.which("node")
    if node is None:
        # Another language's tools are the machine's to have: Python developers may well have none.
        pytest.skip("nsqjs needs node, which is not installed")
    assert (HERE / "node_modules" / "nsqjs").exists(), "run npm install in tests/interop"
    return [node, str(HERE / "clients" / "nsqjs_client.js")]


def printed_by(client: str, *args: str, **features: object) -> str:
    ran = subprocess.run(
        [*command_of(client), *args],
        capture_output=True,
        text=True,
        timeout=CLIENT_SECONDS,
        check=False,
        env={**os.environ, "NSQ_FEATURES": json.dumps(features)},
    )
    assert 0 == ran.returncode, ran.stderr
    return ran.stdout


def consume(client: str, nsqd: NsqdProcess, topic: str, policy: str, count: int) -> list[Delivery]:
    lines = printed_by(client, nsqd.tcp_address, "consume", topic, policy, str(count))
    return [Delivery(**json.loads(line)) for line in lines.splitlines()]


def leaves_behind(nsqd: NsqdProcess, topic: str, **figures: int) -> bool:
    """Whether the client has gone, nothing is left, and the figures of its channel are these."""
    nothing = {"client_count": 0, "depth": 0, "in_flight_count": 0, "deferred_count": 0}
    expected = {"requeue_count": 0, "timeout_count": 0, **nothing, **figures}
    wait_until(lambda: nsqd.shows(topic, "channel", client_count=0), "the client to leave")
    shown = nsqd.stats(topic, "channel")
    assert expected == {name: shown[name] for name in expected}
    return True


def test_client_publishes(client: str, nsqd: NsqdProcess, topic: str) -> None:
    ours = nsqd.consumer(topic, "channel", rdy=10)
    printed_by(client, nsqd.tcp_address, "publish", topic)
    received = ours.messages(4)
    waited = time.time() - received[3].timestamp_ns / 1e9

    assert [b"single", b"multi-1", b"multi-2", b"deferred"] == [each.body for each in received]
    assert 0.5 <= waited


def test_client_finishes(client: str, nsqd: NsqdProcess, topic: str) -> None:
    bodies = [f"message {number}" for number in range(100)]
    nsqd.publish(topic, *(body.encode() for body in bodies))
    deliveries = consume(client, nsqd, topic, "finish", 100)

    assert [(body, 1) for body in bodies] == [(each.body, each.attempts) for each in deliveries]
    assert leaves_behind(nsqd, topic, message_count=100)


def test_client_requeues(client: str, nsqd: NsqdProcess, topic: str) -> None:
    nsqd.publish(topic, b"one", b"two", b"three")
    deliveries = consume(client, nsqd, topic, "requeue", 6)

    assert [(body, attempts) for attempts in (1, 2) for body in ("one", "three", "two")] == sorted(
        ((each.body, each.attempts) for each in deliveries), key=lambda each: (each[1], each[0])
    )
    assert leaves_behind(nsqd, topic, requeue_count=3)


def test_client_requeues_with_a_delay(client: str, nsqd: NsqdProcess, topic: str) -> None:
    nsqd.publish(topic, b"x")
    first, second = consume(client, nsqd, topic, "defer", 2)

    assert [("x", 1), ("x", 2)] == [first[:2], second[:2]]
    assert 0.49 < second.at - first.at
    assert leaves_behind(nsqd, topic, requeue_count=1)


def test_client_lets_a_message_time_out(client: str, hasty_nsqd: NsqdProcess, topic: str) -> None:
    published_at = time.time()
    hasty_nsqd.publish(topic, b"x")
    first, second = consume(client, hasty_nsqd, topic, "time-out", 2)

    assert [("x", 1), ("x", 2)] == [first[:2], second[:2]]
    assert published_at + MSG_TIMEOUT_SECONDS - 0.05 < second.at
    assert leaves_behind(hasty_nsqd, topic, timeout_count=1)


def test_client_touches(client: str, hasty_nsqd: NsqdProcess, topic: str) -> None:
    """It takes 4.8 s over a message that would time out after 4 s."""
    hasty_nsqd.publish(topic, b"x")
    deliveries = consume(client, hasty_nsqd, topic, "touch", 1)

    assert [("x", 1)] == [each[:2] for each in deliveries]
    assert leaves_behind(hasty_nsqd, topic)


def test_gnsq_operates_over_http(nsqd: NsqdProcess, topic: str) -> None:
    shown = json.loads(printed_by("gnsq", nsqd.http_address, "operate", topic))

    assert {"version": "1.3.0", "message_count": 7, "text": "nsqd v"} == shown
    received = nsqd.consumer(topic, "channel", rdy=10).messages(6)
    expected = [b"single", b"multi-1", b"multi-2", b"binary\n1", b"binary\n2", b"deferred"]
    assert expected == [message.body for message in received]


def test_ansq_operates_over_http(nsqd: NsqdProcess, topic: str) -> None:
    shown = json.loads(printed_by("ansq", nsqd.http_address, "operate", topic))

    assert {"version": "1.3.0", "message_count": 3} == shown
    received = nsqd.consumer(topic, "channel", rdy=10).messages(3)
    assert [b"single", b"multi-1", b"multi-2"] == [message.body for message in received]


# Both can do all of this; the others cannot.
SECURE_CLIENTS = ["pynsq", "nsqjs"]

SECRET = "the secret"


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def auth() -> Iterator[AuthServer]:
    everything = {"topic": ".*", "channels": [".*"], "permissions": ["publish", "subscribe"]}
    answer = {"ttl": 60, "identity": "bob", "identity_url": "", "authorizations": [everything]}
    with auth_server(answer) as server:
        yield server


@pytest.fixture(scope="module")
def strict_nsqd(authority: Authority, auth: AuthServer) -> Iterator[NsqdProcess]:
    """Serves nobody without TLS, a certificate and a secret."""
    server = authority.issue("server")
    with run_nsqd(
        f"--tls-cert={server.cert}",
        f"--tls-key={server.key}",
        f"--tls-root-ca-file={authority.root_ca}",
        "--tls-client-auth-policy=require-verify",
        "--tls-required=tcp-https",
        "--https-address=",
        f"--auth-http-address={auth.address}",
    ) as process:
        yield process


@pytest.fixture(scope="module")
def tls_nsqd(authority: Authority) -> Iterator[NsqdProcess]:
    server = authority.issue("server")
    flags = [f"--tls-cert={server.cert}", f"--tls-key={server.key}", "--https-address="]
    with run_nsqd(*flags) as process:
        yield process


def relays(client: str, nsqd: NsqdProcess, topic: str, **features: object) -> bool:
    """Whether messages, small ones and of a megabyte, get through a client there and back."""
    noise = random.Random(7).randbytes(1_000_000)
    bodies = [b"x", noise[:100], b"y" * 1_000_000, noise, b"z" * 100_000, noise[:65_536]]
    for body in bodies:
        nsqd.post(f"/pub?topic={topic}", body)
    nsqd.post(f"/topic/create?topic={topic}-out")
    printed_by(
        client, nsqd.tcp_address, "relay", topic, f"{topic}-out", str(len(bodies)), **features
    )
    wait_until(lambda: nsqd.shows(topic, "channel", depth=0, in_flight_count=0), "the last FIN")
    lines = nsqd.http("GET", f"/topic/messages?topic={topic}-out").body.splitlines()
    assert bodies == [body_of(json.loads(line)) for line in lines]
    return True


def body_of(line: dict[str, str]) -> bytes:
    return line["body"].encode() if "body" in line else base64.b64decode(line["body_base64"])


@pytest.mark.parametrize("compression", [None, "snappy", "deflate"])
@pytest.mark.parametrize("tls", [False, True])
@pytest.mark.parametrize("client", SECURE_CLIENTS)
def test_client_upgrades(
    client: str, tls: bool, compression: str | None, tls_nsqd: NsqdProcess, authority: Authority
) -> None:
    features: dict[str, object] = {"tls": True, "ca": authority.root_ca} if tls else {}
    if compression:
        features[compression] = True
    topic = f"{client}-{tls}-{compression}"

    assert relays(client, tls_nsqd, topic, **features)


@pytest.mark.parametrize("compression", ["snappy", "deflate"])
@pytest.mark.parametrize("client", SECURE_CLIENTS)
def test_client_shows_its_certificate_and_its_secret(
    client: str,
    compression: str,
    strict_nsqd: NsqdProcess,
    authority: Authority,
    auth: AuthServer,
) -> None:
    cert, key = authority.issue(client, common_name=client)
    features = {"tls": True, "ca": authority.root_ca, "cert": cert, "key": key, compression: True}

    assert relays(client, strict_nsqd, f"{client}-{compression}", **features, auth_secret=SECRET)
    expected = f"/auth?common_name={client}&remote_ip=127.0.0.1&secret=the+secret&tls=true"
    assert expected == auth.asked[-1].target


@pytest.mark.parametrize("client", SECURE_CLIENTS)
def test_client_without_a_secret_is_refused(
    client: str, strict_nsqd: NsqdProcess, authority: Authority
) -> None:
    cert, key = authority.issue(client, common_name=client)
    features = {"tls": True, "ca": authority.root_ca, "cert": cert, "key": key}

    with pytest.raises(AssertionError, match="E_AUTH_FIRST"):
        printed_by(client, strict_nsqd.tcp_address, "publish", "t", **features)
