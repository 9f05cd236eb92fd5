"""Replies that wait for a message to be safe, and what must not overtake them."""

from penstock.broker.publishing import Replies, TurnBatch
from penstock.common.errors import StorageError


class Recorder:
    """What was written, and done, in order."""

    def __init__(self) -> None:
        self.happened: list[object] = []
        self.replies = Replies(self.happened.append, self.failed)

    def failed(self, word: str, failure: StorageError) -> None:
        self.happened.append((word, str(failure)))

    def held(self, word: str, data: bytes) -> TurnBatch:
        """The batch that a reply waits for."""
        batch = TurnBatch([])
        self.replies.send_when_stored(batch, word, data)
        return batch


def finish(batch: TurnBatch, failure: StorageError | None) -> None:
    """Ends a batch, as the publisher and the engine do."""
    batch.failure = failure
    batch.is_safe = failure is None
    for waiter in batch.waiters:
        waiter.on_batch_done(batch)


def test_what_need_not_wait_is_written_at_once() -> None:
    recorder = Recorder()
    recorder.replies.send(b"OK")
    recorder.replies.call_when_sent(lambda: recorder.happened.append("done"))

    assert [b"OK", "done"] == recorder.happened
    assert not recorder.replies.pending


def test_nothing_overtakes_what_waits() -> None:
    recorder = Recorder()
    batch = recorder.held("PUB", b"first,")
    recorder.replies.send(b"second")
    recorder.replies.call_when_sent(lambda: recorder.happened.append("third"))
    recorder.replies.send(b"fourth")

    assert [] == recorder.happened
    assert recorder.replies.pending
    finish(batch, None)
    assert [b"first,second", "third", b"fourth"] == recorder.happened
    assert not recorder.replies.pending


def test_what_need_not_wait_waits_for_nothing_but_what_came_before() -> None:
    recorder = Recorder()
    recorder.replies.send(b"first")
    assert [b"first"] == recorder.happened

    waiting = recorder.held("PUB", b"second,")
    recorder.replies.send(b"third")
    assert [b"first"] == recorder.happened
    finish(waiting, None)
    assert [b"first", b"second,third"] == recorder.happened


def test_what_is_safe_early_waits_for_what_came_before() -> None:
    recorder = Recorder()
    first, second = recorder.held("PUB", b"first,"), recorder.held("PUB", b"second")

    finish(second, None)
    assert [] == recorder.happened
    finish(first, None)
    assert [b"first,second"] == recorder.happened


def test_several_replies_to_one_batch_are_one_write() -> None:
    recorder = Recorder()
    batch = recorder.held("PUB", b"first,")
    recorder.replies.send_when_stored(batch, "PUB", b"second")

    finish(batch, None)
    assert [b"first,second"] == recorder.happened


def test_a_failure_voids_all_that_waits_after_it() -> None:
    recorder = Recorder()
    first, second = recorder.held("MPUB", b"OK"), recorder.held("DPUB", b"OK")
    finish(first, StorageError("disk full"))
    finish(second, None)

    assert [("MPUB", "disk full")] == recorder.happened
    assert not recorder.replies.pending


def test_a_failure_is_told_in_its_place() -> None:
    recorder = Recorder()
    batches = [recorder.held(word, b"OK") for word in ("PUB", "MPUB", "DPUB")]
    for batch in reversed(batches[1:]):
        finish(batch, StorageError("disk full"))

    assert [] == recorder.happened
    finish(batches[0], None)
    assert [b"OK", ("MPUB", "disk full")] == recorder.happened
    assert not recorder.replies.pending


def test_what_is_corked_is_one_write_and_comes_before_what_is_to_be_done_after_it() -> None:
    recorder = Recorder()
    recorder.replies.cork()
    recorder.replies.send(b"first,")
    finish(recorder.held("PUB", b"second"), None)
    assert [] == recorder.happened
    recorder.replies.call_when_sent(lambda: recorder.happened.append("done"))
    assert [b"first,second", "done"] == recorder.happened

    recorder.replies.send(b"third")
    recorder.replies.uncork()
    recorder.replies.send(b"fourth")
    assert [b"first,second", "done", b"third", b"fourth"] == recorder.happened


def test_what_was_held_when_it_was_corked_keeps_its_place() -> None:
    recorder = Recorder()
    batch = recorder.held("PUB", b"first,")
    recorder.replies.call_when_sent(lambda: recorder.happened.append("done"))
    recorder.replies.cork()
    recorder.replies.send(b"second")
    finish(batch, None)
    assert [b"first,", "done"] == recorder.happened
    recorder.replies.uncork()
    assert [b"first,", "done", b"second"] == recorder.happened


def test_another_way_to_write_is_taken_at_once_also_for_what_is_kept_for_one_write() -> None:
    recorder = Recorder()
    otherwise: list[bytes] = []
    recorder.replies.cork()
    recorder.replies.send(b"first,")
    recorder.replies.set_writer(otherwise.append)
    recorder.replies.send(b"second")
    assert [] == otherwise

    recorder.replies.uncork()
    recorder.replies.send(b"third")
    assert [b"first,second", b"third"] == otherwise
    assert [] == recorder.happened
