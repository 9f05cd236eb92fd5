"""nsq_to_nsq as a program, between real nsqds that stop and restart."""

from collections.abc import Iterator

import pytest
from tests.tools.tool_process import tool_process

from penstock.protocol import commands
from penstock.testing.addresses import reserved_address
from penstock.testing.nsqd import NsqdProcess, run_nsqd
from penstock.testing.waiting import wait_until
from penstock.tools.nsq_to_nsq import JsonFilter, MissingFieldError, NotJsonError


@pytest.fixture(scope="module")
def other() -> Iterator[NsqdProcess]:
    with run_nsqd() as process:
        yield process


def flags(topic: str, source: NsqdProcess, *destinations: NsqdProcess) -> list[str]:
    return [
        f"--topic={topic}",
        f"--nsqd-tcp-address={source.tcp_address}",
        *(f"--destination-nsqd-tcp-address={each.tcp_address}" for each in destinations),
    ]


def subscribed(nsqd: NsqdProcess, topic: str) -> bool:
    channels = nsqd.stats(topic)["channels"]
    return bool(channels) and channels[0]["client_count"] == 1


def is_drained(nsqd: NsqdProcess, topic: str, messages: int) -> bool:
    """Whether all published messages were delivered and finished."""
    return nsqd.shows(topic, "nsq_to_nsq", depth=0, in_flight_count=0, message_count=messages)


def bodies(nsqd: NsqdProcess, topic: str, count: int) -> list[bytes]:
    """The first messages of a topic that was not consumed yet."""
    consumer = nsqd.consumer(topic, "reader", rdy=min(count, 1000))
    found = []
    for _ in range(count):
        message = consumer.message()
        consumer.send(commands.fin(message.id))
        found.append(message.body)
    return found


def all_bodies(nsqd: NsqdProcess, topic: str) -> list[bytes]:
    return bodies(nsqd, topic, nsqd.stats(topic)["depth"])


def test_messages_are_republished(nsqd: NsqdProcess, other: NsqdProcess, topic: str) -> None:
    expected = [b"%d" % number for number in range(1000)]
    nsqd.post(f"/mpub?topic={topic}", b"\n".join(expected))
    with tool_process("nsq_to_nsq", *flags(topic, nsqd, other), "--status-every=500") as relay:
        wait_until(
            lambda: is_drained(nsqd, topic, 1000) if subscribed(nsqd, topic) else False, "all"
        )
        relay.logs("INFO: [aggregate]: finished 500 - 99th: ", count=2)
        relay.stop()

    assert sorted(expected) == sorted(bodies(other, topic, 1000))


def test_several_topics_can_be_merged(nsqd: NsqdProcess, other: NsqdProcess, topic: str) -> None:
    for number in (1, 2):
        nsqd.publish(f"{topic}-{number}", b"%d" % number)
    more = (f"--topic={topic}-2", f"--destination-topic={topic}-all")
    with tool_process("nsq_to_nsq", *flags(f"{topic}-1", nsqd, other), *more) as relay:
        assert [b"1", b"2"] == sorted(bodies(other, f"{topic}-all", 2))
        relay.stop()


def test_the_json_filter_drops_messages_and_fields(
    nsqd: NsqdProcess, other: NsqdProcess, topic: str
) -> None:
    nsqd.publish(topic, b'{"a":"x","b":1,"c":2}', b'{"a":"y"}', b"no json", b'["a"]')
    nsqd.publish(topic, b'{"a":"x","b":3}')
    required = ("--require-json-field=a", "--require-json-value=x", "--whitelist-json-field=b")
    with tool_process("nsq_to_nsq", *flags(topic, nsqd, other), *required) as relay:
        assert [b'{"b":1}', b'{"b":3}'] == bodies(other, topic, 2)
        wait_until(lambda: is_drained(nsqd, topic, 5), "the others to be finished")
        relay.logs("ERROR: Unable to decode json: no json")
        relay.logs('ERROR: Unable to decode json: ["a"]')
        relay.stop()

    assert 2 == other.stats(topic)["message_count"]


def test_a_message_without_the_required_field_is_requeued(
    nsqd: NsqdProcess, other: NsqdProcess, topic: str
) -> None:
    nsqd.publish(topic, b"{}")
    required = ("--require-json-field=a", "--require-json-value=x")
    with tool_process("nsq_to_nsq", *flags(topic, nsqd, other), *required) as relay:
        relay.logs("MissingFieldError: missing field 'a' to check required value")
        relay.logs("backing off for 2 s")
        wait_until(
            lambda: nsqd.shows(topic, "nsq_to_nsq", requeue_count=1, deferred_count=1), "the REQ"
        )
        relay.stop()


@pytest.mark.parametrize("mode", ["hostpool", "round-robin"])
def test_a_dead_destination_loses_nothing(
    nsqd: NsqdProcess, other: NsqdProcess, topic: str, mode: str
) -> None:
    sent: list[bytes] = []

    def publish_more(count: int) -> None:
        more = [b"%d" % number for number in range(len(sent), len(sent) + count)]
        sent.extend(more)
        nsqd.post(f"/mpub?topic={topic}", b"\n".join(more))

    def reaches(destination: NsqdProcess) -> bool:
        publish_more(10)
        return passed_on(destination, topic) > 0

    with run_nsqd() as mortal:
        relay_flags = [*flags(topic, nsqd, other, mortal), f"--mode={mode}"]
        with tool_process("nsq_to_nsq", *relay_flags) as relay:
            nsqd.post(f"/topic/create?topic={topic}")
            wait_until(lambda: reaches(mortal), "the mortal to get some")
            publish_more(500)
            mortal.kill()
            publish_more(500)
            wait_until(lambda: is_drained(nsqd, topic, len(sent)), "all to be passed on")
            relay.stop()
        mortal.start()
        here, there = all_bodies(other, topic), all_bodies(mortal, topic)

    # Messages in flight at the kill may be in both nsqds.
    assert set(sent) == {*here, *there}


def passed_on(nsqd: NsqdProcess, topic: str) -> int:
    topics = nsqd.http("GET", f"/stats?format=json&topic={topic}").json()["topics"]
    return int(topics[0]["message_count"]) if topics else 0


def test_nothing_is_finished_while_the_destination_is_down(nsqd: NsqdProcess, topic: str) -> None:
    sent = [b"%d" % number for number in range(100)]
    with reserved_address() as address, run_nsqd(f"--tcp-address={address}") as mortal:
        patience = ["max_backoff_duration,0", "default_requeue_delay,100ms", "max_attempts,0"]
        opts = [f"--consumer-opt={opt}" for opt in patience]
        opts.append("--producer-opt=publish_timeout,3s")
        with tool_process("nsq_to_nsq", *flags(topic, nsqd, mortal), *opts) as relay:
            nsqd.publish(topic, b"first")
            wait_until(lambda: passed_on(mortal, topic) == 1, "the first")
            mortal.kill()
            nsqd.post(f"/mpub?topic={topic}", b"\n".join(sent))
            relay.logs("NotConfirmedError: not confirmed within 3 s: ")
            assert 100 == unfinished(nsqd, topic)
            mortal.start()
            wait_until(lambda: unfinished(nsqd, topic) == 0, "all to be passed on")
            relay.stop()
            found = all_bodies(mortal, topic)

    assert {b"first", *sent} == set(found)


def unfinished(nsqd: NsqdProcess, topic: str) -> int:
    stats = nsqd.stats(topic, "nsq_to_nsq")
    return int(stats["depth"] + stats["in_flight_count"] + stats["deferred_count"])


def test_epsilon_greedy_logs_times_per_destination(
    nsqd: NsqdProcess, other: NsqdProcess, topic: str
) -> None:
    nsqd.post(f"/mpub?topic={topic}", b"\n".join([b"x"] * 500))
    with run_nsqd() as third:
        mode = ("--mode=epsilon-greedy", "--status-every=10")
        with tool_process("nsq_to_nsq", *flags(topic, nsqd, other, third), *mode) as relay:
            wait_until(lambda: subscribed(nsqd, topic) and is_drained(nsqd, topic, 500), "all")
            relay.stop()
            for each in (other, third):
                relay.logs(f"INFO: [{each.tcp_address}]: finished 10 - 99th: ")
        assert 500 == passed_on(other, topic) + passed_on(third, topic)


def test_a_destination_that_cannot_be_reached_is_named(nsqd: NsqdProcess, topic: str) -> None:
    nowhere = "--destination-nsqd-tcp-address=127.0.0.1:1"
    with tool_process("nsq_to_nsq", *flags(topic, nsqd), nowhere) as relay:
        assert 1 == relay.wait()
        assert "FATAL: 127.0.0.1:1: Connection refused" in relay.log


@pytest.mark.parametrize(
    ("filter_", "body", "expected"),
    [
        (JsonFilter(), b"no json at all", b"no json at all"),
        # A required field.
        (JsonFilter("a"), b'{"a": null, "b": 1}', b'{"a": null, "b": 1}'),
        (JsonFilter("a"), b'{"b": 1}', None),
        (JsonFilter("a"), b"null", None),
        (JsonFilter("a"), b'{"b": {"a": 1}}', None),
        # A required field with a required value.
        (JsonFilter("a", "x"), b'{"a":"x"}', b'{"a":"x"}'),
        (JsonFilter("a", "x"), b'{"a":"y"}', None),
        (JsonFilter("a", "1"), b'{"a":1}', b'{"a":1}'),
        (JsonFilter("a", "1"), b'{"a":"1"}', b'{"a":"1"}'),
        (JsonFilter("a", "1"), b'{"a":1.0}', b'{"a":1.0}'),
        (JsonFilter("a", "1"), b'{"a":true}', None),
        (JsonFilter("a", "1e2"), b'{"a":100}', b'{"a":100}'),
        (JsonFilter("a", "9007199254740993"), b'{"a":9007199254740993}', b'{"a":9007199254740993}'),
        (JsonFilter("a", "x"), b'{"a":1}', None),
        (JsonFilter("a", "x"), b'{"a":{"x":1}}', None),
        (JsonFilter("a", "x"), b'{"a":null}', None),
        (JsonFilter("a", "1_0"), b'{"a":10}', None),
        (JsonFilter("a", " 1"), b'{"a":1}', None),
        # Only certain fields.
        (JsonFilter(whitelist=["b", "a"]), b'{"c":1,"b":2,"a":3}', b'{"a":3,"b":2}'),
        (JsonFilter(whitelist=["a"]), b'{"b":2}', b"{}"),
        (JsonFilter(whitelist=["a"]), b"null", b"{}"),
        (JsonFilter(whitelist=["a"]), b'{"a":1.50e1}', b'{"a":1.50e1}'),
        (JsonFilter(whitelist=["a"]), b'{"a":{"z":1,"y":[]}}', b'{"a":{"z":1,"y":[]}}'),
        (JsonFilter("a", "x", ["b"]), b'{"a":"x","b":2}', b'{"b":2}'),
        # Bytes that are not UTF-8, and half a surrogate pair, are replaced where they are compared.
        (JsonFilter("a"), b'{"a":"\xff"}', b'{"a":"\xff"}'),
        (JsonFilter("a"), rb'{"a":"\ud83d"}', rb'{"a":"\ud83d"}'),
        (JsonFilter("a", "\ufffdA"), rb'{"a":"\uD800\u0041"}', rb'{"a":"\uD800\u0041"}'),
        (JsonFilter("a", "\U0001f600"), rb'{"a":"\ud83d\ude00"}', rb'{"a":"\ud83d\ude00"}'),
        (JsonFilter("a", "\\ud800"), rb'{"a":"\\ud800"}', rb'{"a":"\\ud800"}'),
    ],
)
def test_the_filter_keeps_or_drops_messages(
    filter_: JsonFilter, body: bytes, expected: bytes | None
) -> None:
    assert expected == filter_.filter(body)


@pytest.mark.parametrize(
    "filter_", [JsonFilter("a"), JsonFilter("a", "1"), JsonFilter("", "", "a")]
)
@pytest.mark.parametrize(
    "body",
    [
        *(b"", b"{", b"abc", b'{"a":1', b"{a:1}", b'{"a":01}', b"[" * 100_000),
        # Valid, but not an object.
        *(b"[]", b'["a"]', b'[{"a":1}]', b"1", b'"a"', b"true"),
    ],
)
def test_a_body_that_is_not_a_json_object_is_refused(filter_: JsonFilter, body: bytes) -> None:
    with pytest.raises(NotJsonError, match="Unable to decode json"):
        filter_.filter(body)


@pytest.mark.parametrize("body", [b"{}", b"null", b'{"b":1}'])
def test_an_object_without_the_field_of_a_required_value_is_a_failure(body: bytes) -> None:
    with pytest.raises(MissingFieldError, match="missing field 'a' to check required value"):
        JsonFilter("a", "1").filter(body)
