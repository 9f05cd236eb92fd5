from bench.latency import percentiles_ms


def test_percentiles_are_of_the_sorted_latencies_in_milliseconds() -> None:
    latencies_ns = [number * 1_000_000 for number in range(1000, 0, -1)]

    assert percentiles_ms(latencies_ns) == {"p50_ms": 500, "p99_ms": 990, "p999_ms": 999}
