"""So many a second, on a loop whose time is ours."""

import asyncio

from penstock.tools.throttle import Throttle


class _QuickLoop(asyncio.SelectorEventLoop):
    """Its time is what has been slept, which takes no time."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def time(self) -> float:
        return self.now


async def take(throttle: Throttle, wanted: int) -> int:
    """Lets time pass until the throttle has made up its mind."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, _QuickLoop)
    taking = asyncio.ensure_future(throttle.take(wanted))
    while not taking.done():
        await asyncio.sleep(0)
        if not taking.done():
            loop.now += 0.001
    return taking.result()


def test_what_passes_in_a_time_is_what_was_said() -> None:
    async def scenario() -> None:
        throttle = Throttle(100)
        for _ in range(101):
            assert 1 == await take(throttle, 1)
        loop = asyncio.get_running_loop()
        assert 0.99 < loop.time() < 1.2

    with asyncio.Runner(loop_factory=_QuickLoop) as runner:
        runner.run(scenario())


def test_what_was_not_used_is_good_for_a_second() -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, _QuickLoop)
        throttle = Throttle(10)
        loop.now += 60.0
        assert 10 == await take(throttle, 1000)
        assert 1 == await take(throttle, 1000)

    with asyncio.Runner(loop_factory=_QuickLoop) as runner:
        runner.run(scenario())


def test_without_a_rate_all_may_pass() -> None:
    async def scenario() -> None:
        assert 1000 == await Throttle(0).take(1000)

    asyncio.run(scenario())
