import os
import signal
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
from bench.load import Consumer, Crew, LoadError, Outcome


@dataclass
class Nap:
    """A load that records when it ran and in which process."""

    messages: int
    ready: bool = False

    def prepare(self) -> None:
        self.ready = True

    def run(self) -> Outcome:
        assert self.ready
        now_ns = time.monotonic_ns()
        return Outcome(self.messages, now_ns, now_ns, [os.getpid()])


class Unprepared(Nap):
    def prepare(self) -> None:
        raise LoadError("cannot subscribe")


class Broken(Nap):
    def run(self) -> Outcome:
        raise ConnectionResetError("reset by peer")


class Killed(Nap):
    def run(self) -> Outcome:
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError


class TestCrew:
    def test_each_load_runs_in_its_own_process(self) -> None:
        with Crew([Nap(1), Nap(2)]) as crew:
            first, second = crew.go()

        assert (first.messages, second.messages) == (1, 2)
        assert len({os.getpid(), *first.latencies_ns, *second.latencies_ns}) == 3

    def test_no_load_starts_before_all_are_ready(self) -> None:
        with Crew([Nap(1), Nap(1)]) as crew:
            ready_ns = time.monotonic_ns()
            outcomes = crew.go()

        assert all(outcome.started_ns > ready_ns for outcome in outcomes)

    def test_a_load_that_cannot_prepare_cancels_the_run(self) -> None:
        with (
            pytest.raises(LoadError, match="Unprepared: cannot subscribe"),
            Crew([Nap(1), Unprepared(1)]),
        ):
            pass

    @pytest.mark.parametrize(
        ("load", "error"),
        [(Broken(1), "Broken: reset by peer"), (Killed(1), "a load process died")],
    )
    def test_a_load_that_fails_fails_the_run(self, load: Nap, error: str) -> None:
        with Crew([load]) as crew, pytest.raises(LoadError, match=error):
            crew.go()


@dataclass
class Scripted:
    """A reader whose input bytes are message ids."""

    channel: str
    arriving: bytes
    received: list[bytes] = field(default_factory=list)

    def open(self) -> socket.socket:
        self.ours, self.theirs = socket.socketpair()
        return self.ours

    def begin(self) -> None:
        self.theirs.sendall(self.arriving)

    def receive(self) -> int:
        got = self.ours.recv(2)
        self.received += [bytes([one]) for one in got]
        return len(got)

    def close(self) -> None:
        self.ours.close()
        self.theirs.close()

    def ids(self) -> Sequence[bytes]:
        return self.received


class TestConsumer:
    def consume(self, messages: int, *readers: Scripted) -> Outcome:
        consumer = Consumer(readers, messages)
        consumer.prepare()
        try:
            return consumer.run()
        finally:
            consumer.poll.close()

    def test_it_reads_until_all_messages_were_received(self) -> None:
        outcome = self.consume(5, Scripted("one", b"abc"), Scripted("one", b"de"))

        assert outcome.messages == 5

    def test_every_channel_has_its_own_messages(self) -> None:
        outcome = self.consume(6, Scripted("one", b"abc"), Scripted("two", b"abc"))

        assert outcome.messages == 6

    def test_a_message_that_is_received_twice_fails_the_run(self) -> None:
        with pytest.raises(LoadError, match="channel one got 4 of 5 messages"):
            self.consume(5, Scripted("one", b"abc"), Scripted("one", b"cd"))

    def test_a_message_of_another_channel_fails_the_run(self) -> None:
        with pytest.raises(LoadError, match="channel one got 4 of 3 messages"):
            self.consume(6, Scripted("one", b"abcd"), Scripted("two", b"ab"))
