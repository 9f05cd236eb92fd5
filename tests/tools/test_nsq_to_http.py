"""nsq_to_http as a program, with a real HTTP server that fails sometimes."""

from collections.abc import Iterator

import pytest
from tests.tools.http_sink import HttpSink, http_sink
from tests.tools.tool_process import tool_process

from penstock.testing.nsqd import NsqdProcess
from penstock.testing.waiting import wait_until

CHANNEL = "nsq_to_http"

# Short requeue delay and no backoff.
QUICK = ("--consumer-opt=default_requeue_delay,50ms", "--consumer-opt=max_backoff_duration,0")


@pytest.fixture
def sink() -> Iterator[HttpSink]:
    with http_sink() as server:
        yield server


@pytest.fixture
def other() -> Iterator[HttpSink]:
    with http_sink() as server:
        yield server


def flags(nsqd: NsqdProcess, topic: str) -> tuple[str, ...]:
    return (f"--nsqd-tcp-address={nsqd.tcp_address}", f"--topic={topic}")


def create(nsqd: NsqdProcess, topic: str) -> None:
    nsqd.post(f"/topic/create?topic={topic}")
    nsqd.post(f"/channel/create?topic={topic}&channel={CHANNEL}")


def all_are_done(nsqd: NsqdProcess, topic: str, count: int) -> None:
    figures = {"depth": 0, "in_flight_count": 0, "deferred_count": 0, "message_count": count}
    wait_until(lambda: nsqd.shows(topic, CHANNEL, **figures), "all to be finished")


def test_every_message_is_posted(nsqd: NsqdProcess, topic: str, sink: HttpSink) -> None:
    sent = [b"%d" % number for number in range(500)]
    create(nsqd, topic)
    nsqd.post(f"/mpub?topic={topic}", b"\n".join(sent))
    more = (f"--post={sink.url}/in?a=b", "--header=X-Key:  a: b ", "-n=20")
    with tool_process("nsq_to_http", *flags(nsqd, topic), *more) as push:
        all_are_done(nsqd, topic, 500)
        push.logs("INFO: [aggregate]: finished 250 - 99th: ", count=2)
        push.stop()

    assert sorted(sent) == sorted(sink.taken())
    assert sink.connections <= 20
    first = sink.requests[0]
    assert ("POST", "/in?a=b") == (first.method, first.path)
    expected = {
        "host": sink.url.removeprefix("http://"),
        "content-length": "1",
        "user-agent": "nsq_to_http v1.3.0",
        "content-type": "application/octet-stream",
        "x-key": "a: b",
    }
    assert expected == {**first.headers, "content-length": "1"}


def test_a_message_can_be_part_of_a_url(nsqd: NsqdProcess, topic: str, sink: HttpSink) -> None:
    create(nsqd, topic)
    nsqd.publish(topic, b"a b&c=\xff/~")
    get = f"--get={sink.url}/q?v=%s&w=1"
    with tool_process("nsq_to_http", *flags(nsqd, topic), get) as push:
        all_are_done(nsqd, topic, 1)
        push.stop()

    [request] = sink.requests
    assert ("GET", "/q?v=a+b%26c%3D%FF%2F~&w=1") == (request.method, request.path)
    assert "content-type" not in request.headers


def test_a_message_is_redelivered_after_an_error_status(
    nsqd: NsqdProcess, topic: str, sink: HttpSink
) -> None:
    sent = [b"%d" % number for number in range(50)]
    sink.statuses = [200, 500, 204, 404, 302, 503] * 5
    create(nsqd, topic)
    nsqd.post(f"/mpub?topic={topic}", b"\n".join(sent))
    post = f"--post={sink.url}/"
    with tool_process("nsq_to_http", *flags(nsqd, topic), post, *QUICK) as push:
        all_are_done(nsqd, topic, 50)
        push.logs(f"HttpRequestError: {sink.url}/: got status code 503")
        push.stop()

    assert sorted(sent) == sorted(sink.taken())
    assert 70 == len(sink.requests)
    assert nsqd.shows(topic, CHANNEL, requeue_count=20)


def test_only_status_200_is_success_for_get(nsqd: NsqdProcess, topic: str, sink: HttpSink) -> None:
    sink.statuses = [204]
    create(nsqd, topic)
    nsqd.publish(topic, b"x")
    get = f"--get={sink.url}/%s"
    with tool_process("nsq_to_http", *flags(nsqd, topic), get, *QUICK) as push:
        all_are_done(nsqd, topic, 1)
        push.stop()

    assert [204, 200] == [request.status for request in sink.requests]


def test_failures_make_it_back_off(nsqd: NsqdProcess, topic: str, sink: HttpSink) -> None:
    sink.status = 500
    create(nsqd, topic)
    nsqd.publish(topic, b"x")
    post = f"--post={sink.url}/"
    with tool_process("nsq_to_http", *flags(nsqd, topic), post) as push:
        push.logs("backing off for 2 s")
        wait_until(lambda: nsqd.shows(topic, CHANNEL, deferred_count=1), "the message to wait")
        push.stop()


def test_hostpool_skips_failing_addresses(
    nsqd: NsqdProcess, topic: str, sink: HttpSink, other: HttpSink
) -> None:
    other.status = 500
    create(nsqd, topic)
    nsqd.post(f"/mpub?topic={topic}", b"\n".join([b"x"] * 200))
    both = (f"--post={sink.url}/", f"--post={other.url}/", "-n=1")
    with tool_process("nsq_to_http", *flags(nsqd, topic), *both, *QUICK) as push:
        all_are_done(nsqd, topic, 200)
        push.stop()

    assert (1, 200) == (len(other.requests), len(sink.requests))


@pytest.mark.parametrize(
    ("mode", "expected"), [("round-robin", (50, 50)), ("multicast", (100, 100))]
)
def test_round_robin_takes_turns_and_other_modes_send_to_all(
    nsqd: NsqdProcess,
    topic: str,
    sink: HttpSink,
    other: HttpSink,
    mode: str,
    expected: tuple[int, int],
) -> None:
    create(nsqd, topic)
    nsqd.post(f"/mpub?topic={topic}", b"\n".join([b"x"] * 100))
    more = (f"--post={sink.url}/", f"--post={other.url}/", f"--mode={mode}", "--status-every=50")
    with tool_process("nsq_to_http", *flags(nsqd, topic), *more) as push:
        all_are_done(nsqd, topic, 100)
        for each in (sink, other):
            push.logs(f"INFO: [{each.url}/]: finished 50 - 99th: ")
        push.stop()

    assert expected == (len(sink.requests), len(other.requests))


def test_a_sample_is_sent_and_the_rest_is_finished(
    nsqd: NsqdProcess, topic: str, sink: HttpSink
) -> None:
    create(nsqd, topic)
    nsqd.post(f"/mpub?topic={topic}", b"\n".join([b"x"] * 1000))
    sample = (f"--post={sink.url}/", "--sample=0.1")
    with tool_process("nsq_to_http", *flags(nsqd, topic), *sample) as push:
        all_are_done(nsqd, topic, 1000)
        push.stop()

    assert 40 < len(sink.requests) < 200


def test_a_slow_request_times_out(nsqd: NsqdProcess, topic: str, sink: HttpSink) -> None:
    create(nsqd, topic)
    nsqd.publish(topic, b"x")
    slow = (f"--post={sink.url}/", "--http-client-request-timeout=100ms")
    with (
        sink.lock,  # the sink needs the lock to answer
        tool_process("nsq_to_http", *flags(nsqd, topic), *slow, *QUICK) as push,
    ):
        push.logs(f"HttpRequestError: {sink.url}/: timed out")
        push.stop()
