import math

import pytest
from bench.figures import OURS, Results, Sample, percentile


def results(*samples: tuple[str, int, float], metric: str = "rate") -> Results:
    found = Results()
    for target, repetition, value in samples:
        found.add(Sample("row", target, repetition, {metric: value}))
    return found


class TestPercentile:
    @pytest.mark.parametrize(
        ("share", "expected"), [(0.0, 1), (0.5, 50), (0.99, 99), (0.999, 100), (1.0, 100)]
    )
    def test_percentiles_of_one_to_a_hundred(self, share: float, expected: float) -> None:
        assert expected == percentile(range(1, 101), share)

    def test_percentile_of_one_value_is_that_value(self) -> None:
        assert percentile([7.5], 0.999) == 7.5

    def test_percentile_without_values_is_an_error(self) -> None:
        with pytest.raises(ValueError, match="no values"):
            percentile([], 0.5)


class TestResults:
    def test_the_median_is_taken_over_repetitions(self) -> None:
        found = results((OURS, 0, 10), (OURS, 1, 1000), (OURS, 2, 30))

        assert found.median("row", "rate", OURS) == 30

    def test_a_row_without_samples_has_no_median(self) -> None:
        assert results((OURS, 0, 10)).median("row", "rate", "redis") is None

    def test_a_ratio_compares_within_a_repetition(self) -> None:
        """The machine was ten times slower in the second repetition; the ratio is not affected."""
        found = results(
            (OURS, 0, 200), ("redis", 0, 100), (OURS, 1, 20), ("redis", 1, 10), (OURS, 2, 999)
        )

        assert found.advantage("row", "rate", over="redis") == 2

    def test_a_ratio_above_one_is_better_even_if_less_is_better(self) -> None:
        found = results((OURS, 0, 2), ("trial", 0, 3), metric="p50_ms")

        assert found.advantage("row", "p50_ms", over="trial") == 1.5

    def test_a_row_without_samples_has_no_ratio(self) -> None:
        assert results((OURS, 0, 10)).advantage("row", "rate", over="trial") is None

    def test_a_ratio_to_zero_is_infinite(self) -> None:
        found = results((OURS, 0, 10), ("trial", 0, 0))

        assert found.advantage("row", "rate", over="trial") == math.inf

    def test_rows_keep_the_order_of_measurement_and_metrics_the_order_of_the_table(self) -> None:
        found = Results()
        found.add(Sample("later", OURS, 0, {"p99_ms": 1, "p50_ms": 1}))
        found.add(Sample("earlier", OURS, 0, {"rate": 1}))

        assert found.rows() == ["later", "earlier"]
        assert found.metrics("later") == ["p50_ms", "p99_ms"]
