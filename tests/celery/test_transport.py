"""kombu on NSQ: a real nsqd, and kombu's own producers and consumers."""

import os
import signal
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from kombu import Consumer, Exchange, Producer, Queue
from kombu.exceptions import ChannelError
from tests.celery.conftest import Connect
from tests.net.tls.certificates import Authority, Identity
from tests.nsqd.auth_server import AuthServer, auth_server

from penstock.common.errors import NotConnectedError
from penstock.testing.addresses import reserved_address
from penstock.testing.nsqd import NsqdProcess, run_nsqd
from penstock.testing.waiting import wait_until

SECONDS_MAX = 60.0


class Listener:
    """Consumes a queue and keeps the messages."""

    def __init__(self, connection: Any, queue: Queue, **options: Any) -> None:
        self.messages: list[Any] = []
        self._connection = connection
        channel = connection.channel()
        channel.basic_qos(prefetch_count=options.pop("prefetch_count", 0))
        self.consumer = Consumer(channel, [queue], on_message=self.messages.append, **options)
        self.consumer.consume()

    def next(self, *, seconds: float = SECONDS_MAX) -> Any:
        """The next message. Raises TimeoutError if there is none."""
        self._connection.drain_events(timeout=seconds)
        return self.messages[-1]


def send(connection: Any, queue: str, body: object, **headers: object) -> None:
    Producer(connection.channel()).publish(body, routing_key=queue, headers=headers)


def in_seconds(seconds: float) -> str:
    return (datetime.now(UTC) + timedelta(seconds=seconds)).isoformat()


# Acknowledgement.


def test_publishing_stores_and_acknowledging_finishes(
    nsqd: NsqdProcess, topic: str, connect: Connect
) -> None:
    connection = connect(f"nsq://{nsqd.tcp_address}")
    send(connection, topic, {"order": 7})
    assert 1 == nsqd.stats(topic)["depth"]

    message = Listener(connection, Queue(topic)).next()
    assert {"order": 7} == message.payload
    assert nsqd.shows(topic, "celery", in_flight_count=1)

    message.ack()
    wait_until(lambda: nsqd.shows(topic, "celery", in_flight_count=0, depth=0), "FIN")


def test_a_rejected_message_is_redelivered_only_if_requeued(
    nsqd: NsqdProcess, topic: str, connect: Connect
) -> None:
    connection = connect(f"nsq://{nsqd.tcp_address}")
    send(connection, topic, "x")
    listener = Listener(connection, Queue(topic))

    listener.next().requeue()
    again = listener.next()
    assert again.delivery_info["redelivered"]

    again.reject()
    wait_until(lambda: nsqd.shows(topic, "celery", in_flight_count=0, depth=0), "FIN")


def test_the_prefetch_count_is_never_exceeded(
    nsqd: NsqdProcess, topic: str, connect: Connect
) -> None:
    connection = connect(f"nsq://{nsqd.tcp_address}")
    for number in range(10):
        send(connection, topic, number)
    listener = Listener(connection, Queue(topic), prefetch_count=3)
    wait_until(lambda: nsqd.shows(topic, "celery", in_flight_count=3, depth=7), "the prefetch")

    listener.consumer.qos(prefetch_count=5)
    wait_until(lambda: nsqd.shows(topic, "celery", in_flight_count=5, depth=5), "the larger one")


def test_held_messages_are_touched(topic: str, connect: Connect) -> None:
    with run_nsqd("--msg-timeout=4s") as nsqd:
        connection = connect(f"nsq://{nsqd.tcp_address}")
        send(connection, topic, "takes two timeouts and a half")
        listener = Listener(connection, Queue(topic))
        message = listener.next()
        with pytest.raises(TimeoutError):  # no event loop runs in the meantime
            listener.next(seconds=9)

        assert nsqd.shows(topic, "celery", timeout_count=0, in_flight_count=1)
        message.ack()


def test_messages_of_a_closed_connection_go_to_another(
    nsqd: NsqdProcess, topic: str, connect: Connect
) -> None:
    one, other = (connect(f"nsq://{nsqd.tcp_address}") for _ in range(2))
    send(one, topic, "x")
    Listener(one, Queue(topic)).next()
    one.close()

    Listener(other, Queue(topic)).next().ack()


def test_a_message_not_from_kombu_is_dropped_and_logged(
    nsqd: NsqdProcess, topic: str, connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    connection = connect(f"nsq://{nsqd.tcp_address}")
    foreign = [
        b"not JSON",
        b"[]",
        b"[" * 100_000,
        b'{"headers": {}, "properties": {}}',
        b'{"headers": {"__type__": "decimal", "__value__": "x"}, "properties": {}}',
        b'{"headers": {}, "body": "x", "properties": {"body_encoding": "base64"}}',
    ]
    nsqd.publish(topic, *foreign)
    send(connection, topic, "good")

    assert "good" == Listener(connection, Queue(topic)).next().payload
    # By id, because a message that was not acknowledged in time is redelivered.
    dropped = {each.split()[1] for each in caplog.messages if "dropped" in each}
    assert len(foreign) == len(dropped)


# Deferral.


def test_a_task_with_an_eta_waits_in_nsqd(nsqd: NsqdProcess, topic: str, connect: Connect) -> None:
    connection = connect(f"nsq://{nsqd.tcp_address}")
    listener = Listener(connection, Queue(topic))
    due = datetime.now(UTC) + timedelta(seconds=6)
    send(connection, topic, "later", eta=due.isoformat())
    wait_until(lambda: nsqd.shows(topic, "celery", deferred_count=1), "the deferral")

    listener.next().ack()
    assert due - datetime.now(UTC) < timedelta(milliseconds=5)


def test_an_eta_beyond_max_defer_is_deferred_again(
    nsqd: NsqdProcess, topic: str, connect: Connect
) -> None:
    options = {"max_defer": 0.3}
    connection = connect(f"nsq://{nsqd.tcp_address}", transport_options=options)
    listener = Listener(connection, Queue(topic))
    due = datetime.now(UTC) + timedelta(seconds=8)
    send(connection, topic, "much later", eta=due.isoformat())
    message = listener.next()

    # Celery itself waits for the last second.
    assert due - datetime.now(UTC) <= timedelta(seconds=1)
    assert nsqd.stats(topic, "celery")["requeue_count"] >= 1
    message.ack()


def test_an_eta_beyond_nsqds_limit_is_still_deferred(
    nsqd: NsqdProcess, topic: str, connect: Connect
) -> None:
    connection = connect(f"nsq://{nsqd.tcp_address}")  # a minute instead of an hour
    Listener(connection, Queue(topic))
    for _ in range(2):
        send(connection, topic, "tomorrow", eta=in_seconds(86400))

    wait_until(lambda: nsqd.shows(topic, "celery", deferred_count=2), "the deferral")


# Exchanges.


def test_a_fanout_reaches_current_subscribers_only(
    nsqd: NsqdProcess, topic: str, connect: Connect
) -> None:
    exchange = Exchange(topic, type="fanout")
    producer, *connections = (connect(f"nsq://{nsqd.tcp_address}") for _ in range(4))
    shout = Producer(producer.channel(), exchange=exchange).publish

    def listen(number: int) -> Listener:
        queue = Queue(f"{topic}@{number}", exchange, auto_delete=True)
        return Listener(connections[number], queue, no_ack=True)

    shout("nobody hears this")
    first = [listen(0), listen(1)]
    shout("hello")

    assert ["hello", "hello"] == [each.next().payload for each in first]
    with pytest.raises(TimeoutError):
        listen(2).next(seconds=0.3)


def test_a_transient_queue_gets_messages_that_match_its_bindings(
    nsqd: NsqdProcess, topic: str, connect: Connect
) -> None:
    exchange = Exchange(topic, type="topic")
    queue = Queue(f"{topic}.ev", exchange, routing_key="worker.#", auto_delete=True, durable=False)
    url = f"nsq://{nsqd.tcp_address}"
    listener = Listener(connect(url), queue, no_ack=True)
    producer = Producer(connect(url).channel(), exchange=exchange)
    for key in ("task.sent", "worker.online"):
        producer.publish(key, routing_key=key)

    assert "worker.online" == listener.next().payload


def test_a_message_that_would_be_lost_is_refused(
    nsqd: NsqdProcess, topic: str, connect: Connect
) -> None:
    producer = Producer(connect(f"nsq://{nsqd.tcp_address}").channel(), exchange=Exchange(topic))

    with pytest.raises(ChannelError, match="no known queue is bound"):
        producer.publish("x", routing_key="nowhere")


# Counting.


def test_a_queue_is_counted_and_purged(nsqd: NsqdProcess, topic: str, connect: Connect) -> None:
    options = {"nsqd_http_addresses": nsqd.http_address}
    connection = connect(f"nsq://{nsqd.tcp_address}", transport_options=options)
    queue = Queue(topic)(connection.channel())
    send(connection, topic, "now")
    Listener(connection, Queue(topic)).consumer.cancel()  # the channel exists from here on
    send(connection, topic, "later", eta=in_seconds(50))
    wait_until(lambda: nsqd.shows(topic, "celery", deferred_count=1, depth=1), "both")

    assert 2 == queue.queue_declare(passive=True).message_count
    assert 2 == queue.purge()
    assert 0 == queue.queue_declare(passive=True).message_count


def test_purge_does_not_touch_another_nsqd_on_the_guessed_port(
    nsqd: NsqdProcess, topic: str, connect: Connect
) -> None:
    connection = connect(f"nsq://{nsqd.tcp_address}")  # its HTTP port is not the TCP port + 1

    with pytest.raises(NotConnectedError, match="nsqd_http_addresses"):
        Queue(topic)(connection.channel()).purge()


# Connections.


def test_after_an_nsqd_restart_no_task_runs_twice(connect: Connect) -> None:
    with reserved_address() as address, run_nsqd(f"--tcp-address={address}") as nsqd:
        connection = connect(f"nsq://{address}")
        listener = Listener(connection, Queue("q"))
        send(connection, "q", "worked on")
        message = listener.next()
        nsqd.kill()
        nsqd.restart()
        send(connection, "q", "next")

        assert "next" == listener.next().payload
        wait_until(lambda: nsqd.shows("q", "celery", in_flight_count=2), "the redelivery")
        message.ack()
        wait_until(lambda: nsqd.shows("q", "celery", in_flight_count=1, depth=0), "FIN")
        assert 2 == len(listener.messages)
        listener.messages[-1].ack()


def test_several_nsqds_are_all_consumed(nsqd: NsqdProcess, topic: str, connect: Connect) -> None:
    with run_nsqd() as other:
        for each in (nsqd, other):
            send(connect(f"nsq://{each.tcp_address}"), topic, each.tcp_address)
        connection = connect(f"nsq://{nsqd.tcp_address};nsq://{other.tcp_address}")
        listener = Listener(connection, Queue(topic))
        bodies = set()
        for _ in range(2):
            message = listener.next()
            bodies.add(message.payload)
            message.ack()

        assert {nsqd.tcp_address, other.tcp_address} == bodies
        connection.close()


def test_an_unreachable_nsqd_is_a_connection_error(connect: Connect) -> None:
    connection = connect("nsq://:secret@127.0.0.1:1")

    assert "nsq://:**@127.0.0.1:1" == connection.as_uri()
    with pytest.raises(connection.connection_errors, match="refused"):
        connection.transport.establish_connection()  # without retries, as kombu does


def test_tls_and_auth_work(tmp_path: Path, connect: Connect) -> None:
    authority = Authority(tmp_path)
    identity = authority.issue("nsqd", common_name="127.0.0.1")
    answer = {
        "ttl": 60,
        "identity": "worker",
        "authorizations": [
            {"topic": ".*", "channels": [".*"], "permissions": ["subscribe", "publish"]}
        ],
    }
    with auth_server(answer) as auth, run_nsqd(*_secured(identity, auth)) as nsqd:
        connection = connect(
            f"nsqs://:s3cret@{nsqd.tcp_address}", ssl={"ca_certs": authority.root_ca}
        )
        send(connection, "q", "private")
        Listener(connection, Queue("q")).next().ack()
        connection.close()

    assert all("secret=s3cret" in each.target for each in auth.asked)


def _secured(identity: Identity, auth: AuthServer) -> list[str]:
    return [
        f"--tls-cert={identity.cert}",
        f"--tls-key={identity.key}",
        "--tls-required=tcp-https",
        f"--auth-http-address={auth.address}",
    ]


FORKING = """
import os, sys, time
from kombu import Connection, Consumer, Queue
with Connection(sys.argv[1]) as connection:
    Consumer(connection.channel(), [Queue(sys.argv[2])], on_message=print).consume()
    if os.fork() == 0:
        print("forked", flush=True)
        time.sleep(30)
    sys.stdin.read()
"""


def test_a_child_does_not_keep_a_killed_workers_connection_open(
    nsqd: NsqdProcess, topic: str
) -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", FORKING, f"nsq://{nsqd.tcp_address}", topic],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    with parent:
        assert parent.stdout is not None
        assert b"forked\n" == parent.stdout.readline()
        assert nsqd.shows(topic, "celery", client_count=1)
        parent.kill()
        wait_until(lambda: nsqd.shows(topic, "celery", client_count=0), "the end of the connection")
        os.killpg(parent.pid, signal.SIGKILL)
