"""Existing NSQ clients, unchanged, against our nsqd.

Each client has its own event loop, so each has its own program in `clients/`:

    CLIENT ADDRESS publish TOPIC                  one message, two at once, one deferred by 500 ms
    CLIENT ADDRESS consume TOPIC POLICY COUNT     COUNT deliveries from its channel
    CLIENT ADDRESS relay TOPIC TOPIC COUNT        COUNT messages from one topic to another
    CLIENT HTTP-ADDRESS operate TOPIC             operations of its HTTP client, if it has one

A consuming client prints a line of JSON for each delivery: body, attempts and time. It finishes
each message. POLICY changes the first delivery: requeue (at once), defer (requeue with 500 ms),
time-out (no answer), touch (six times, every 800 ms, then finish).

The variable NSQ_FEATURES contains the features to negotiate, as JSON: tls with the files ca, cert
and key; snappy, deflate, auth_secret.
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

# Long enough for a client to send TOUCH in time. ansq and nsqjs request it themselves.
MSG_TIMEOUT_SECONDS = 4


class Delivery(NamedTuple):
    """One line that a client prints."""

    body: str
    attempts: int
    at: float


@pytest.fixture(scope="module")
def nsqd() -> Iterator[NsqdProcess]:
    with run_nsqd() as process:
        yield process


@pytest.fixture(scope="module")
def hasty_nsqd() -> Iterator[NsqdProcess]:
    """Has a short message timeout, because some clients cannot negotiate one."""
    with run_nsqd(f"--msg-timeout={MSG_TIMEOUT_SECONDS}s") as process:
        yield process


@pytest.fixture(params=CLIENTS)
def client(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    return str(request.node.name).partition("[")[0][-30:] + f"-{time.time_ns()}"


def command_of(client: str) -> list[str]:
    """Command line of a client's program."""
    if client != "nsqjs":
        return [sys.executable, str(HERE / "clients" / f"{client}_client.py")]
    node = shutil.which("node")
    if node is None:
        # Optional: not every Python developer has node.
        pytest.skip("nsqjs needs node; it is not installed")
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
    """Wait until the client has disconnected; check that its channel is empty and has these
    statistics.
    """
    nothing = {"client_count": 0, "depth": 0, "in_flight_count": 0, "deferred_count": 0}
    expected = {"requeue_count": 0, "timeout_count": 0, **nothing, **figures}
    wait_until(lambda: nsqd.shows(topic, "channel", client_count=0), "the client to disconnect")
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
    """The client takes 4.8 s for a message with a timeout of 4 s."""
    hasty_nsqd.publish(topic, b"x")
    deliveries = consume(client, hasty_nsqd, topic, "touch", 1)

    assert [("x", 1)] == [each[:2] for each in deliveries]
    assert leaves_behind(hasty_nsqd, topic)


def test_gnsq_operates_over_http(nsqd: NsqdProcess, topic: str) -> None:
    shown = json.loads(printed_by("gnsq", nsqd.http_address, "operate", topic))

    assert {"version": "1.3.0", "message_count": 7, "text": "nsqd v"} == shown
    received = nsqd.consumer(topic, "channel", rdy=10).messages(6)
    bodies = [message.body for message in received]
    bodies.remove(b"deferred")  # Its place depends on when it is due.
    assert [b"single", b"multi-1", b"multi-2", b"binary\n1", b"binary\n2"] == bodies


def test_ansq_operates_over_http(nsqd: NsqdProcess, topic: str) -> None:
    shown = json.loads(printed_by("ansq", nsqd.http_address, "operate", topic))

    assert {"version": "1.3.0", "message_count": 3} == shown
    received = nsqd.consumer(topic, "channel", rdy=10).messages(3)
    assert [b"single", b"multi-1", b"multi-2"] == [message.body for message in received]


# Of the clients, only these support TLS, compression and AUTH.
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
    """Requires TLS, a client certificate and a secret."""
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
    """Relay messages of 1 byte to 1 MB through a client to a second topic, and check them."""
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
def test_client_relays_messages_with_tls_and_compression(
    client: str, tls: bool, compression: str | None, tls_nsqd: NsqdProcess, authority: Authority
) -> None:
    features: dict[str, object] = {"tls": True, "ca": authority.root_ca} if tls else {}
    if compression:
        features[compression] = True
    topic = f"{client}-{tls}-{compression}"

    assert relays(client, tls_nsqd, topic, **features)


@pytest.mark.parametrize("compression", ["snappy", "deflate"])
@pytest.mark.parametrize("client", SECURE_CLIENTS)
def test_client_authenticates_by_certificate_and_secret(
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
