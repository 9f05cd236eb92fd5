"""Heartbeats and deadlines, on a loop whose clock is set by hand."""

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
    """As much of an event loop as a pulse needs."""

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
        """Fires, in order, what is due until so long after the start."""
        end = 100.0 + seconds
        while due := [each for each in self.pending() if each.at <= end]:
            timer = min(due, key=lambda each: each.at)
            self.timers.remove(timer)
            self.now = timer.at
            timer.call()
        self.now = end

    def hold_to(self, seconds: float) -> None:
        """Does nothing until so long after the start, and then what has been due."""
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
    """A connection with its pulse."""

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
        """Sends a command every half second."""
        while self.loop.now < 100.0 + seconds:
            self.loop.pass_to(self.loop.now - 100.0 + 0.5)
            self.heartbeat.last_command_at = self.loop.now


@pytest.fixture
def patient() -> Patient:
    return Patient()


def test_it_beats_at_its_interval(patient: Patient) -> None:
    patient.answers_until(9.0)

    assert 4 == patient.connection.beats
    assert [] == patient.connection.given_up


def test_two_intervals_of_silence_are_too_many(patient: Patient) -> None:
    patient.loop.pass_to(3.9)
    assert [] == patient.connection.given_up

    patient.loop.pass_to(4.0)
    assert ["i/o timeout"] == patient.connection.given_up
    assert 1 == patient.connection.beats


def test_whoever_waits_for_us_is_not_silent(patient: Patient) -> None:
    patient.heartbeat.is_answering = True
    patient.loop.pass_to(60.0)
    assert (30, []) == (patient.connection.beats, patient.connection.given_up)

    patient.heartbeat.is_answering = False
    patient.heartbeat.last_command_at = patient.loop.now
    patient.loop.pass_to(63.9)
    assert [] == patient.connection.given_up
    patient.loop.pass_to(64.0)
    assert ["i/o timeout"] == patient.connection.given_up


def test_whoever_takes_nothing_for_an_interval_is_given_up_whatever_it_sends(
    patient: Patient,
) -> None:
    patient.answers_until(1.0)
    patient.heartbeat.blocked_since = patient.loop.now
    patient.heartbeat.schedule()
    patient.answers_until(2.5)
    assert [] == patient.connection.given_up

    patient.answers_until(3.0)
    assert ["i/o timeout"] == patient.connection.given_up


def test_without_heartbeats_silence_is_nobodys_business(patient: Patient) -> None:
    patient.interval = None
    patient.heartbeat.start()
    patient.heartbeat.blocked_since = patient.loop.now
    patient.heartbeat.schedule()
    patient.loop.pass_to(1000.0)

    assert (0, []) == (patient.connection.beats, patient.connection.given_up)


def test_a_new_interval_moves_the_deadline_but_not_the_beats(patient: Patient) -> None:
    patient.interval = 10.0
    patient.loop.pass_to(19.9)
    assert (9, []) == (patient.connection.beats, patient.connection.given_up)

    patient.loop.pass_to(20.0)
    assert ["i/o timeout"] == patient.connection.given_up


def test_a_stranger_hears_no_heartbeat_and_has_a_limited_time(patient: Patient) -> None:
    patient.interval = 3.0
    patient.connection.is_greeted = False
    patient.loop.pass_to(4.9)
    assert (0, []) == (patient.connection.beats, patient.connection.given_up)

    patient.loop.pass_to(5.0)
    assert ["no protocol magic in time"] == patient.connection.given_up


class TestBeingHeld:
    """For so long that nobody has read what clients have sent, or sent what they would answer."""

    def test_a_client_is_asked_once_more_and_has_its_time(self, patient: Patient) -> None:
        patient.loop.hold_to(60.0)
        assert (1, []) == (patient.connection.beats, patient.connection.given_up)

        patient.loop.pass_to(63.9)
        assert [] == patient.connection.given_up
        patient.loop.pass_to(64.0)
        assert ["i/o timeout"] == patient.connection.given_up

    def test_whoever_takes_nothing_has_an_interval(self, patient: Patient) -> None:
        patient.heartbeat.blocked_since = patient.loop.now
        patient.heartbeat.schedule()
        patient.loop.hold_to(60.0)
        patient.loop.pass_to(61.9)
        assert [] == patient.connection.given_up

        patient.loop.pass_to(62.0)
        assert ["i/o timeout"] == patient.connection.given_up

    def test_a_stranger_has_its_time(self, patient: Patient) -> None:
        patient.interval = None
        patient.heartbeat.start()
        patient.connection.is_greeted = False
        patient.loop.hold_to(60.0)
        patient.loop.pass_to(60.0 + GREETING_SECONDS - 0.1)
        assert [] == patient.connection.given_up

        patient.loop.pass_to(60.0 + GREETING_SECONDS)
        assert ["no protocol magic in time"] == patient.connection.given_up

    def test_for_a_moment_changes_nothing(self, patient: Patient) -> None:
        patient.loop.pass_to(3.5)
        patient.loop.hold_to(4.5)

        assert ["i/o timeout"] == patient.connection.given_up


class TestSlowCommands:
    @pytest.fixture(autouse=True)
    def no_heartbeats(self, patient: Patient) -> None:
        patient.interval = None
        patient.heartbeat.start()

    def test_one_that_takes_too_long_ends_the_connection(self, patient: Patient) -> None:
        patient.loop.pass_to(GREETING_SECONDS - 0.1)
        patient.connection.is_inside_command = True
        patient.loop.pass_to(GREETING_SECONDS + COMMAND_SECONDS - 0.1)
        assert [] == patient.connection.given_up

        patient.loop.pass_to(GREETING_SECONDS + COMMAND_SECONDS)
        assert ["a command took too long to arrive"] == patient.connection.given_up

    def test_one_after_the_other_does_not(self, patient: Patient) -> None:
        patient.connection.is_inside_command = True
        patient.answers_until(100.0)

        assert [] == patient.connection.given_up

    def test_nor_does_one_that_ends_and_one_that_begins_later(self, patient: Patient) -> None:
        patient.connection.is_inside_command = True
        patient.loop.pass_to(GREETING_SECONDS)
        patient.connection.is_inside_command = False
        patient.loop.pass_to(GREETING_SECONDS + COMMAND_SECONDS)
        patient.connection.is_inside_command = True
        patient.loop.pass_to(GREETING_SECONDS + 2 * COMMAND_SECONDS)

        assert [] == patient.connection.given_up


def test_once_stopped_nothing_happens(patient: Patient) -> None:
    patient.heartbeat.stop()

    assert [] == patient.loop.pending()
