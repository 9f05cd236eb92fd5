import asyncio
import time

from penstock.common.clock import SystemClock
from penstock.nsqd.loop_lag import LoopLag


async def await_samples(lag: LoopLag, count: int) -> None:
    async with asyncio.timeout(60):
        while figures_of(lag)["_count"] < count:  # noqa: ASYNC110 (it has nobody to tell)
            await asyncio.sleep(0.001)


def figures_of(lag: LoopLag) -> dict[str, float]:
    return dict(lag.histogram.samples())


def test_a_loop_that_is_held_up_is_late_by_the_rest_of_that_time() -> None:
    async def hold_up() -> dict[str, float]:
        lag = LoopLag(SystemClock())
        lag.start()
        time.sleep(0.3)  # noqa: ASYNC251 (that is the point)
        await await_samples(lag, 1)
        lag.stop()
        return figures_of(lag)

    figures = asyncio.run(hold_up())

    assert 1 == figures["_count"]
    assert figures["_sum"] >= 0.199
    assert 0 == figures['_bucket{le="0.1"}']


def test_samples_are_taken_until_it_is_stopped() -> None:
    async def watch() -> tuple[LoopLag, LoopLag]:
        stopped, running = LoopLag(SystemClock()), LoopLag(SystemClock())
        stopped.start()
        running.start()
        await await_samples(stopped, 2)
        stopped.stop()
        await await_samples(running, 4)
        running.stop()
        return stopped, running

    stopped, running = asyncio.run(watch())

    assert [2, 4] == [figures_of(stopped)["_count"], figures_of(running)["_count"]]
