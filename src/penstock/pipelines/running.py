"""Running queries until they end, fail, or are told to stop, while their figures are shown."""

import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from pyspark.sql.streaming.query import StreamingQuery

from penstock.pipelines.failures import telling_in_words
from penstock.pipelines.progress import Figures, QueryMeter
from penstock.pipelines.stopping import Stop
from penstock.pipelines.view import showing

__all__ = ["Running", "begun", "run_queries"]

# Between two looks at the queries.
LOOK_SECONDS = 0.5

# Between two looks whether a query has begun.
BEGIN_SECONDS = 0.1

ATTEMPTS = 10
_TOO_SLOW = "Python worker failed to connect back"


class Running(NamedTuple):
    """A query that has been started, and what counts its progress."""

    query: StreamingQuery
    meter: QueryMeter


def begun(start: Callable[[], StreamingQuery], stop: Stop) -> StreamingQuery:
    """A query that `start` starts, once it is past its beginning; so queries begin one after the
    other. Each source has a Python process, which Spark gives ten seconds to start: a machine that
    is too busy for that gets another chance."""
    for _ in range(ATTEMPTS):
        query = start()
        while query.isActive and query.status["message"].startswith("Initializing"):
            if stop.wait(BEGIN_SECONDS):
                return query
        if _TOO_SLOW not in str(query.exception()):
            break
    return query


def run_queries(title: str, running: Sequence[Running], stop: Stop) -> list[Figures]:
    """The last figures of each, once all have ended. A batch that is under way when it is time to
    stop is abandoned: it will be done again, from its beginning.

    Raises PipelineError as soon as one fails; the others are stopped then.
    """
    with telling_in_words():
        try:
            with showing(title) as show:
                while any(each.query.isActive for each in running):
                    for each in running:
                        _raise_failure(each.query)
                    show(_look(running))
                    if stop.wait(LOOK_SECONDS):
                        break
        finally:
            for each in running:
                each.query.stop()
        if not stop.is_asked:
            for each in running:
                _raise_failure(each.query)
        return _look(running)


def _look(running: Sequence[Running]) -> list[Figures]:
    for query, meter in running:
        meter.observe(query.recentProgress)
    return [each.meter.figures(time.monotonic()) for each in running]


def _raise_failure(query: StreamingQuery) -> None:
    failure = query.exception()
    if failure is not None:
        raise failure
