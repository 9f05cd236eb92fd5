"""Reading a range of messages, on an executor: whole, or not at all.

A range is read again from where it broke off when its nsqd restarts meanwhile, also at another
address. The same range gives the same rows each time it is read, as long as nsqd has them.
"""

import logging
import time
from collections.abc import Iterator

import pyarrow as pa

from penstock.common.errors import Error, HttpRequestError, NotConnectedError
from pyspark_nsq.errors import DataLost, NodeAway, NotStored
from pyspark_nsq.nodes import Nodes, Topics
from pyspark_nsq.options import SourceOptions
from pyspark_nsq.planning import Range
from pyspark_nsq.rows import arrow_batches

__all__ = ["RangeReader"]

log = logging.getLogger("pyspark_nsq")

RETRY_SECONDS = 0.2


class RangeReader:
    """Reads one range, starting with the nsqd at `base`, if that is known."""

    def __init__(self, options: SourceOptions, wanted: Range, base: str = "") -> None:
        self._options = options
        self._nodes = Nodes(options.access)
        self._range = wanted
        self._base = base
        self._next_seq = wanted.start
        self._heard_at = time.monotonic()

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The rows. Raises DataLost, or NodeAway when the node has been waited for."""
        while self._next_seq < self._range.end:
            try:
                yield from self._read_on()
            except HttpRequestError as failure:
                if failure.status is not None and failure.status < 500:
                    raise  # it will not say anything else the next time
                self._wait_for_node(failure)
            except NotConnectedError as failure:
                self._wait_for_node(failure)

    def _read_on(self) -> Iterator[pa.RecordBatch]:
        try:
            yield from self._stream()
            self._next_seq = self._range.end
        except NotStored as refusal:
            self._step_over(refusal)

    def _stream(self) -> Iterator[pa.RecordBatch]:
        wanted = self._range
        history = self._nodes.history(self._base or self._locate(), wanted.topic)
        with history.frames(wanted.node, self._next_seq, wanted.end) as frames:
            for batch in arrow_batches(frames, wanted.topic):
                yield batch
                self._arrived(batch)

    def _arrived(self, batch: pa.RecordBatch) -> None:
        last_seq = batch.column("seq")[-1].as_py()
        missing = last_seq + 1 - self._next_seq - batch.num_rows
        if missing:
            log.warning("%s: %d messages before %d are missing", self._range, missing, last_seq)
        self._next_seq = last_seq + 1
        self._heard_at = time.monotonic()

    # What can go wrong.

    def _step_over(self, refusal: NotStored) -> None:
        """Goes on where there are messages again; what is before that is lost, unless the numbers
        were never given to any."""
        wanted, start = self._range, self._next_seq
        if refusal.next_seq is not None:  # it has forgotten its newest messages
            self._lose(max(start, refusal.next_seq), wanted.end, refusal)
            self._range = wanted._replace(end=max(start, refusal.next_seq))
            return
        there_seq = wanted.end if refusal.first_seq is None else min(refusal.first_seq, wanted.end)
        if self._is_gap():
            log.warning("%s: there are no messages from %d to %d", wanted, start, there_seq)
        else:
            self._lose(start, there_seq, refusal)
        self._next_seq = there_seq

    def _is_gap(self) -> bool:
        """Whether older messages are there: then the log was not trimmed, but skipped numbers."""
        found = self._nodes.history(self._base, self._range.topic).log()
        return found is not None and found.first_seq <= self._next_seq

    def _lose(self, start: int, end: int, why: Error) -> None:
        topic, node = self._range.topic, self._range.node
        lost = f"topic {topic}, node {node}: messages {start} to {end - 1} are lost ({why})"
        if self._options.fail_on_data_loss:
            raise DataLost(f"{lost}; failOnDataLoss=false goes on without them")
        log.error("%s", lost)

    def _wait_for_node(self, failure: Error) -> None:
        waited = time.monotonic() - self._heard_at
        if waited >= self._options.node_timeout_seconds:
            self._give_up(failure)
            return
        self._base = ""  # it may come back elsewhere
        time.sleep(RETRY_SECONDS)

    def _give_up(self, failure: Error) -> None:
        wanted, seconds = self._range, self._options.node_timeout_seconds
        away = f"node {wanted.node} of topic {wanted.topic} was away for {seconds:g} s: {failure}"
        if self._options.fail_on_data_loss:
            raise NodeAway(away)
        self._lose(self._next_seq, wanted.end, NodeAway(away))
        self._next_seq = wanted.end

    def _locate(self) -> str:
        """Where the node is now. Raises HttpRequestError or NotConnectedError if it cannot be
        found."""
        key = self._range.key
        survey = self._nodes.survey(Topics((key.topic,)))
        if key not in survey.logs:
            others = "; ".join(map(str, survey.failures)) or "none of the nsqds is that node"
            raise NotConnectedError(f"node {key.node} is not found: {others}")
        self._base = survey.logs[key].base
        return self._base
