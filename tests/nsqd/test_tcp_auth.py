"""AUTH, from a client's bytes to the auth server and back, with a running nsqd."""

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.net.tls.certificates import Authority
from tests.nsqd.auth_server import AuthServer, auth_server
from tests.nsqd.off_disk import run_nsqd_off_disk

from penstock.net.tls import client_context
from penstock.protocol import commands
from penstock.protocol.frames import ResponseFrame
from penstock.testing.nsqd import NsqdProcess, run_nsqd
from penstock.testing.raw_client import DisconnectedError, RawClient, WireError
from penstock.testing.waiting import wait_until

# Allows publishing to topics that start with `mine`, and their channel `c`.
MINE = {"topic": "^mine", "channels": ["^c?$"], "permissions": ["publish", "subscribe"]}
GOOD: dict[str, Any] = {
    "ttl": 3600,
    "identity": "bob",
    "identity_url": "http://x",
    "authorizations": [MINE],
}


@pytest.fixture(scope="module")
def server() -> Iterator[AuthServer]:
    with auth_server(GOOD) as running:
        yield running


@pytest.fixture(scope="module")
def nsqd(server: AuthServer) -> Iterator[NsqdProcess]:
    flags = ["--http-client-request-timeout=3s", "--http-client-connect-timeout=3s"]
    with run_nsqd_off_disk(f"--auth-http-address={server.address}", *flags) as process:
        yield process


@pytest.fixture(autouse=True)
def good_again(server: AuthServer) -> Iterator[None]:
    """Reset the auth server before each test."""
    yield
    server.status, server.answer = 200, GOOD
    server.is_silent = False


def authed(nsqd: NsqdProcess, secret: bytes = b"sec") -> RawClient:
    client = nsqd.connect()
    client.call(commands.auth(secret))
    return client


def refusal(client: RawClient, command: bytes) -> str:
    """The error response to a command; the connection must close after it."""
    with pytest.raises(WireError) as refused:
        client.call(command)
    assert b"" == client.read_to_end()
    return str(refused.value)


def test_identify_requires_auth_and_auth_returns_the_identity(nsqd: NsqdProcess) -> None:
    client = nsqd.connect()
    expected = b'{"identity":"bob","identity_url":"http://x","permission_count":1}'

    assert client.identify()["auth_required"] is True
    assert expected == client.call(commands.auth(b"sec"))


def test_allowed_commands_are_executed(nsqd: NsqdProcess) -> None:
    client = authed(nsqd)

    assert b"OK" == client.call(commands.pub("mine-1", b"one"))
    assert b"OK" == client.call(commands.mpub("mine-1", [b"two", b"three"]))
    assert b"OK" == client.call(commands.dpub("mine-1", 0, b"four"))
    client.subscribe("mine-1", "c", rdy=4)
    assert [b"one", b"two", b"three", b"four"] == [each.body for each in client.messages(4)]


@pytest.mark.parametrize(
    ("word", "command"),
    [
        ("PUB", commands.pub("yours", b"x")),
        ("MPUB", commands.mpub("yours", [b"x"])),
        ("DPUB", commands.dpub("yours", 0, b"x")),
        ("SUB", commands.sub("yours", "c")),
    ],
)
def test_commands_that_are_not_allowed_are_refused(
    nsqd: NsqdProcess, word: str, command: bytes
) -> None:
    channel = "c" if word == "SUB" else ""

    assert f"E_AUTH_FIRST AUTH required before {word}" == refusal(nsqd.connect(), command)
    expected = f'E_UNAUTHORIZED AUTH failed for {word} on "yours" "{channel}"'
    assert expected == refusal(authed(nsqd), command)
    topics = nsqd.http("GET", "/stats?format=json").json()["topics"]
    assert "yours" not in [topic["topic_name"] for topic in topics]


def test_a_channel_may_be_refused_although_its_topic_is_not(nsqd: NsqdProcess) -> None:
    expected = 'E_UNAUTHORIZED AUTH failed for SUB on "mine" "d"'

    assert expected == refusal(authed(nsqd), commands.sub("mine", "d"))


def test_a_client_auths_once_and_before_it_subscribes(nsqd: NsqdProcess) -> None:
    subscribed = authed(nsqd)
    subscribed.subscribe("mine-2", "c")

    assert "E_INVALID AUTH already set" == refusal(authed(nsqd), commands.auth(b"sec"))
    assert "E_INVALID cannot AUTH in current state" == refusal(subscribed, commands.auth(b"sec"))


def test_commands_behind_auth_wait_for_it(nsqd: NsqdProcess) -> None:
    client = nsqd.connect()
    client.send(commands.auth(b"sec"), commands.pub("mine-3", b"x"), commands.sub("mine-3", "c"))
    client.send(commands.rdy(1))

    assert client.response().startswith(b'{"identity":"bob"')
    assert [b"OK", b"OK"] == [client.response(), client.response()]
    assert b"x" == client.message().body


def test_the_auth_server_gets_the_secret_and_the_address(
    nsqd: NsqdProcess, server: AuthServer
) -> None:
    authed(nsqd, b"of my own")

    expected = "/auth?common_name=&remote_ip=127.0.0.1&secret=of+my+own&tls=false"
    assert expected == server.asked[-1].target
    assert "of my own" not in nsqd.log
    assert "of+my+own" not in nsqd.log


def test_a_unix_socket_has_no_address(server: AuthServer, tmp_path: Path) -> None:
    flags = [f"--auth-http-address={server.address}", f"--tcp-address={tmp_path / 'socket'}"]
    with run_nsqd(*flags) as nsqd:
        authed(nsqd)

    assert "&remote_ip=&" in server.asked[-1].target


def test_without_an_auth_server_auth_is_refused() -> None:
    with run_nsqd() as nsqd:
        client = nsqd.connect()

        assert client.identify()["auth_required"] is False
        assert "E_AUTH_DISABLED AUTH disabled" == refusal(client, commands.auth(b"sec"))


def test_stats_show_the_identity_of_a_client(nsqd: NsqdProcess) -> None:
    client = authed(nsqd)
    client.subscribe("mine-4", "c")
    (shown,) = nsqd.stats("mine-4", "c")["clients"]
    keys = list(shown)

    assert (True, "bob", "http://x") == (
        shown["authed"],
        shown["auth_identity"],
        shown["auth_identity_url"],
    )
    start = keys.index("user_agent") + 1
    assert ["authed", "auth_identity", "auth_identity_url", "topology_zone"] == keys[start:][:4]


class TestBadServers:
    @pytest.mark.parametrize(
        ("status", "answer", "expected"),
        [
            (500, GOOD, "E_AUTH_FAILED AUTH failed"),
            (403, {}, "E_AUTH_FAILED AUTH failed"),
            (200, b"nonsense", "E_AUTH_FAILED AUTH failed"),
            (200, {**GOOD, "ttl": 0}, "E_AUTH_FAILED AUTH failed"),
            (200, {**GOOD, "authorizations": []}, "E_UNAUTHORIZED AUTH no authorizations found"),
        ],
    )
    def test_a_client_is_refused_if_no_auth_server_gives_a_valid_response(
        self, nsqd: NsqdProcess, server: AuthServer, status: int, answer: object, expected: str
    ) -> None:
        server.status, server.answer = status, answer

        assert expected == refusal(nsqd.connect(), commands.auth(b"sec"))

    def test_a_hanging_auth_server_does_not_delay_other_clients(self, server: AuthServer) -> None:
        flags = [f"--auth-http-address={server.address}", "--http-client-request-timeout=100s"]
        with run_nsqd(*flags) as nsqd:
            other = authed(nsqd)
            server.is_silent = True
            waiting = [nsqd.connect() for _ in range(20)]
            asked = len(server.asked) + len(waiting)
            for client in waiting:
                client.send(commands.auth(b"sec"))
            wait_until(lambda: len(server.asked) == asked, "the server to be asked for all")

            assert b"OK" == other.call(commands.pub("mine-5", b"x"))
            assert "timed out" not in nsqd.log

    def test_clients_are_refused_after_the_timeout_of_the_auth_server(
        self, nsqd: NsqdProcess, server: AuthServer
    ) -> None:
        server.is_silent = True
        waiting = [nsqd.connect() for _ in range(20)]
        for client in waiting:
            client.send(commands.auth(b"sec"))
        for client in waiting:
            with pytest.raises(WireError, match="E_AUTH_FAILED AUTH failed"):
                client.response()

    def test_a_client_that_disconnects_during_auth_is_removed(
        self, nsqd: NsqdProcess, server: AuthServer
    ) -> None:
        server.is_silent = True
        client = nsqd.connect()
        asked = len(server.asked)
        client.send(commands.auth(b"sec"))
        wait_until(lambda: len(server.asked) > asked, "the server to be asked")
        left = nsqd.log.count("exiting ioloop")
        client.close()
        wait_until(lambda: nsqd.log.count("exiting ioloop") > left, "nsqd to notice")

        server.is_silent = False
        assert b"OK" == authed(nsqd).call(commands.pub("mine-6", b"x"))


class TestExpiry:
    """A response of the auth server is valid for its ttl, here a second; then the next command
    waits for a new one.
    """

    @pytest.fixture(autouse=True)
    def short(self, server: AuthServer) -> None:
        server.answer = {**GOOD, "ttl": 1}

    @staticmethod
    def wait_for_expiry(server: AuthServer, client: RawClient) -> None:
        """Publish until nsqd has asked the auth server again."""
        asked = len(server.asked)
        wait_until(
            lambda: client.call(commands.pub("mine", b"x")) and len(server.asked) > asked,
            "the server to be asked again",
        )

    def test_the_server_is_asked_again(self, nsqd: NsqdProcess, server: AuthServer) -> None:
        client = authed(nsqd, b"again")
        self.wait_for_expiry(server, client)

        assert "secret=again" in server.asked[-1].target

    @pytest.mark.parametrize(
        ("status", "answer", "expected"),
        [
            (500, GOOD, "E_AUTH_FAILED AUTH failed"),
            (
                200,
                {**GOOD, "authorizations": []},
                'E_UNAUTHORIZED AUTH failed for PUB on "mine-7" ""',
            ),
        ],
    )
    def test_commands_that_are_no_longer_allowed_are_refused(
        self, nsqd: NsqdProcess, server: AuthServer, status: int, answer: object, expected: str
    ) -> None:
        client = authed(nsqd)
        server.status, server.answer = status, answer

        def publish() -> str:
            try:
                client.call(commands.pub("mine-7", b"x"))
            except WireError as error:
                return str(error)
            return ""

        assert expected == wait_until(publish, "a publish to be refused")
        assert b"" == client.read_to_end()

    def test_a_subscription_survives_the_expiry(
        self, nsqd: NsqdProcess, server: AuthServer
    ) -> None:
        consumer, producer = authed(nsqd), authed(nsqd)
        consumer.subscribe("mine-8", "c", rdy=1)
        self.wait_for_expiry(server, producer)
        server.answer = {**GOOD, "authorizations": []}

        nsqd.post("/pub?topic=mine-8", b"x")
        message = consumer.message()
        consumer.send(commands.fin(message.id))

        assert b"x" == message.body
        wait_until(lambda: nsqd.shows("mine-8", "c", in_flight_count=0), "the FIN")

    def test_commands_behind_one_that_waits_keep_their_order(
        self, nsqd: NsqdProcess, server: AuthServer
    ) -> None:
        client = authed(nsqd)
        self.wait_for_expiry(server, client)
        asked = len(server.asked)
        names = [f"mine-9-{number % 7}" for number in range(300)]

        def publish_all() -> bool:
            client.send(*(commands.pub(name, b"x") for name in names), commands.nop())
            assert [b"OK"] * 300 == [client.response() for _ in range(300)]
            return len(server.asked) > asked

        wait_until(publish_all, "the server to be asked in the midst of it")


class TestHangingServer:
    """The auth server does not respond for longer than two heartbeat intervals."""

    @pytest.fixture
    def silent(self) -> Iterator[AuthServer]:
        with auth_server(GOOD) as running:
            running.is_silent = True
            yield running

    def test_a_client_that_waits_for_auth_is_not_closed_for_silence(
        self, silent: AuthServer
    ) -> None:
        """With heartbeats every two seconds, four seconds of silence would close the connection."""
        flags = [
            "--http-client-request-timeout=5s",
            "--greeting-timeout=2s",
            "--command-timeout=2s",
        ]
        with run_nsqd(f"--auth-http-address={silent.address}", *flags) as nsqd:
            client = nsqd.connect()
            client.identify(heartbeat_interval=2000)
            client.send(commands.auth(b"sec"), commands.nop())

            heartbeat = ResponseFrame(b"_heartbeat_")
            assert [heartbeat, heartbeat] == [client.next_frame(), client.next_frame()]
            with pytest.raises(WireError, match="E_AUTH_FAILED AUTH failed"):
                client.response()

    def test_nsqd_stops_without_waiting_for_it(self, silent: AuthServer) -> None:
        flags = ["--http-client-request-timeout=10m"]
        with run_nsqd(f"--auth-http-address={silent.address}", *flags) as nsqd:
            client = nsqd.connect()
            client.send(commands.auth(b"sec"))
            wait_until(lambda: silent.asked, "the server to be asked")

            nsqd.send_signal(signal.SIGTERM)
            assert 0 == nsqd.wait()


def test_over_tls_the_auth_server_gets_the_common_name(server: AuthServer, tmp_path: Path) -> None:
    """Commands between AUTH and the end of TLS are executed, although they have to wait."""
    authority = Authority(tmp_path)
    ours, bob = authority.issue("server"), authority.issue("bob", common_name="bob")
    context = client_context(root_ca=authority.root_ca, cert=bob.cert, key=bob.key)
    with run_nsqd(
        f"--auth-http-address={server.address}",
        f"--tls-cert={ours.cert}",
        f"--tls-key={ours.key}",
        f"--tls-root-ca-file={authority.root_ca}",
        "--tls-client-auth-policy=require-verify",
        "--tls-required=tcp-https",
        "--https-address=",
    ) as nsqd:
        client = nsqd.connect()
        client.upgrade(tls=context)
        client.end_tls(commands.auth(b"sec"), commands.pub("mine", b"x"))

        assert client.response().startswith(b'{"identity":"bob"')
        assert b"OK" == client.response()
        with pytest.raises(DisconnectedError):
            client.next_frame()
        expected = "/auth?common_name=bob&remote_ip=127.0.0.1&secret=sec&tls=true"
        assert expected == server.asked[-1].target


def test_clients_are_refused_if_the_auth_server_dies() -> None:
    with auth_server(GOOD) as server:
        address = server.address
    with run_nsqd(f"--auth-http-address={address}") as nsqd:
        assert "E_AUTH_FAILED AUTH failed" == refusal(nsqd.connect(), commands.auth(b"sec"))
