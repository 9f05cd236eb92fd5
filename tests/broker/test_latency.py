import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.broker.fakes import Host

from penstock.broker.channel import Channel, NotInFlightError
from penstock.broker.latency import ACCURACY, LatencySketch, LatencyWindow, merged
from penstock.broker.settings import BrokerSettings
from penstock.common.clock import MILLISECOND_NS, SECOND_NS
from penstock.protocol.frames import render_messages
from penstock.testing import ManualClock

QUANTILES = (1.0, 0.999, 0.99, 0.5, 0.001)
YEAR_NS = 365 * 24 * 3600 * SECOND_NS

WINDOW_NS = 10 * SECOND_NS


def sketch_of(latencies_ns: list[int]) -> LatencySketch:
    sketch = LatencySketch()
    sketch.add([(-latency_ns, 1) for latency_ns in latencies_ns], 0)
    return sketch


class TestSketch:
    @given(st.lists(st.integers(1, YEAR_NS), min_size=1))
    def test_a_quantile_is_that_of_the_sorted_latencies_within_the_accuracy(
        self, latencies_ns: list[int]
    ) -> None:
        ordered = sorted(latencies_ns)
        exact = [ordered[math.ceil(quantile * len(ordered)) - 1] for quantile in QUANTILES]

        found = sketch_of(latencies_ns).quantiles_ns(QUANTILES)
        # Half a nanosecond more, because a quantile is a whole number of them.
        assert all(
            abs(one - other) <= ACCURACY * one + 0.5001
            for one, other in zip(exact, found, strict=True)
        )

    @given(st.lists(st.integers(1, YEAR_NS)), st.lists(st.integers(1, YEAR_NS)))
    def test_merged_sketches_are_one_of_all_latencies(self, one: list[int], two: list[int]) -> None:
        merged, whole = sketch_of(one), sketch_of(one + two)
        merged.merge(sketch_of(two))

        assert whole.count == merged.count
        assert whole.quantiles_ns(QUANTILES) == merged.quantiles_ns(QUANTILES)

    def test_without_messages_there_are_zeros(self) -> None:
        assert [0, 0] == LatencySketch().quantiles_ns((0.99, 0.5))

    def test_what_took_less_than_no_time_took_a_nanosecond(self) -> None:
        assert [1] == sketch_of([-5, 0]).quantiles_ns((1.0,))

    def test_its_size_is_bounded(self) -> None:
        sketch = sketch_of([int(1.001**power) for power in range(40_000)])

        assert 40_000 == sketch.count
        assert len(sketch._buckets) < 2_100


class TestMerged:
    def test_no_windows_are_not_the_same_as_idle_ones(self) -> None:
        idle = merged([None, LatencyWindow(WINDOW_NS, ManualClock())])

        assert merged([]) is None
        assert merged([None]) is None
        assert idle is not None
        assert [0, 0] == [idle.count, *idle.quantiles_ns((0.5,))]


class TestWindow:
    def count_after(self, clock: ManualClock, window: LatencyWindow, duration_ns: int) -> int:
        clock.advance(duration_ns)
        return self.count(window)

    def count(self, window: LatencyWindow) -> int:
        sketch = LatencySketch()
        window.add_to(sketch)
        return sketch.count

    def window(self, clock: ManualClock) -> LatencyWindow:
        """One that has just been told of three messages."""
        window = LatencyWindow(WINDOW_NS, clock)
        window.finished(render_messages([b"a", b"b", b"c"], 1, clock.wall_ns()))
        return window

    def test_what_was_counted_is_kept_for_half_a_window_at_least_and_a_window_at_most(self) -> None:
        clock = ManualClock()
        window = self.window(clock)

        assert 3 == self.count_after(clock, window, WINDOW_NS - 1)
        assert 0 == self.count_after(clock, window, 1)

    def test_the_halves_go_one_after_the_other(self) -> None:
        clock = ManualClock()
        window = self.window(clock)
        clock.advance(WINDOW_NS // 2)
        window.finished(render_messages([b"d"], 4, clock.wall_ns()))

        assert 4 == self.count(window)
        assert 1 == self.count_after(clock, window, WINDOW_NS // 2)
        assert 0 == self.count_after(clock, window, WINDOW_NS // 2)

    @pytest.mark.parametrize("step_ns", [YEAR_NS, -YEAR_NS])
    def test_a_clock_that_was_set_empties_it(self, step_ns: int) -> None:
        clock = ManualClock()
        window = self.window(clock)
        clock.set_wall(clock.wall_ns() + step_ns)

        assert 0 == self.count(window)
        window.finished(render_messages([b"d"], 4, clock.wall_ns()))
        assert 1 == self.count(window)

    def test_a_clock_that_was_slewed_back_leaves_it(self) -> None:
        clock = ManualClock()
        window = self.window(clock)
        clock.set_wall(clock.wall_ns() - MILLISECOND_NS)

        assert 3 == self.count(window)


class TestChannel:
    def quantiles_ns(self, channel: Channel) -> list[int]:
        sketch = LatencySketch()
        assert channel.latency is not None
        channel.latency.add_to(sketch)
        return [sketch.count, *sketch.quantiles_ns((1.0, 0.5))]

    def host(self) -> Host:
        return Host(BrokerSettings(latency_window_ns=WINDOW_NS))

    def test_counts_from_publish_to_fin(self) -> None:
        host = self.host()
        consumer = host.consumer(rdy=10)
        host.publish("t", "a", "b")
        host.pass_time(100 * MILLISECOND_NS)
        host.publish("t", "c")
        host.pass_time(300 * MILLISECOND_NS)
        consumer.fin("a", "b", "c")

        assert [
            3,
            pytest.approx(400 * MILLISECOND_NS, rel=ACCURACY),
            pytest.approx(400 * MILLISECOND_NS, rel=ACCURACY),
        ] == self.quantiles_ns(consumer.channel)

    def test_counts_a_redelivery_from_its_publish(self) -> None:
        host = self.host()
        consumer = host.consumer(rdy=10)
        host.publish("t", "a")
        consumer.req("a", delay_ns=SECOND_NS)
        host.pass_time(2 * SECOND_NS)
        consumer.fin("a")

        expected_ns = pytest.approx(2 * SECOND_NS, rel=ACCURACY)
        assert [1, expected_ns, expected_ns] == self.quantiles_ns(consumer.channel)

    def test_counts_once_what_is_finished_twice_and_not_what_is_refused(self) -> None:
        host = self.host()
        consumer, other = host.consumer(rdy=10), host.consumer()
        host.publish("t", "a", "b")
        with pytest.raises(NotInFlightError):
            consumer.fin("a", "a")
        ids = [consumer.id_of("b")]
        assert 1 == len(other.channel.finish(other.subscriber, ids))

        assert 1 == self.quantiles_ns(consumer.channel)[0]

    def test_does_not_count_unless_asked_to(self) -> None:
        assert Host().channel().latency is None
