"""Channels that are created at, or moved to, positions in the log."""

from collections.abc import Iterator

import pytest
from tests.nsqd.history_reading import log_of, messages

from penstock.protocol import commands
from penstock.testing.nsqd import NsqdProcess, run_nsqd
from penstock.testing.raw_client import RawClient, WireError
from penstock.testing.waiting import wait_until

LETTERS = "abcdefghij"


@pytest.fixture(scope="module")
def nsqd() -> Iterator[NsqdProcess]:
    with run_nsqd("--retention-time=24h") as process:
        process.post("/topic/create?topic=known")
        process.post("/channel/create?topic=known&channel=c")
        process.post("/channel/create?topic=known&channel=c%23ephemeral")
        process.post("/topic/create?topic=x%23ephemeral")
        process.post("/channel/create?topic=x%23ephemeral&channel=c")
        yield process


def publish(nsqd: NsqdProcess, topic: str, letters: str = LETTERS) -> None:
    nsqd.publish(topic, *(letter.encode() for letter in letters))


def received(consumer: RawClient, count: int) -> str:
    """Consumes and finishes messages; returns their bodies."""
    delivered = consumer.messages(count)
    consumer.send(*(commands.fin(message.id) for message in delivered))
    return b"".join(message.body for message in delivered).decode()


def consumed(nsqd: NsqdProcess, topic: str) -> RawClient:
    """A consumer that has finished all letters."""
    publish(nsqd, topic)
    consumer = nsqd.consumer(topic, "c", rdy=100)
    assert LETTERS == received(consumer, len(LETTERS))
    wait_until(lambda: nsqd.shows(topic, "c", depth=0, in_flight_count=0), "all to be finished")
    return consumer


class TestSeek:
    def test_a_consumer_gets_all_messages_again(self, nsqd: NsqdProcess, topic: str) -> None:
        consumer = consumed(nsqd, topic)
        nsqd.post(f"/channel/seek?topic={topic}&channel=c&to=earliest")

        assert LETTERS == received(consumer, len(LETTERS))

    def test_to_any_position(self, nsqd: NsqdProcess, topic: str) -> None:
        consumed(nsqd, topic)
        stored = messages(nsqd, topic)
        first, end, _ = log_of(nsqd, topic)
        expected = {
            "earliest": 10,
            "latest": 0,
            f"{first + 3}": 7,
            f"{end}": 0,
            f"{stored[6]['timestamp_ns']}": 4,
            "2000-01-01T00:00:00Z": 10,
            "2200-01-01T00:00:00Z": 0,
        }
        consumer = nsqd.consumer(topic, "elsewhere")
        nsqd.post(f"/channel/seek?topic={topic}&channel=elsewhere&to=earliest")
        consumer.close()

        def depth_after(place: str) -> int:
            nsqd.post(f"/channel/seek?topic={topic}&channel=elsewhere&to={place}")
            depth: int = nsqd.stats(topic, "elsewhere")["depth"]
            return depth

        assert expected == {place: depth_after(place) for place in expected}

    def test_fin_and_req_of_messages_in_flight_before_it_are_refused(
        self, nsqd: NsqdProcess, topic: str
    ) -> None:
        publish(nsqd, topic, "ab")
        consumer = nsqd.consumer(topic, "c", rdy=1)
        message = consumer.message()
        nsqd.post(f"/channel/seek?topic={topic}&channel=c&to=latest")
        consumer.send(commands.fin(message.id))

        with pytest.raises(WireError, match="E_FIN_FAILED"):
            consumer.response()

    def test_sequence_numbers_out_of_range(self, nsqd: NsqdProcess, topic: str) -> None:
        publish(nsqd, topic)
        nsqd.post(f"/channel/create?topic={topic}&channel=c")
        first, end, _ = log_of(nsqd, topic)
        gone = nsqd.http("POST", f"/channel/seek?topic={topic}&channel=c&to={first - 1}")
        too_high = nsqd.http("POST", f"/channel/seek?topic={topic}&channel=c&to={end + 1}")

        assert (410, {"message": "SEQ_GONE", "first_seq": first}) == (gone.status, gone.json())
        refusal = {"message": "SEQ_TOO_HIGH", "next_seq": end}
        assert (400, refusal) == (too_high.status, too_high.json())
        assert 10 == nsqd.stats(topic, "c")["depth"]


class TestCreate:
    def test_at_a_position(self, nsqd: NsqdProcess, topic: str) -> None:
        consumed(nsqd, topic)
        first, _, _ = log_of(nsqd, topic)
        nsqd.post(f"/channel/create?topic={topic}&channel=new&from={first + 4}")
        publish(nsqd, topic, "k")

        assert "efghijk" == received(nsqd.consumer(topic, "new", rdy=100), 7)

    def test_an_existing_channel_is_not_moved(self, nsqd: NsqdProcess, topic: str) -> None:
        publish(nsqd, topic)
        nsqd.post(f"/channel/create?topic={topic}&channel=c")
        answer = nsqd.http("POST", f"/channel/create?topic={topic}&channel=c&from=latest")

        assert (409, {"message": "CHANNEL_EXISTS"}) == (answer.status, answer.json())
        assert 10 == nsqd.stats(topic, "c")["depth"]


class TestCommits:
    def test_they_move_the_channel_forward_only(self, nsqd: NsqdProcess, topic: str) -> None:
        publish(nsqd, topic)
        nsqd.post(f"/channel/create?topic={topic}&channel=c&mode=commit")
        first, _, _ = log_of(nsqd, topic)
        path = f"/channel/commit?topic={topic}&channel=c"

        assert {"seq": first + 4} == nsqd.http("POST", f"{path}&seq={first + 4}").json()
        assert {"seq": first + 4} == nsqd.http("POST", f"{path}&seq={first + 4}").json()
        assert {"seq": first + 4} == nsqd.http("POST", f"{path}&seq={first + 1}").json()
        assert 6 == nsqd.stats(topic, "c")["depth"]

    def test_consumers_and_commits_exclude_each_other(self, nsqd: NsqdProcess, topic: str) -> None:
        publish(nsqd, topic)
        first, _, _ = log_of(nsqd, topic)
        consumer = nsqd.consumer(topic, "c", rdy=1)
        commit = f"/channel/commit?topic={topic}&channel=c&seq={first + 4}"
        answer = nsqd.http("POST", commit)
        assert (409, {"message": "CHANNEL_HAS_CONSUMERS"}) == (answer.status, answer.json())
        assert "mode" not in nsqd.stats(topic, "c")

        consumer.close()
        wait_until(lambda: nsqd.shows(topic, "c", client_count=0), "the consumer to leave")
        nsqd.post(commit)
        assert "commit" == nsqd.stats(topic, "c")["mode"]
        with pytest.raises(WireError, match=f"E_SUB_FAILED SUB failed channel {topic}:c is moved"):
            nsqd.consumer(topic, "c")

        nsqd.post(f"/channel/mode?topic={topic}&channel=c&mode=consume")
        assert "efghij" == received(nsqd.consumer(topic, "c", rdy=100), 6)


CHANNEL = "topic=known&channel=c"

REFUSALS = {
    "/channel/seek": (400, "MISSING_ARG_TOPIC"),
    "/channel/seek?topic=known&channel=no": (404, "CHANNEL_NOT_FOUND"),
    "/channel/seek?topic=known&channel=c%23ephemeral&to=latest": (400, "CHANNEL_IS_EPHEMERAL"),
    "/channel/seek?topic=x%23ephemeral&channel=c&to=latest": (400, "TOPIC_IS_EPHEMERAL"),
    f"/channel/seek?{CHANNEL}": (400, "MISSING_ARG_TO"),
    f"/channel/seek?{CHANNEL}&to=there": (400, "INVALID_ARG_TO"),
    f"/channel/commit?{CHANNEL}": (400, "MISSING_ARG_SEQ"),
    f"/channel/commit?{CHANNEL}&seq=latest": (400, "INVALID_ARG_SEQ"),
    f"/channel/commit?{CHANNEL}&seq={2**60}": (400, "INVALID_ARG_SEQ"),
    f"/channel/mode?{CHANNEL}": (400, "MISSING_ARG_MODE"),
    f"/channel/mode?{CHANNEL}&mode=": (400, "INVALID_ARG_MODE"),
    "/channel/create?topic=known&channel=new&from=x": (400, "INVALID_ARG_FROM"),
    "/channel/create?topic=known&channel=new&mode=x": (400, "INVALID_ARG_MODE"),
    "/channel/create?topic=known&channel=n%23ephemeral&from=latest": (400, "CHANNEL_IS_EPHEMERAL"),
    "/channel/create?topic=x%23ephemeral&channel=n&from=latest": (400, "TOPIC_IS_EPHEMERAL"),
}


@pytest.mark.parametrize("target", REFUSALS)
def test_invalid_arguments_are_refused(nsqd: NsqdProcess, target: str) -> None:
    answer = nsqd.http("POST", target)

    assert REFUSALS[target] == (answer.status, answer.json()["message"])


@pytest.mark.crash
@pytest.mark.parametrize(
    ("method", "target"),
    [
        ("GET", "/topic/messages?from={}"),
        ("GET", "/topic/messages?to={}"),
        ("GET", "/topic/messages?to={}&follow=true"),
        ("POST", "/channel/seek?channel=c&to={}"),
        ("POST", "/channel/create?channel=new&from={}"),
        ("POST", "/channel/commit?channel=c&seq={}"),
    ],
)
class TestPositionsWithLogId:
    def test_the_log_of_the_topic_has_the_id(
        self, nsqd: NsqdProcess, topic: str, method: str, target: str
    ) -> None:
        publish(nsqd, topic)
        nsqd.post(f"/channel/create?topic={topic}&channel=c")
        log = log_of(nsqd, topic)
        log_id = log.whole["log_id"]
        for each in (log_id, log_id[:8], log_id[:13]):
            answer = nsqd.http(method, f"{target.format(f'{each}:{log.next_seq}')}&topic={topic}")
            assert 200 == answer.status, answer
            if "/create" in target:
                nsqd.post(f"/channel/delete?topic={topic}&channel=new")

    def test_the_topic_was_created_again(
        self, nsqd: NsqdProcess, topic: str, method: str, target: str
    ) -> None:
        publish(nsqd, topic)
        first, _, old = log_of(nsqd, topic)
        nsqd.post(f"/topic/delete?topic={topic}")
        publish(nsqd, topic)
        nsqd.post(f"/channel/create?topic={topic}&channel=c")
        new_id = log_of(nsqd, topic).whole["log_id"]
        for each in (old["log_id"], old["log_id"][:8]):
            answer = nsqd.http(method, f"{target.format(f'{each}:{first}')}&topic={topic}")
            assert (410, {"message": "LOG_GONE", "log_id": new_id}) == (
                answer.status,
                answer.json(),
            )


def test_acknowledged_changes_survive_a_kill(topic: str) -> None:
    with run_nsqd("--retention-time=24h") as nsqd:
        consumed(nsqd, topic)
        first, _, _ = log_of(nsqd, topic)
        nsqd.post(f"/channel/create?topic={topic}&channel=made&from={first + 9}")
        nsqd.post(f"/channel/create?topic={topic}&channel=committed&from=earliest&mode=commit")
        nsqd.post(f"/channel/commit?topic={topic}&channel=committed&seq={first + 3}")
        nsqd.post(f"/channel/seek?topic={topic}&channel=c&to={first + 5}")
        nsqd.kill()
        nsqd.restart()

        depths = {name: nsqd.stats(topic, name)["depth"] for name in ("made", "committed", "c")}
        assert {"made": 1, "committed": 7, "c": 5} == depths
        assert "commit" == nsqd.stats(topic, "committed")["mode"]
        assert "fghij" == received(nsqd.consumer(topic, "c", rdy=100), 5)


@pytest.mark.slow
def test_a_million_consumed_messages_are_delivered_again_in_order(topic: str) -> None:
    count, batch, body_bytes = 1_000_000, 2_500, 8
    frame_bytes = 34 + body_bytes
    with run_nsqd("--retention-time=24h") as nsqd:
        nsqd.post(f"/topic/create?topic={topic}")
        nsqd.post(f"/channel/create?topic={topic}&channel=c")
        producer = nsqd.connect()
        bodies = [b"%08d" % number for number in range(count)]
        for at in range(0, count, batch):
            producer.call(commands.mpub(topic, bodies[at : at + batch]))

        def consume_all(channel: str) -> None:
            consumer = nsqd.connect()
            consumer.identify(heartbeat_interval=60_000)
            consumer.subscribe(topic, channel, rdy=batch)
            for at in range(0, count, batch):
                data = consumer.read(batch * frame_bytes)
                starts = range(0, len(data), frame_bytes)
                assert bodies[at : at + batch] == [data[i + 34 : i + frame_bytes] for i in starts]
                consumer.send(*(commands.fin(data[i + 18 : i + 34]) for i in starts))
            wait_until(lambda: nsqd.shows(topic, channel, depth=0, in_flight_count=0), "the end")
            consumer.close()

        consume_all("c")
        nsqd.post(f"/channel/create?topic={topic}&channel=again&from=earliest")
        consume_all("again")
