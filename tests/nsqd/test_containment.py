"""An unexpected exception affects one connection, channel or topic for a moment, but not nsqd."""

from pathlib import Path

import pytest
from tests.nsqd.patched_nsqd import FAULTY, INJECTED, PatchedNsqd, run_patched_nsqd

from penstock.protocol import commands
from penstock.testing.nsqd import run_nsqd
from penstock.testing.raw_client import DisconnectedError, RawClient, WireError
from penstock.testing.waiting import wait_until

GOOD = "good"
CHANNEL = "c"

POINTS = [
    "penstock.broker.topic:Topic.publish",
    "penstock.broker.topic:Topic.save_progress",
    "penstock.broker.topic:Topic.trim",
    "penstock.broker.channel:Channel.enqueue",
    "penstock.broker.channel:Channel.pump",
    "penstock.broker.channel:Channel.advance",
    "penstock.storage.topic_log:TopicLog.append",
    "penstock.storage.topic_log:TopicLog.begin_sync",
    "penstock.storage.topic_log:TopicLog.end_sync",
    "penstock.storage.topic_log:TopicLog.probe",
    "penstock.storage.fsync:LogFsync.run",
    "penstock.storage.cursors:Cursors.begin_sync",
    "penstock.storage.cursors:Cursors.end_sync",
    "penstock.storage.cursors:Cursors.flush",
    "penstock.storage.fsync:JournalFsync.run",
    "penstock.storage.fsync:GroupCommit.request_if_unsynced",
    "penstock.broker.publishing:Replies.on_batch_done",
    "penstock.nsqd.tcp:Client._handle",
    "penstock.nsqd.tcp:Client.__init__",
    "penstock.net.http_server.connection:HttpServerConnection.__init__",
]


@pytest.mark.parametrize("sync_every", [1, 2500])
@pytest.mark.parametrize("point", POINTS)
def test_an_unexpected_exception_does_not_affect_other_topics(
    point: str, sync_every: int, tmp_path: Path
) -> None:
    flags = (f"--sync-every={sync_every}", "--sync-timeout=20ms", "--msg-timeout=200ms")
    with run_patched_nsqd(f"raise={point}", *flags, data_path=tmp_path) as nsqd:
        provoke(nsqd)
        good_topic = other_topic_served(nsqd)
        heals(nsqd)
        wait_until(lambda: is_healthy(nsqd), "/ping to answer OK")
        assert "internal error while" in nsqd.log
        assert b"nsqd_internal_errors_total 1\n" in nsqd.http("GET", "/metrics").body
    with run_nsqd(data_path=tmp_path) as nsqd:
        assert 0 == nsqd.stats(good_topic, CHANNEL)["depth"]


def connection(nsqd: PatchedNsqd) -> RawClient:
    """A connection with a short timeout: the bug may cost it a reply, and the test retries."""
    return nsqd.connect(timeout_seconds=5)


def is_healthy(nsqd: PatchedNsqd) -> bool:
    try:
        return nsqd.http("GET", "/ping").body == b"OK"
    except OSError:
        return False  # the bug may close this connection


def provoke(nsqd: PatchedNsqd) -> None:
    """Trigger calls of the faulty function until it has raised."""

    def has_failed() -> bool:
        try:
            with connection(nsqd) as consumer, connection(nsqd) as producer:
                consumer.subscribe(FAULTY, FAULTY, rdy=1)
                producer.call(commands.pub(FAULTY, b"provoke"))
                consumer.send(commands.fin(consumer.message().id))
            nsqd.http("POST", f"/topic/pause?topic={FAULTY}")
            nsqd.http("POST", f"/topic/unpause?topic={FAULTY}")
        except (WireError, DisconnectedError, TimeoutError, OSError):
            pass
        return INJECTED in nsqd.log

    wait_until(has_failed, "the bug to show itself")


def other_topic_served(nsqd: PatchedNsqd) -> str:
    """Publishing, delivery, timeouts and FIN work for a topic that has no bug. Returns its name."""
    topics: list[str] = []

    def is_served() -> bool:
        # Each try has its own topic: the one before may have failed after its publish.
        topic = f"{GOOD}{len(topics)}"
        topics.append(topic)
        try:
            with connection(nsqd) as producer:
                producer.call(commands.pub(topic, b"message"))
            consumer = nsqd.consumer(topic, CHANNEL)
        except (WireError, DisconnectedError, TimeoutError, OSError):
            return False  # the bug may close this connection
        first = consumer.message()
        again = consumer.message()
        assert (first.id, 1, 2) == (again.id, first.attempts, again.attempts)
        consumer.send(commands.fin(again.id))
        consumer.call(commands.cls())  # nsqd answers CLS after it has handled the FIN.
        return True

    wait_until(is_served, "another topic to be served")
    return topics[-1]


def heals(nsqd: PatchedNsqd) -> None:
    """The faulty topic accepts, delivers and finishes messages again; none is lost."""

    def is_published() -> bool:
        try:
            with connection(nsqd) as producer:
                return b"OK" == producer.call(commands.pub(FAULTY, b"last"))
        except (WireError, DisconnectedError, TimeoutError, OSError):
            return False

    wait_until(is_published, "the topic to take messages again")
    consumer = nsqd.consumer(FAULTY, FAULTY, rdy=10)

    def has_last() -> bool:
        try:
            message = consumer.message()
        except (DisconnectedError, TimeoutError, OSError):
            return False
        consumer.send(commands.fin(message.id))
        return message.body == b"last"

    wait_until(has_last, "the message to be delivered")
