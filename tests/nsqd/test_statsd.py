"""Reports to statsd: their lines, and the packets of the running program."""

import asyncio
import re
import select
import socket
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import pytest
from tests.broker.fakes import Host

from penstock.broker.settings import BrokerSettings
from penstock.common.clock import MILLISECOND_NS, SECOND_NS
from penstock.common.logs import Logger, LogLevel
from penstock.nsqd.process_metrics import MemoryStats
from penstock.nsqd.statsd import Statsd, StatsdReport, StatsdSettings, split_packets, statsd_prefix
from penstock.testing.nsqd import run_nsqd
from penstock.testing.waiting import wait_until

MEMORY: MemoryStats = {
    "heap_objects": 1,
    "heap_idle_bytes": 2,
    "heap_in_use_bytes": 3,
    "heap_released_bytes": 4,
    "gc_pause_usec_100": 5,
    "gc_pause_usec_99": 6,
    "gc_pause_usec_95": 7,
    "next_gc_bytes": 8,
    "gc_total_runs": 9,
}

SETTINGS = StatsdSettings(
    address="127.0.0.1:8125",
    prefix="p.",
    interval_seconds=60,
    packet_bytes_max=508,
    with_memory=True,
    with_ephemeral=True,
    quantiles=(),
)

PATIENCE_SECONDS = 60.0


class Receiver:
    """A statsd that collects the packets sent to it."""

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind(("127.0.0.1", 0))
        self._socket.settimeout(PATIENCE_SECONDS)
        self.address = f"127.0.0.1:{self._socket.getsockname()[1]}"

    def packet(self) -> bytes:
        """The next packet."""
        return self._socket.recv(65536)

    def has_packet(self) -> bool:
        """Whether a packet has arrived."""
        return bool(select.select([self._socket], [], [], 0)[0])

    def packets_until(self, line_end: bytes) -> list[bytes]:
        """The next packets, up to one with a line that has this end."""
        taken = [self.packet()]
        while line_end not in taken[-1]:
            taken.append(self.packet())
        return taken

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    receiver = Receiver()
    yield receiver
    receiver.close()


@pytest.mark.parametrize(
    ("prefix", "address", "port", "expected"),
    [
        ("nsq.%s", "host.example", 4151, "nsq.host_example_4151."),
        ("nsq.%s.", "10.0.0.1", 4151, "nsq.10_0_0_1_4151."),
        ("%s.%s", "a", 1, "a_1.a_1."),
        ("plain", "a", 1, "plain."),
        ("", "a", 1, ""),
        ("nsq.%s", "::1", 4151, "nsq.[__1]_4151."),
    ],
)
def test_a_prefix_names_the_node_and_ends_in_a_dot(
    prefix: str, address: str, port: int, expected: str
) -> None:
    assert expected == statsd_prefix(prefix, address, port)


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ([], []),
        ([b"one\n"], [b"one\n"]),
        ([b"one\n", b"two\n"], [b"one\ntwo\n"]),
        ([b"one\n", b"two\n", b"three\n"], [b"one\ntwo\n", b"three\n"]),
        ([b"a", b"much longer line\n", b"b"], [b"a", b"much longer line\n", b"b"]),
    ],
)
def test_packets_are_cut_between_lines(lines: list[bytes], expected: list[bytes]) -> None:
    assert expected == list(split_packets(lines, 8))


class TestReport:
    def lines(
        self, report: StatsdReport, host: Host, memory: MemoryStats | None = None
    ) -> list[str]:
        """One report, without the prefix."""
        lines = [line.decode() for line in report.lines(host.broker.topics.values(), memory)]
        assert all(line.startswith("p.") and line.endswith("\n") for line in lines)
        return [line.removeprefix("p.").removesuffix("\n") for line in lines]

    def test_names_and_kinds_are_those_of_nsq(self) -> None:
        host = Host()
        consumer = host.consumer("t", "c", rdy=2)
        host.publish("t", "aaa", "bb", "c")
        host.publish("t", "later", defer_ns=SECOND_NS)
        consumer.req("aaa")

        expected = [
            "topic.t.message_count:4|c",
            "topic.t.message_bytes:11|c",
            "topic.t.depth:0|g",
            "topic.t.backend_depth:0|g",
            "topic.t.channel.c.message_count:4|c",
            "topic.t.channel.c.depth:1|g",
            "topic.t.channel.c.backend_depth:0|g",
            "topic.t.channel.c.in_flight_count:2|g",
            "topic.t.channel.c.deferred_count:1|g",
            "topic.t.channel.c.requeue_count:1|c",
            "topic.t.channel.c.timeout_count:0|c",
            "topic.t.channel.c.clients:1|g",
            "mem.heap_objects:1|g",
            "mem.heap_idle_bytes:2|g",
            "mem.heap_in_use_bytes:3|g",
            "mem.heap_released_bytes:4|g",
            "mem.gc_pause_usec_100:5|g",
            "mem.gc_pause_usec_99:6|g",
            "mem.gc_pause_usec_95:7|g",
            "mem.next_gc_bytes:8|g",
            "mem.gc_runs:9|c",
        ]
        assert expected == self.lines(StatsdReport(SETTINGS), host, MEMORY)

    def test_latencies_are_named_by_percent_and_in_nanoseconds(self) -> None:
        host = Host(BrokerSettings(latency_window_ns=SECOND_NS))
        consumer = host.consumer("t", "c", rdy=1)
        host.publish("t", "a")
        host.pass_time(100 * MILLISECOND_NS)
        consumer.fin("a")
        lines = self.lines(StatsdReport(replace(SETTINGS, quantiles=(0.999, 0.5))), host)

        values = dict(line.split(":") for line in lines if "e2e" in line)
        assert [
            "topic.t.e2e_processing_latency_100",
            "topic.t.e2e_processing_latency_50",
            "topic.t.channel.c.e2e_processing_latency_100",
            "topic.t.channel.c.e2e_processing_latency_50",
        ] == list(values)
        assert all(re.fullmatch(r"(99|100|101)\d{6}\|g", value) for value in values.values())

    def test_counters_are_the_growth_since_the_last_report(self) -> None:
        host, report = Host(), StatsdReport(SETTINGS)
        host.publish("t", "a", "b")
        first = self.lines(report, host)
        host.publish("t", "c")
        second, third = self.lines(report, host), self.lines(report, host)

        name = "topic.t.message_count"
        assert [f"{name}:2|c", f"{name}:1|c", f"{name}:0|c"] == [first[0], second[0], third[0]]

    def test_the_counters_of_a_recreated_topic_start_again(self) -> None:
        host, report = Host(), StatsdReport(SETTINGS)
        host.publish("t", "a", "b", "c")
        self.lines(report, host)
        host.broker.delete_topic("t")
        host.publish("t", "d")

        assert "topic.t.message_count:1|c" == self.lines(report, host)[0]

    @pytest.mark.parametrize(
        ("with_ephemeral", "expected"),
        [
            (True, ["e#ephemeral", "t", "t.channel.c", "t.channel.e#ephemeral"]),
            (False, ["t", "t.channel.c"]),
        ],
    )
    def test_ephemeral_topics_and_channels_can_be_excluded(
        self, with_ephemeral: bool, expected: list[str]
    ) -> None:
        host = Host()
        for topic, channel in (("t", "e#ephemeral"), ("t", "c")):
            host.channel(topic, channel)
        host.broker.topic("e#ephemeral")
        lines = self.lines(StatsdReport(replace(SETTINGS, with_ephemeral=with_ephemeral)), host)

        depths = [re.fullmatch(r"topic\.(.*)\.depth:0\|g", line) for line in lines]
        assert expected == [depth[1] for depth in depths if depth]


class TestSending:
    def test_a_started_report_is_completed_when_nsqd_stops(self, receiver: Receiver) -> None:
        async def report_and_stop() -> list[bytes]:
            settings = replace(
                SETTINGS, address=receiver.address, interval_seconds=0.5, packet_bytes_max=1
            )
            log = Logger("", LogLevel.INFO, write=log_lines.append)
            statsd = Statsd(settings, {}, lambda: MEMORY, log)
            statsd.start()
            first = await asyncio.to_thread(receiver.packet)
            await statsd.stop()
            return [first, *(receiver.packet() for _ in range(len(MEMORY) - 1))]

        log_lines: list[str] = []
        sent = asyncio.run(report_and_stop())

        assert len(MEMORY) == len(set(sent))
        assert sent[-1] == b"p.mem.gc_runs:9|c\n"
        assert log_lines[-1].endswith("STATSD: closing\n")

    def test_a_failed_report_is_logged_and_the_next_one_is_sent(self, receiver: Receiver) -> None:
        async def report() -> bytes:
            settings = replace(SETTINGS, address=receiver.address, interval_seconds=0.05)
            log = Logger("", LogLevel.INFO, write=log_lines.append)
            statsd = Statsd(settings, {}, memory, log)
            statsd.start()
            packet = await asyncio.to_thread(receiver.packet)
            await statsd.stop()
            return packet

        def memory() -> MemoryStats:
            if failures:
                raise failures.pop()
            return MEMORY

        failures = [ZeroDivisionError("ours")]
        log_lines: list[str] = []

        assert b"p.mem.heap_objects:1|g\n" in asyncio.run(report())
        assert any("ZeroDivisionError: ours" in line for line in log_lines)

    def test_stopping_does_not_wait_for_the_next_report(self) -> None:
        async def start_and_stop() -> None:
            log = Logger("", LogLevel.INFO, write=lambda _: None)
            statsd = Statsd(replace(SETTINGS, interval_seconds=3600), {}, lambda: MEMORY, log)
            statsd.start()
            async with asyncio.timeout(PATIENCE_SECONDS):
                await statsd.stop()

        asyncio.run(start_and_stop())


class TestNsqd:
    def test_reports_every_interval_in_packets_of_the_right_size(self, receiver: Receiver) -> None:
        flags = (
            f"--statsd-address={receiver.address}",
            "--statsd-interval=100ms",
            "--statsd-udp-packet-size=200",
            "--broadcast-address=node.example",
        )
        with run_nsqd(*flags) as nsqd:
            nsqd.publish("t", b"a", b"b", b"c")
            port = nsqd.http_address.rpartition(":")[2]
            prefix = f"nsq.node_example_{port}."
            counted: Counter[str] = Counter()
            reports = 0
            while reports < 3 or counted[f"{prefix}topic.t.message_count"] < 3:
                for packet in receiver.packets_until(b"mem.gc_runs:"):
                    assert len(packet) <= 200
                    assert packet.endswith(b"\n")
                    for name, value, kind in re.findall(r"(\S+):(\d+)\|([cg])\n", packet.decode()):
                        assert name.startswith(prefix)
                        counted[name] += int(value) if kind == "c" else 0
                reports += 1

            assert 3 == counted[f"{prefix}topic.t.message_count"]
            assert 3 == counted[f"{prefix}topic.t.message_bytes"]
            assert prefix.encode() == nsqd.http("GET", "/config/statsd_prefix").body

    @pytest.mark.parametrize("address", ["127.0.0.1:1", "no-such-host.invalid:8125", "a..b:8125"])
    def test_continues_without_a_statsd_and_logs_the_error(self, address: str) -> None:
        with run_nsqd(f"--statsd-address={address}", "--statsd-interval=50ms") as nsqd:
            complaint = f"ERROR: failed to send to statsd({address}) - "
            wait_until(lambda: nsqd.log.count(complaint) >= 2, "two failures to be logged")
            nsqd.publish("t", b"a")

            assert b"OK" == nsqd.http("GET", "/ping").body

    def test_sends_nothing_with_an_interval_of_0(self, receiver: Receiver) -> None:
        flags = (f"--statsd-address={receiver.address}", "--statsd-interval=0")
        with run_nsqd(*flags) as nsqd:
            nsqd.publish("t", b"a")

            assert b"0" == nsqd.http("GET", "/config/statsd_interval").body
        assert not receiver.has_packet()

    def test_does_not_mention_statsd_without_the_option(self) -> None:
        with run_nsqd() as nsqd:
            nsqd.publish("t", b"a")

        assert "STATSD" not in nsqd.log
