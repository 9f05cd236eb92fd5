"""Replies that wait for a message to be safe, and what must not overtake them."""

from penstock.errors import StorageError
from penstock.nsqd.replies import Replies


class Recorder:
    """What was written, and done, in order."""

    def __init__(self) -> None:
        self.happened: list[object] = []
        self.replies = Replies(self.happened.append, self.failed)

    def failed(self, word: str, failure: StorageError) -> None:
        self.happened.append((word, str(failure)))


def test_what_need_not_wait_is_written_at_once() -> None:
    recorder = Recorder()
    recorder.replies.send(b"OK")
    recorder.replies.then(lambda: recorder.happened.append("done"))

    assert [b"OK", "done"] == recorder.happened
    assert not recorder.replies.are_waiting


def test_nothing_overtakes_what_waits() -> None:
    recorder = Recorder()
    held = recorder.replies.hold("PUB", b"first")
    recorder.replies.send(b"second")
    recorder.replies.then(lambda: recorder.happened.append("third"))

    assert [] == recorder.happened
    assert recorder.replies.are_waiting
    held.done(None)
    assert [b"first", b"second", "third"] == recorder.happened
    assert not recorder.replies.are_waiting


def test_what_is_safe_early_waits_for_what_came_before() -> None:
    recorder = Recorder()
    first, second = recorder.replies.hold("PUB", b"first"), recorder.replies.hold("PUB", b"second")

    second.done(None)
    assert [] == recorder.happened
    first.done(None)
    assert [b"first", b"second"] == recorder.happened


def test_a_failure_voids_all_that_waits_and_is_told_once() -> None:
    recorder = Recorder()
    first, second = recorder.replies.hold("PUB", b"OK"), recorder.replies.hold("MPUB", b"OK")
    second.done(StorageError("disk full"))
    first.done(StorageError("disk full"))

    assert [("MPUB", "disk full")] == recorder.happened
    assert not recorder.replies.are_waiting
