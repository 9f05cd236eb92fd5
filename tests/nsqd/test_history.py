"""The log of a topic over HTTP: segments, messages, retention."""

import base64
import json
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from http.client import HTTPResponse, IncompleteRead

import pytest
from tests.nsqd.history_reading import FRAMES, bodies, frames, log_of, messages, reading

from penstock.nsqd.history_streams import READERS_MAX
from penstock.protocol import commands
from penstock.testing.nsqd import NsqdProcess, run_nsqd
from penstock.testing.waiting import wait_until

NODE_ID = 7


@pytest.fixture(scope="module")
def nsqd() -> Iterator[NsqdProcess]:
    with run_nsqd(f"--node-id={NODE_ID}", "--retention-time=24h") as process:
        process.post("/topic/create?topic=known")
        process.post("/topic/create?topic=x%23ephemeral")
        yield process


def publish(nsqd: NsqdProcess, topic: str, *batches: str) -> None:
    """Publishes letters, each batch with its own timestamp."""
    for batch in batches:
        nsqd.post(f"/mpub?topic={topic}", "\n".join(batch).encode())


class TestTopicLog:
    def test_its_fields(self, nsqd: NsqdProcess, topic: str) -> None:
        publish(nsqd, topic, "abc", "d")
        stored = messages(nsqd, topic)
        log = log_of(nsqd, topic).whole

        assert {
            "topic": topic,
            "log_id": log["log_id"],
            "node_id": NODE_ID,
            "first_seq": stored[0]["seq"],
            "next_seq": stored[3]["seq"] + 1,
            "first_timestamp_ns": stored[0]["timestamp_ns"],
            "last_timestamp_ns": stored[3]["timestamp_ns"],
            "bytes": log["bytes"],
            "retention": {"time_ns": 24 * 3600 * 10**9, "bytes": None},
            "segments": [
                {
                    "first_seq": stored[0]["seq"],
                    "next_seq": stored[3]["seq"] + 1,
                    "first_timestamp_ns": stored[0]["timestamp_ns"],
                    "last_timestamp_ns": stored[3]["timestamp_ns"],
                    "bytes": log["bytes"],
                }
            ],
        } == log

    def test_an_empty_log_has_no_timestamps(self, nsqd: NsqdProcess) -> None:
        log = log_of(nsqd, "known")

        assert log.first_seq == log.next_seq
        assert log.whole["first_timestamp_ns"] is None


class TestMessages:
    def test_each_message_is_a_line_of_json(self, nsqd: NsqdProcess, topic: str) -> None:
        nsqd.post(f"/pub?topic={topic}", 'ä"\n'.encode())
        nsqd.post(f"/pub?topic={topic}&defer=60000", b"\xff\0")
        text, binary = messages(nsqd, topic)

        assert 'ä"\n' == text["body"]
        assert ["seq", "id", "timestamp_ns", "body"] == list(text)
        assert b"\xff\0" == base64.b64decode(binary["body_base64"])
        assert binary["timestamp_ns"] + 60 * 10**9 == binary["due_ns"]
        assert f"{NODE_ID << 54 | text['seq']:016x}" == text["id"]

    def test_frames_are_those_of_consumers(self, nsqd: NsqdProcess, topic: str) -> None:
        publish(nsqd, topic, "abc", "d")
        delivered = nsqd.consumer(topic, "c", rdy=10).messages(4)

        assert delivered == frames(nsqd, topic)

    def test_ranges(self, nsqd: NsqdProcess, topic: str) -> None:
        publish(nsqd, topic, "abc", "de", "f")
        first, end, _ = log_of(nsqd, topic)
        d_ns = messages(nsqd, topic)[3]["timestamp_ns"]
        expected = {
            "": "abcdef",
            "&from=earliest&to=latest": "abcdef",
            "&from=latest": "",
            f"&from={first + 2}": "cdef",
            f"&to={first + 2}": "ab",
            f"&from={first + 1}&to={first + 4}": "bcd",
            f"&from={first + 1}&to={first + 1}": "",
            f"&from={end}": "",
            f"&from={first + 1}&limit=3": "bcd",
            f"&from={first + 1}&to={first + 3}&limit=3": "bc",
            "&limit=100": "abcdef",
            f"&from={d_ns}": "def",
            f"&from={d_ns + 1}": "f",
            f"&to={d_ns}": "abc",
            f"&from=1980-01-01T00:00:00Z&to={d_ns + 1}": "abcde",
            "&from=2200-01-01T00:00:00Z": "",
        }

        assert expected == {query: bodies(nsqd, topic, query) for query in expected}
        assert expected == {
            query: b"".join(frame.body for frame in frames(nsqd, topic, query)).decode()
            for query in expected
        }

    def test_headers_have_the_range(self, nsqd: NsqdProcess, topic: str) -> None:
        publish(nsqd, topic, "abcdef")
        first, _, _ = log_of(nsqd, topic)
        with reading(nsqd, f"/topic/messages?topic={topic}&from={first + 1}&limit=2") as response:
            headers = dict(response.headers)

        assert "application/x-ndjson" == headers["Content-Type"]
        assert str(NODE_ID) == headers["X-Penstock-Node-Id"]
        assert str(first + 1) == headers["X-Penstock-First-Seq"]
        assert str(first + 3) == headers["X-Penstock-Next-Seq"]

    def test_many_segments_and_large_batches(self, topic: str) -> None:
        with run_nsqd("--max-bytes-per-file=500000", "--node-id=7") as nsqd:
            body = b"\n".join(b"%05d %s" % (number, b"x" * 94) for number in range(10_000))
            for _ in range(4):
                nsqd.post(f"/mpub?topic={topic}", body)
            read = b"\n".join(frame.body for frame in frames(nsqd, topic))
            lines = "\n".join(line["body"] for line in messages(nsqd, topic))

        assert b"\n".join([body] * 4) == read
        assert read.decode() == lines


REFUSALS = {
    "": (400, {"message": "MISSING_ARG_TOPIC"}),
    "topic=!": (400, {"message": "INVALID_TOPIC"}),
    "topic=unknown": (404, {"message": "TOPIC_NOT_FOUND"}),
    "topic=x%23ephemeral": (400, {"message": "TOPIC_IS_EPHEMERAL"}),
    "topic=known&from=now": (400, {"message": "INVALID_ARG_FROM"}),
    "topic=known&from=": (400, {"message": "INVALID_ARG_FROM"}),
    "topic=known&to=-1": (400, {"message": "INVALID_ARG_TO"}),
    "topic=known&limit=0": (400, {"message": "INVALID_ARG_LIMIT"}),
    "topic=known&limit=x": (400, {"message": "INVALID_ARG_LIMIT"}),
    "topic=known&follow=yes": (400, {"message": "INVALID_ARG_FOLLOW"}),
    "topic=known&follow=true&to=latest": (400, {"message": "INVALID_ARG_TO"}),
    "topic=known&from=latest&to=0": (400, {"message": "INVALID_RANGE"}),
}


@pytest.mark.parametrize("query", REFUSALS)
def test_invalid_arguments_are_refused(nsqd: NsqdProcess, query: str) -> None:
    answer = nsqd.http("GET", f"/topic/messages?{query}")

    assert REFUSALS[query] == (answer.status, answer.json())


def test_trimmed_and_future_sequence_numbers_have_different_errors(
    nsqd: NsqdProcess, topic: str
) -> None:
    publish(nsqd, topic, "abc")
    first, end, _ = log_of(nsqd, topic)
    path = f"/topic/messages?topic={topic}"
    gone, too_high = nsqd.http("GET", f"{path}&from={first - 1}"), f"{path}&from={end + 1}"
    refusal = (400, {"message": "SEQ_TOO_HIGH", "next_seq": end})

    assert (410, {"message": "SEQ_GONE", "first_seq": first}) == (gone.status, gone.json())
    for target in (too_high, f"{path}&to={end + 1}"):
        answer = nsqd.http("GET", target)
        assert refusal == (answer.status, answer.json())


class TestFollowing:
    def read_line(self, response: HTTPResponse) -> str:
        body: str = json.loads(response.readline())["body"]
        return body

    def test_new_messages_are_sent(self, nsqd: NsqdProcess, topic: str) -> None:
        publish(nsqd, topic, "ab")
        with reading(nsqd, f"/topic/messages?topic={topic}&follow=true") as response:
            assert ["a", "b"] == [self.read_line(response), self.read_line(response)]
            publish(nsqd, topic, "c")
            assert "c" == self.read_line(response)

    def test_it_ends_at_the_given_position(self, nsqd: NsqdProcess, topic: str) -> None:
        publish(nsqd, topic, "ab")
        first, end, _ = log_of(nsqd, topic)
        target = f"/topic/messages?topic={topic}&follow=true"
        with (
            reading(nsqd, f"{target}&limit=3&from={first + 1}") as limited,
            reading(nsqd, f"{target}&to={end + 2}", FRAMES) as ranged,
        ):
            publish(nsqd, topic, "cdef")
            assert ["b", "c", "d"] == [json.loads(line)["body"] for line in limited]
            assert ranged.read().endswith(b"d")

    def test_it_ends_when_nsqd_stops(self, topic: str) -> None:
        with run_nsqd() as nsqd:
            publish(nsqd, topic, "a")
            with reading(nsqd, f"/topic/messages?topic={topic}&follow=true") as response:
                assert "a" == self.read_line(response)
                nsqd.send_signal(signal.SIGTERM)
                assert b"" == response.read()
            assert 0 == nsqd.wait()

    def test_it_is_aborted_when_nsqd_stops_before_its_end(self, topic: str) -> None:
        with run_nsqd() as nsqd:
            publish(nsqd, topic, "a")
            with reading(nsqd, f"/topic/messages?topic={topic}&follow=true&limit=2") as response:
                assert "a" == self.read_line(response)
                nsqd.send_signal(signal.SIGTERM)
                with pytest.raises(IncompleteRead):
                    response.read()
            assert 0 == nsqd.wait()

    def test_it_is_aborted_when_the_topic_is_deleted(self, nsqd: NsqdProcess, topic: str) -> None:
        publish(nsqd, topic, "a")
        with reading(nsqd, f"/topic/messages?topic={topic}&follow=true") as response:
            assert "a" == self.read_line(response)
            nsqd.post(f"/topic/delete?topic={topic}")
            with pytest.raises(IncompleteRead):
                response.read()

    def test_the_number_of_readers_is_limited(self, topic: str) -> None:
        target = f"/topic/messages?topic={topic}&follow=true"
        with run_nsqd() as nsqd:
            publish(nsqd, topic, "a")
            with ExitStack() as stack:
                for _ in range(READERS_MAX):
                    response = stack.enter_context(reading(nsqd, target))
                    assert "a" == self.read_line(response)
                refused = stack.enter_context(reading(nsqd, target))
                assert (503, "1") == (refused.status, refused.getheader("Retry-After"))
                assert {"message": "TOO_MANY_READERS"} == json.loads(refused.read())

            def has_room() -> bool:
                publish(nsqd, topic, "b")  # nsqd notices because the data cannot be sent
                return nsqd.http("GET", f"{target}&limit=1").status == 200

            wait_until(has_room, "readers to leave")


class TestRetention:
    def test_it_is_persisted_and_shown_and_can_be_reset(self, topic: str) -> None:
        with run_nsqd("--retention-bytes=1000000") as nsqd:
            publish(nsqd, topic, "a")
            nsqd.post("/topic/create?topic=other")
            nsqd.post(f"/topic/retention?topic={topic}&time=1h30m")
            nsqd.kill()
            nsqd.restart()

            assert {"time_ns": 5400 * 10**9, "bytes": None} == nsqd.stats(topic)["retention"]
            assert {"time_ns": None, "bytes": 1_000_000} == nsqd.stats("other")["retention"]
            nsqd.post(f"/topic/retention?topic={topic}&time=0&bytes=0")
            assert "retention" not in nsqd.stats(topic)
            nsqd.post(f"/topic/retention?topic={topic}&default=true")
            assert {"time_ns": None, "bytes": 1_000_000} == nsqd.stats(topic)["retention"]
            assert "retention" not in (nsqd.data_path / "nsqd.dat").read_text()

    def test_without_retention_stats_are_the_references(self, topic: str) -> None:
        with run_nsqd() as nsqd:
            publish(nsqd, topic, "a")

            assert "e2e_processing_latency" == list(nsqd.stats(topic))[-1]

    @pytest.mark.parametrize(
        ("query", "code"),
        [
            ("", "MISSING_ARG_TIME"),
            ("&time=1d", "INVALID_ARG_TIME"),
            ("&time=-1h", "INVALID_ARG_TIME"),
            ("&time=", "INVALID_ARG_TIME"),
            ("&time=1h&bytes=1k", "INVALID_ARG_BYTES"),
            ("&bytes=-1", "INVALID_ARG_BYTES"),
            (f"&bytes={2**63}", "INVALID_ARG_BYTES"),
            ("&default=maybe", "INVALID_ARG_DEFAULT"),
            ("&default=true&time=1h", "INVALID_ARG_DEFAULT"),
        ],
    )
    def test_invalid_arguments_are_refused(self, nsqd: NsqdProcess, query: str, code: str) -> None:
        answer = nsqd.http("POST", f"/topic/retention?topic=known{query}")

        assert (400, {"message": code}) == (answer.status, answer.json())

    def test_finished_messages_are_deleted_after_the_retention_time(self, topic: str) -> None:
        """Messages that a channel needs are kept, also over a restart."""
        flags = ("--max-bytes-per-file=2000", "--retention-time=1h", "--sync-timeout=50ms")
        with run_nsqd(*flags) as nsqd:
            nsqd.post(f"/topic/create?topic={topic}")
            nsqd.post(f"/channel/create?topic={topic}&channel=done")
            for _ in range(100):
                nsqd.post(f"/pub?topic={topic}", b"x" * 100)
            first, end, _ = log_of(nsqd, topic)
            nsqd.post(f"/channel/create?topic={topic}&channel=slow&from={first + 50}")
            nsqd.post(f"/channel/empty?topic={topic}&channel=done")
            assert first == log_of(nsqd, topic).first_seq

            nsqd.post(f"/topic/retention?topic={topic}&time=1ns")
            wait_until(lambda: log_of(nsqd, topic).first_seq > first + 30, "a trim")
            nsqd.kill()
            nsqd.restart()

            assert first + 30 < log_of(nsqd, topic).first_seq <= first + 50
            assert 50 == nsqd.stats(topic, "slow")["depth"]
            assert 50 == len(nsqd.consumer(topic, "slow", rdy=100).messages(50))
            assert end == log_of(nsqd, topic).next_seq


def test_a_reader_is_aborted_when_its_next_messages_are_trimmed(topic: str) -> None:
    with run_nsqd("--max-bytes-per-file=1000000", "--retention-time=1h") as nsqd:
        producer = nsqd.connect()
        for _ in range(40):
            producer.call(commands.mpub(topic, [b"x" * 900_000]))
        nsqd.post(f"/channel/create?topic={topic}&channel=c&from=latest")
        first = log_of(nsqd, topic).first_seq
        with reading(nsqd, f"/topic/messages?topic={topic}", FRAMES) as response:
            response.read(1000)
            nsqd.post(f"/topic/retention?topic={topic}&time=0")
            wait_until(lambda: log_of(nsqd, topic).first_seq > first + 30, "a trim")
            with pytest.raises((IncompleteRead, ConnectionError)):
                response.read()

        wait_until(lambda: "have been trimmed while they were read" in nsqd.log, "a log line")


def test_a_reader_does_not_block_a_stop(topic: str) -> None:
    with run_nsqd() as nsqd:
        producer = nsqd.connect()
        for _ in range(40):
            producer.call(commands.mpub(topic, [b"x" * 900_000]))
        with reading(nsqd, f"/topic/messages?topic={topic}", FRAMES) as response:
            response.read(1000)
            nsqd.send_signal(signal.SIGTERM)

            assert 0 == nsqd.wait()
