"""Registration with one nsqlookupd, and recovery from failed connections."""

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any, TypeAlias

import pytest
import uvloop
from tests.broker.fakes import Host
from tests.nsqd import scripted_lookupd as script
from tests.nsqd.scripted_lookupd import ScriptedLookupd, scripted_lookupd

from penstock.common.logs import Logger
from penstock.nsqd import lookup_peer
from penstock.nsqd.lookup_peer import LookupdInfo, LookupdPeer
from penstock.protocol import lookup_v1
from penstock.protocol.lookup_v1 import Event, IdentifyPeer, NsqdInfo, Ping, Register, Unregister
from penstock.testing.addresses import reserved_address

US = NsqdInfo(broadcast_address="n1.example", tcp_port=4150, http_port=4151, version="1.3.0")
IDENTITY = {
    "broadcast_address": "n1.example",
    "tcp_port": 4150,
    "http_port": 4151,
    "version": "1.3.0",
}

Change: TypeAlias = Callable[[Host], object]


class Registrant:
    """A LookupdPeer of a broker in memory, on its own loop."""

    def __init__(self, address: str, **options: Any) -> None:
        self.host = Host()
        self.logged: list[str] = []
        self._loop = uvloop.new_event_loop()
        self._address = address
        self._options = options

    def start(self) -> None:
        self.run(self._connect())

    async def _connect(self) -> None:
        log = Logger("", write=self.logged.append)
        self.peer = LookupdPeer(
            self._address,
            lambda: IDENTITY,
            lambda: self.host.broker.topics,
            log,
            **{"check_node_id": lambda *_, **__: None} | self._options,
        )

    def run(self, work: Coroutine[Any, Any, None]) -> None:
        self._loop.run_until_complete(work)

    def serve_until(self, probe: Callable[[], object], *, seconds: float = 60) -> None:
        """Runs the loop until a condition holds."""

        async def poll() -> None:
            async with asyncio.timeout(seconds):
                while not probe():  # noqa: ASYNC110 (it looks at another thread)
                    await asyncio.sleep(0.002)

        self.run(poll())

    def change(self, change: Change, topic: str = "t") -> None:
        change(self.host)
        self.peer.topic_changed(topic)

    def close(self) -> None:
        self.run(self.peer.close())
        self._loop.close()


@contextmanager
def registrant(
    address: str, *, change: Change | None = None, **options: Any
) -> Iterator[Registrant]:
    """`change` prepares the broker before the peer is created."""
    ours = Registrant(address, **options)
    if change:
        change(ours.host)
    ours.start()
    try:
        yield ours
    finally:
        ours.close()


@pytest.fixture
def lookupd() -> Iterator[ScriptedLookupd]:
    with scripted_lookupd() as server:
        yield server


def take(ours: Registrant, lookupd: ScriptedLookupd, count: int) -> list[Event]:
    """The commands that nsqlookupd has received, once there are this many."""
    ours.serve_until(lambda: len(lookupd.heard) >= count)
    return lookupd.take()


def test_everything_is_registered_at_the_start(lookupd: ScriptedLookupd) -> None:
    def make(host: Host) -> None:
        host.channel("t", "c")
        host.channel("t", "d#ephemeral")
        host.broker.topic("u#ephemeral")

    with registrant(lookupd.address, change=make) as ours:
        assert [
            IdentifyPeer(US),
            Register("t"),
            Register("t", "c"),
            Register("t", "d#ephemeral"),
            Register("u#ephemeral"),
        ] == take(ours, lookupd, 5)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda host: host.channel("t", "new"), [Register("t", "new")]),
        (lambda host: host.channel("t", "x#ephemeral"), [Register("t", "x#ephemeral")]),
        (lambda host: host.broker.topics["t"].delete_channel("c"), [Unregister("t", "c")]),
        (
            lambda host: host.broker.delete_topic("t"),
            [Unregister("t", "d"), Unregister("t", "c"), Unregister("t")],
        ),
        (
            lambda host: (host.broker.topics["t"].delete_channel("c"), host.channel("t", "c")),
            [Unregister("t", "c"), Register("t", "c")],
        ),
        (
            lambda host: (host.broker.delete_topic("t"), host.channel("t", "c")),
            [
                Unregister("t", "d"),
                Unregister("t", "c"),
                Unregister("t"),
                Register("t"),
                Register("t", "c"),
            ],
        ),
        (lambda host: (host.channel("t", "x"), host.broker.topics["t"].delete_channel("x")), []),
    ],
    ids=[
        "channel made",
        "ephemeral channel made",
        "channel deleted",
        "topic deleted",
        "channel made again",
        "topic made again",
        "channel made and deleted",
    ],
)
def test_only_changes_are_sent(
    lookupd: ScriptedLookupd, change: Change, expected: list[Event]
) -> None:
    def make(host: Host) -> None:
        for name in ("c", "d"):
            host.channel("t", name)
        host.broker.topic("other")

    with registrant(lookupd.address, change=make) as ours:
        take(ours, lookupd, 5)
        ours.change(change)
        ours.change(lambda host: host.broker.topic("last"), "last")

        assert [*expected, Register("last")] == take(ours, lookupd, len(expected) + 1)


def test_many_topics_are_registered_in_portions(lookupd: ScriptedLookupd) -> None:
    def make(host: Host) -> None:
        for number in range(1300):
            host.broker.topic(f"t{number}#ephemeral")

    with registrant(lookupd.address, change=make) as ours:
        heard = take(ours, lookupd, 1301)

    assert [Register(f"t{number}#ephemeral") for number in range(1300)] == heard[1:]


def test_pings_are_in_time_during_many_changes(lookupd: ScriptedLookupd) -> None:
    with registrant(lookupd.address, ping_seconds=0.1) as ours:
        names = iter(range(1_000_000))

        def goes_on_changing() -> bool:
            name = f"t{next(names)}#ephemeral"
            ours.change(lambda host: host.broker.topic(name), name)
            return lookupd.heard.count(Ping()) >= 3

        begun_at = time.monotonic()
        ours.serve_until(goes_on_changing)

    assert 0.3 <= time.monotonic() - begun_at


def test_an_idle_connection_sends_pings(lookupd: ScriptedLookupd) -> None:
    with registrant(lookupd.address, ping_seconds=0.05) as ours:
        assert [IdentifyPeer(US), Ping(), Ping()] == take(ours, lookupd, 3)[:3]


class TestDraining:
    def test_is_sent_at_once(self, lookupd: ScriptedLookupd) -> None:
        with registrant(lookupd.address, ping_seconds=3600) as ours:
            take(ours, lookupd, 1)
            ours.peer.drain()

            assert [Ping(draining=True)] == take(ours, lookupd, 1)

    def test_is_sent_with_every_ping(self, lookupd: ScriptedLookupd) -> None:
        with registrant(lookupd.address, ping_seconds=0.05) as ours:
            ours.peer.drain()

            told = take(ours, lookupd, 4)
            assert [Ping(draining=True)] * 3 == told[-3:]

    def test_is_sent_first_on_a_new_connection(self, lookupd: ScriptedLookupd) -> None:
        def make(host: Host) -> None:
            host.broker.topic("t")

        with registrant(lookupd.address, change=make, draining=True) as ours:
            assert [IdentifyPeer(US), Ping(draining=True), Register("t")] == take(ours, lookupd, 3)


class TestFailures:
    @pytest.mark.parametrize(
        ("answer", "reason"),
        [
            (lambda _: lookup_v1.response(b"E_INVALID no"), "E_INVALID no"),
            (lambda _: lookup_v1.response(b"E_REGISTER_FAILED no"), "E_REGISTER_FAILED no"),
            (lambda _: lookup_v1.response(b"OK"), "invalid response to IDENTIFY"),
            (lambda _: lookup_v1.response(b'{"http_port":"x"}'), "invalid response to IDENTIFY"),
            (
                lambda _: lookup_v1.response(b'{"x":' + b"[" * 60_000),
                "invalid response to IDENTIFY",
            ),
            (lambda _: b"HTTP/1.1 400 Bad Request\r\n\r\n", "not a response"),
            (lambda _: b"\xff" * 100, "not a response"),
            (lambda event: 2 * script.well(event), "unexpected response"),
            (lambda _: b"\0\0", "timed out"),
            (script.drip, "timed out"),
            (script.nothing, "timed out"),
            (script.hang_up, "closed by nsqlookupd"),
        ],
        ids=[
            "error",
            "error to go on after",
            "not JSON",
            "wrong type",
            "deep JSON",
            "HTTP",
            "garbage",
            "too many answers",
            "half an answer",
            "byte by byte",
            "silence",
            "end",
        ],
    )
    def test_are_logged_and_end_when_nsqlookupd_recovers(
        self, lookupd: ScriptedLookupd, answer: script.Answer, reason: str
    ) -> None:
        lookupd.answer = answer
        with registrant(lookupd.address, change=lambda host: host.broker.topic("t")) as ours:
            ours.serve_until(lambda: any("ERROR" in line for line in ours.logged))
            errors = [line for line in ours.logged if "ERROR" in line]
            lookupd.answer = script.well
            ours.serve_until(lambda: Register("t") in lookupd.heard)

        assert f"LOOKUPD({lookupd.address}): " in errors[0]
        assert reason in errors[0]

    def test_an_unexpected_response_ends_the_connection(self, lookupd: ScriptedLookupd) -> None:
        with registrant(lookupd.address) as ours:
            take(ours, lookupd, 1)
            lookupd.say(lookup_v1.OK)

            assert [IdentifyPeer(US)] == take(ours, lookupd, 1)

    def test_a_refused_topic_does_not_affect_others(self, lookupd: ScriptedLookupd) -> None:
        def full(event: Event) -> bytes:
            if event == Register("t"):
                return lookup_v1.response(b"E_REGISTER_FAILED REGISTER failed full")
            return script.well(event)

        lookupd.answer = full
        with registrant(lookupd.address, change=lambda host: host.broker.topic("t")) as ours:
            ours.serve_until(lambda: any("REGISTER failed full" in line for line in ours.logged))
            ours.change(lambda host: host.broker.topic("u"), "u")

            assert [IdentifyPeer(US), Register("t"), Register("u")] == take(ours, lookupd, 3)

    def test_everything_is_registered_again_afterwards(self, lookupd: ScriptedLookupd) -> None:
        with registrant(lookupd.address, change=lambda host: host.channel("t", "c")) as ours:
            all_of_it = take(ours, lookupd, 3)
            lookupd.answer = script.hang_up
            ours.change(lambda host: host.broker.topic("lost"), "lost")
            ours.serve_until(lambda: Register("lost") in lookupd.heard)
            lookupd.answer = script.well
            lookupd.take()

            assert [*all_of_it, Register("lost")] == take(ours, lookupd, 4)

    def test_the_backoff_grows(self, lookupd: ScriptedLookupd) -> None:
        lookupd.answer = script.hang_up
        with registrant(lookupd.address) as ours:
            ours.serve_until(lambda: len(lookupd.connected_at) == 4)
        at = lookupd.connected_at
        rests = [later - earlier for earlier, later in pairwise(at)]

        assert [True] * 3 == [
            shortest <= rest for shortest, rest in zip([0.12, 0.25, 0.5], rests, strict=True)
        ]

    @pytest.mark.parametrize("host", ["..", "x" * 70 + ".example", "no-such-host.invalid"])
    def test_an_invalid_host_is_logged(self, host: str) -> None:
        with registrant(f"{host}:4160") as ours:
            ours.serve_until(lambda: any("ERROR" in line for line in ours.logged))

    @pytest.mark.parametrize("address", ["lookup.example", "", "127.0.0.1:port", "127.0.0.1:"])
    def test_an_address_without_a_port_is_logged(self, address: str) -> None:
        with registrant(address) as ours:
            failure = f"LOOKUPD({address}): not an address (host:port)"
            ours.serve_until(lambda: any(failure in line for line in ours.logged))

    def test_a_refused_connection_is_logged(self) -> None:
        with reserved_address() as address, registrant(address) as ours:
            ours.serve_until(lambda: any("Connect" in line for line in ours.logged))


def test_an_address_without_a_host_is_localhost(lookupd: ScriptedLookupd) -> None:
    port = lookupd.address.rpartition(":")[2]
    with registrant(f":{port}") as ours:
        ours.serve_until(lambda: any("connected" in line for line in ours.logged))


@pytest.mark.parametrize("answer", [script.nothing, script.well, script.hang_up])
def test_closing_does_not_wait_for_a_response(
    lookupd: ScriptedLookupd, answer: script.Answer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lookup_peer, "TIMEOUT_SECONDS", 3600.0)
    lookupd.answer = answer
    with registrant(lookupd.address) as ours:
        take(ours, lookupd, 1)


def test_the_state_of_an_ended_connection_is_cleared(
    lookupd: ScriptedLookupd,
) -> None:
    with registrant(lookupd.address) as ours:
        before = ours.peer.may_respond, ours.peer.info
        ours.serve_until(lambda: ours.peer.info)
        lookupd.answer = script.hang_up
        ours.change(lambda host: host.broker.topic("t"))
        ours.serve_until(lambda: ours.peer.info is None)
        ours.change(lambda host: host.broker.topic("u"), "u")

        assert (True, None) == before
        assert {} == ours.peer._changed, "changes while disconnected would pile up"
        assert not ours.peer.may_respond


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_an_nsqlookupd_without_a_broadcast_address_has_its_tcp_host(host: str) -> None:
    def reticent(event: Event) -> bytes:
        is_first = isinstance(event, IdentifyPeer)
        return lookup_v1.response(b'{"http_port":4161}') if is_first else script.well(event)

    with scripted_lookupd(reticent, host=host) as lookupd, registrant(lookupd.address) as ours:
        ours.serve_until(lambda: ours.peer.info)

        assert LookupdInfo(host, 4161) == ours.peer.info
