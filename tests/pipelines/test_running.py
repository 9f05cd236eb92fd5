"""How queries begin where the machine is busy."""

from collections.abc import Iterator
from typing import Any, cast

from pyspark.sql.streaming.query import StreamingQuery

from penstock.pipelines.running import ATTEMPTS, begun
from penstock.pipelines.stopping import Stop

TOO_SLOW = "java.io.IOException: Python worker failed to connect back."


class Query:
    """As a query looks that has ended with these words, or runs if there are none."""

    def __init__(self, failure: str = "") -> None:
        self._failure = failure
        self._steps = iter(["Initializing sources", "Processing new data"])

    @property
    def isActive(self) -> bool:  # noqa: N802 (Spark's name)
        return not self._failure

    @property
    def status(self) -> dict[str, Any]:
        return {"message": next(self._steps)}

    def exception(self) -> str | None:
        return self._failure or None


def last_of(queries: Iterator[Query]) -> Query:
    def start() -> StreamingQuery:
        return cast("StreamingQuery", next(queries))

    return cast("Query", begun(start, Stop()))


def test_a_query_whose_python_was_too_slow_is_started_again() -> None:
    running = Query()

    assert running is last_of(iter([Query(TOO_SLOW), Query(TOO_SLOW), running]))


def test_one_that_failed_for_another_reason_is_not() -> None:
    failed = Query("there is no such column")

    assert failed is last_of(iter([failed, Query()]))


def test_one_that_is_always_too_slow_is_given_up() -> None:
    queries = [Query(TOO_SLOW) for _ in range(ATTEMPTS + 1)]

    assert queries[ATTEMPTS - 1] is last_of(iter(queries))
