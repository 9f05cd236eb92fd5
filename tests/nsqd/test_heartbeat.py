"""Heartbeats and deadlines, on a loop with a manual clock."""

import asyncio
from collections.abc import Callable
from typing import Any, cast

import pytest

from penstock.nsqd.heartbeat import Heartbeat, Timeouts

GREETING_SECONDS, COMMAND_SECONDS = 5.0, 8.0


class Timer:
    def __init__(self, at: float, call: Callable[[], None]) -> None:
        self.at = at
        self.call = call
        self.is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True


class ManualLoop:
    """The methods of an event loop that a heartbeat needs."""

    def __init__(self) -> None:
        self.now = 100.0
        self.timers: list[Timer] = []

    def time(self) -> float:
        return self.now

    def call_at(self, when: float, callback: Callable[[], None]) -> Timer:
        timer = Timer(when, callback)
        self.timers.append(timer)
        return timer

    def pass_to(self, seconds: float) -> None:
        """Run timers in order, up to this time after the start."""
        end = 100.0 + seconds
        while due := [each for each in self.pending() if each.at <= end]:
            timer = min(due, key=lambda each: each.at)
            self.timers.remove(timer)
            self.now = timer.at
            timer.call()
        self.now = end

    def hold_to(self, seconds: float) -> None:
        """Block the loop until this time after the start, then run the due timers."""
        self.now = 100.0 + seconds
        for timer in [each for each in self.pending() if each.at <= self.now]:
            self.timers.remove(timer)
            timer.call()

    def pending(self) -> list[Timer]:
        return [timer for timer in self.timers if not timer.is_cancelled]


class Connection:
    def __init__(self) -> None:
        self.is_greeted = True
        self.is_inside_command = False
        self.beats = 0
        self.given_up: list[str] = []

    def send_heartbeat(self) -> None:
        self.beats += 1

    def time_out(self, reason: str) -> None:
        self.given_up.append(reason)


class Patient:
    """A connection with its heartbeat."""

    def __init__(self) -> None:
        self.loop, self.connection = ManualLoop(), Connection()
        self.interval: float | None = 2.0
        timeouts = Timeouts(greeting_seconds=GREETING_SECONDS, command_seconds=COMMAND_SECONDS)
        loop: Any = self.loop
        self.heartbeat = Heartbeat(
            cast("asyncio.AbstractEventLoop", loop),
            self.connection,
            timeouts,
            lambda: self.interval,
        )
        self.heartbeat.start()

    def answers_until(self, seconds: float) -> None:
        """Send a command every half second."""
        while self.loop.now < 100.0 + seconds:
            self.loop.pass_to(self.loop.now - 100.0 + 0.5)
            self.heartbeat.last_command_at = self.loop.now


@pytest.fixture
def patient() -> Patient:
    return Patient()


def test_heartbeats_are_sent_at_their_interval(patient: Patient) -> None:
    patient.answers_until(9.0)

    assert 4 == patient.connection.beats
    assert [] == patient.connection.given_up


def test_two_intervals_of_silence_close_the_connection(patient: Patient) -> None:
    patient.loop.pass_to(3.9)
    assert [] == patient.connection.given_up

    patient.loop.pass_to(4.0)
    assert ["i/o timeout"] == patient.connection.given_up
    assert 1 == patient.connection.beats


def test_a_client_that_waits_for_a_response_is_not_silent(patient: Patient) -> None:
    patient.heartbeat.is_answering = True
    patient.loop.pass_to(60.0)
    assert (30, []) == (patient.connection.beats, patient.connection.given_up)

    patient.heartbeat.is_answering = False
    patient.heartbeat.last_command_at = patient.loop.now
    patient.loop.pass_to(63.9)
    assert [] == patient.connection.given_up
    patient.loop.pass_to(64.0)
    assert ["i/o timeout"] == patient.connection.given_up


def test_a_client_that_reads_nothing_for_an_interval_is_closed_even_if_it_sends(
    patient: Patient,
) -> None:
    patient.answers_until(1.0)
    patient.heartbeat.blocked_since = patient.loop.now
    patient.heartbeat.schedule()
    patient.answers_until(2.5)
    assert [] == patient.connection.given_up

    patient.answers_until(3.0)
    assert ["i/o timeout"] == patient.connection.given_up


def test_without_heartbeats_a_silent_client_stays_connected(patient: Patient) -> None:
    patient.interval = None
    patient.heartbeat.start()
    patient.heartbeat.blocked_since = patient.loop.now
    patient.heartbeat.schedule()
    patient.loop.pass_to(1000.0)

    assert (0, []) == (patient.connection.beats, patient.connection.given_up)


def test_a_new_interval_moves_the_deadline_but_not_the_heartbeats(patient: Patient) -> None:
    patient.interval = 10.0
    patient.loop.pass_to(19.9)
    assert (9, []) == (patient.connection.beats, patient.connection.given_up)

    patient.loop.pass_to(20.0)
    assert ["i/o timeout"] == patient.connection.given_up


def test_before_identify_there_are_no_heartbeats_and_a_time_limit(patient: Patient) -> None:
    patient.interval = 3.0
    patient.connection.is_greeted = False
    patient.loop.pass_to(4.9)
    assert (0, []) == (patient.connection.beats, patient.connection.given_up)

    patient.loop.pass_to(5.0)
    assert ["no protocol magic in time"] == patient.connection.given_up


class TestBeingHeld:
    """The loop is blocked so long that nsqd could neither read nor send."""

    def test_a_client_gets_another_heartbeat_and_a_full_deadline(self, patient: Patient) -> None:
        patient.loop.hold_to(60.0)
        assert (1, []) == (patient.connection.beats, patient.connection.given_up)

        patient.loop.pass_to(63.9)
        assert [] == patient.connection.given_up
        patient.loop.pass_to(64.0)
        assert ["i/o timeout"] == patient.connection.given_up

    def test_a_client_that_reads_nothing_has_another_interval(self, patient: Patient) -> None:
        patient.heartbeat.blocked_since = patient.loop.now
        patient.heartbeat.schedule()
        patient.loop.hold_to(60.0)
        patient.loop.pass_to(61.9)
        assert [] == patient.connection.given_up

        patient.loop.pass_to(62.0)
        assert ["i/o timeout"] == patient.connection.given_up

    def test_before_identify_the_time_limit_starts_again(self, patient: Patient) -> None:
        patient.interval = None
        patient.heartbeat.start()
        patient.connection.is_greeted = False
        patient.loop.hold_to(60.0)
        patient.loop.pass_to(60.0 + GREETING_SECONDS - 0.1)
        assert [] == patient.connection.given_up

        patient.loop.pass_to(60.0 + GREETING_SECONDS)
        assert ["no protocol magic in time"] == patient.connection.given_up

    def test_a_short_block_of_the_loop_changes_nothing(self, patient: Patient) -> None:
        patient.loop.pass_to(3.5)
        patient.loop.hold_to(4.5)

        assert ["i/o timeout"] == patient.connection.given_up


class TestSlowCommands:
    @pytest.fixture(autouse=True)
    def no_heartbeats(self, patient: Patient) -> None:
        patient.interval = None
        patient.heartbeat.start()

    def test_a_command_that_takes_too_long_closes_the_connection(self, patient: Patient) -> None:
        patient.loop.pass_to(GREETING_SECONDS - 0.1)
        patient.connection.is_inside_command = True
        patient.loop.pass_to(GREETING_SECONDS + COMMAND_SECONDS - 0.1)
        assert [] == patient.connection.given_up

        patient.loop.pass_to(GREETING_SECONDS + COMMAND_SECONDS)
        assert ["a command took too long to arrive"] == patient.connection.given_up

    def test_several_commands_in_a_row_do_not_close_the_connection(self, patient: Patient) -> None:
        patient.connection.is_inside_command = True
        patient.answers_until(100.0)

        assert [] == patient.connection.given_up

    def test_a_later_command_has_its_own_time_limit(self, patient: Patient) -> None:
        patient.connection.is_inside_command = True
        patient.loop.pass_to(GREETING_SECONDS)
        patient.connection.is_inside_command = False
        patient.loop.pass_to(GREETING_SECONDS + COMMAND_SECONDS)
        patient.connection.is_inside_command = True
        patient.loop.pass_to(GREETING_SECONDS + 2 * COMMAND_SECONDS)

        assert [] == patient.connection.given_up


def test_a_stopped_heartbeat_does_nothing(patient: Patient) -> None:
    patient.heartbeat.stop()

    assert [] == patient.loop.pending()
