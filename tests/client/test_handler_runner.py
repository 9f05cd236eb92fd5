"""Handlers that are plain functions: they may block, and answer from their own thread."""

import asyncio
import contextvars
import logging
import threading

import pytest
from tests.client.conftest import Run
from tests.client.eventually import eventually

from penstock.client import ClientConfig, Consumer, Message
from penstock.common.errors import ClientError, NotConfirmedError
from penstock.testing.nsqd import NsqdProcess
from penstock.testing.waiting import wait_until

SECONDS = 20.0  # deadline of waits that must succeed
EAGER = ClientConfig(default_requeue_delay=0.0, max_backoff_duration=0.0)


def nsqd_shows(nsqd: NsqdProcess, topic: str, **figures: int) -> None:
    wait_until(lambda: nsqd.shows(topic, "c", **figures), str(figures))


def test_the_loop_runs_while_a_function_blocks(nsqd: NsqdProcess, topic: str, run: Run) -> None:
    nsqd.publish(topic, b"x")
    begun, released = threading.Event(), threading.Event()
    outcome = []

    async def scenario() -> None:
        async with Consumer(topic, "c", nsqd=nsqd.tcp_address) as consumer:

            def handle(_message: Message) -> None:
                begun.set()
                outcome.append(released.wait(SECONDS))
                consumer.stop()

            handling = asyncio.create_task(consumer.run(handle))
            await eventually(begun.is_set, "the handler")
            released.set()
            await handling

    run(scenario())
    assert [True] == outcome
    nsqd_shows(nsqd, topic, depth=0, in_flight_count=0, requeue_count=0)


def test_a_message_is_touched_while_a_function_blocks(
    nsqd: NsqdProcess, topic: str, run_once: Run
) -> None:
    """The function blocks for longer than nsqd's message timeout."""
    nsqd.publish(topic, b"x")
    ended = threading.Event()
    attempts = []

    async def scenario() -> None:
        config = ClientConfig(msg_timeout=3.0)
        async with Consumer(topic, "c", nsqd=nsqd.tcp_address, config=config) as consumer:

            def handle(message: Message) -> None:
                attempts.append(message.attempts)
                ended.wait(3.5)
                consumer.stop()

            await consumer.run(handle)

    run_once(scenario())
    assert [1] == attempts
    nsqd_shows(nsqd, topic, timeout_count=0, depth=0, in_flight_count=0)


def test_functions_run_in_parallel_after_many_fast_ones(
    nsqd: NsqdProcess, topic: str, run_once: Run
) -> None:
    """A worker may take many fast messages at a time, but not all the slow ones."""
    nsqd.publish(topic, *[b"quick"] * 2000, *[b"slow"] * 40)
    slow_ones = threading.Barrier(4, timeout=SECONDS)
    handled = []

    async def scenario() -> None:
        config = ClientConfig(max_in_flight=400)
        async with Consumer(topic, "c", nsqd=nsqd.tcp_address, config=config) as consumer:

            def handle(message: Message) -> None:
                if message.body == b"slow":
                    slow_ones.wait()
                handled.append(message.id)
                if len(handled) == 2040:
                    consumer.stop()

            await consumer.run(handle, concurrency=4)

    run_once(scenario())
    assert 2040 == len(set(handled))


def test_functions_run_in_parallel(nsqd: NsqdProcess, topic: str, run: Run) -> None:
    nsqd.publish(topic, *[b"x"] * 4)
    all_four = threading.Barrier(4, timeout=SECONDS)

    async def scenario() -> None:
        async with Consumer(topic, "c", nsqd=nsqd.tcp_address) as consumer:

            def handle(_message: Message) -> None:
                all_four.wait()
                consumer.stop()

            await consumer.run(handle, concurrency=4)

    run(scenario())
    assert not all_four.broken
    nsqd_shows(nsqd, topic, depth=0, in_flight_count=0, requeue_count=0)


def test_a_function_answers_from_its_thread(nsqd: NsqdProcess, topic: str, run: Run) -> None:
    nsqd.publish(topic, b"finished", b"requeued")
    threads: set[int] = set()

    async def scenario() -> None:
        async with Consumer(topic, "c", nsqd=nsqd.tcp_address, config=EAGER) as consumer:

            def handle(message: Message) -> None:
                threads.add(threading.get_ident())
                message.touch()
                if message.body == b"requeued" and message.attempts == 1:
                    message.requeue(0.01)
                else:
                    message.finish()
                with pytest.raises(ClientError, match="already answered"):
                    message.finish()
                if message.attempts == 2:
                    consumer.stop()

            await consumer.run(handle)

    run(scenario())
    assert threading.get_ident() not in threads
    nsqd_shows(nsqd, topic, depth=0, in_flight_count=0, deferred_count=0, requeue_count=1)


def test_a_message_is_redelivered_if_its_function_does_not_end_in_time(
    nsqd: NsqdProcess, topic: str, run: Run
) -> None:
    nsqd.publish(topic, b"x")
    released = threading.Event()
    refusals: list[str] = []
    config = ClientConfig(close_timeout=0.1)

    async def scenario() -> None:
        async with Consumer(topic, "c", nsqd=nsqd.tcp_address, config=config) as consumer:

            def handle(message: Message) -> None:
                consumer.stop()
                released.wait(SECONDS)
                try:
                    message.finish()
                except ClientError as refusal:
                    refusals.append(str(refusal))

            await consumer.run(handle)

    run(scenario())
    nsqd_shows(nsqd, topic, depth=1, in_flight_count=0, requeue_count=1)
    released.set()
    wait_until(lambda: refusals, "the late answer")
    assert "already answered" in refusals[0]


class AsyncCallable:
    """A handler that is neither a function nor a method."""

    def __init__(self, consumer: Consumer) -> None:
        self.threads: list[int] = []
        self._consumer = consumer

    async def __call__(self, _message: Message) -> None:
        self.threads.append(threading.get_ident())
        self._consumer.stop()


def test_coroutine_functions_run_in_the_loop(nsqd: NsqdProcess, topic: str, run: Run) -> None:
    async def scenario() -> None:
        for is_wrapped in (False, True):
            nsqd.publish(topic, b"x")
            async with Consumer(topic, "c", nsqd=nsqd.tcp_address) as consumer:
                handler = AsyncCallable(consumer)
                await consumer.run((lambda message: handler(message)) if is_wrapped else handler)  # noqa: B023, PLW0108

            assert [threading.get_ident()] == handler.threads

    run(scenario())
    nsqd_shows(nsqd, topic, depth=0, in_flight_count=0, requeue_count=0)


def test_a_function_sees_the_context_of_run(nsqd: NsqdProcess, topic: str, run: Run) -> None:
    nsqd.publish(topic, b"x")
    tenant = contextvars.ContextVar("tenant", default="none")
    seen = []

    async def scenario() -> None:
        async with Consumer(topic, "c", nsqd=nsqd.tcp_address) as consumer:

            def handle(_message: Message) -> None:
                seen.append(tenant.get())
                consumer.stop()

            tenant.set("acme")
            await consumer.run(handle)

    run(scenario())
    assert ["acme"] == seen


@pytest.mark.parametrize(
    ("error", "has_traceback"),
    [(ValueError("bad body"), True), (NotConfirmedError("too slow"), False)],
)
@pytest.mark.parametrize("in_thread", [False, True])
def test_an_unexpected_failure_is_logged_with_its_traceback(
    nsqd: NsqdProcess,
    topic: str,
    run: Run,
    caplog: pytest.LogCaptureFixture,
    *,
    error: Exception,
    has_traceback: bool,
    in_thread: bool,
) -> None:
    nsqd.publish(topic, b"x")

    async def scenario() -> None:
        async with Consumer(topic, "c", nsqd=nsqd.tcp_address, config=EAGER) as consumer:

            def handle(message: Message) -> None:
                if message.attempts == 1:
                    raise error
                consumer.stop()

            async def handle_in_loop(message: Message) -> None:
                handle(message)

            await consumer.run(handle if in_thread else handle_in_loop)

    with caplog.at_level(logging.INFO, logger="penstock.client"):
        run(scenario())
    (record,) = [each for each in caplog.records if "handling" in each.message]

    assert logging.ERROR == record.levelno
    assert f"{type(error).__name__}: {error}" in record.message
    assert has_traceback == ("raise error" in (record.exc_text or ""))


@pytest.mark.parametrize("concurrency", [1, 4])
def test_short_functions_handle_each_message_once(
    nsqd: NsqdProcess, topic: str, run: Run, *, concurrency: int
) -> None:
    """Also while some fail, and messages are queued for the threads."""
    bodies = [b"%d" % number for number in range(1000)]
    nsqd.publish(topic, *bodies)
    succeeded: list[bytes] = []

    async def scenario() -> None:
        async with Consumer(topic, "c", nsqd=nsqd.tcp_address, config=EAGER) as consumer:

            def handle(message: Message) -> None:
                if message.attempts == 1 and message.body.endswith(b"99"):
                    raise ValueError("not yet")
                succeeded.append(message.body)
                if len(succeeded) == len(bodies):
                    consumer.stop()

            await consumer.run(handle, concurrency=concurrency)

    run(scenario())
    assert sorted(bodies) == sorted(succeeded)
    if concurrency == 1:
        at_first = [body for body in bodies if not body.endswith(b"99")]
        assert at_first == [body for body in succeeded if not body.endswith(b"99")]
    nsqd_shows(nsqd, topic, depth=0, in_flight_count=0, requeue_count=10)
