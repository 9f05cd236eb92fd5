from collections.abc import Iterable

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from penstock.broker.subscriber import DEADLINE_GRAIN_NS, InFlight
from penstock.common.clock import MILLISECOND_NS, SECOND_NS
from penstock.protocol import frames as wire

TIMEOUT_NS = 60 * SECOND_NS
TIMEOUT_MAX_NS = 900 * SECOND_NS


def id_(number: int) -> bytes:
    return b"%016x" % number


def frame(number: int) -> bytes:
    return wire.render_messages([b"body"], number, timestamp_ns=0)[0]


def ids(*numbers: int) -> list[bytes]:
    return [id_(number) for number in numbers]


def frames(*numbers: int) -> list[bytes]:
    return [frame(number) for number in numbers]


def add_fresh(in_flight: InFlight, *numbers: int, deadline_ns: int) -> None:
    in_flight.add_fresh(frames(*numbers), numbers[-1], deadline_ns)


def add_timed(in_flight: InFlight, number: int, *, now_ns: int, deadline_ns: int) -> None:
    in_flight.add_timed(id_(number), frame(number), now_ns, deadline_ns)


def test_nothing_is_in_flight_at_first() -> None:
    in_flight = InFlight()

    assert 0 == len(in_flight)
    assert [] == list(in_flight.frames())
    assert in_flight.next_deadline_ns() is None
    assert [] == in_flight.pop_expired(TIMEOUT_NS)


def test_what_was_added_is_there_first_deliveries_first() -> None:
    in_flight = InFlight()
    add_timed(in_flight, 1, now_ns=0, deadline_ns=TIMEOUT_NS)
    add_fresh(in_flight, 2, 3, deadline_ns=TIMEOUT_NS)

    assert 3 == len(in_flight)
    assert frames(2, 3, 1) == list(in_flight.frames())
    assert [True, True, True, False] == [each in in_flight for each in ids(1, 2, 3, 4)]


def test_frames_are_found_by_id_each_once() -> None:
    in_flight = InFlight()
    add_timed(in_flight, 1, now_ns=0, deadline_ns=TIMEOUT_NS)
    add_fresh(in_flight, 2, 3, deadline_ns=TIMEOUT_NS)

    assert frames(3, 2) == in_flight.frames_of(ids(3, 2, 3))
    assert frames(2, 1) == in_flight.frames_of(ids(1, 2, 4, 1))
    assert 3 == len(in_flight)


def test_finished_first_deliveries_are_gone_and_the_others_are_named() -> None:
    in_flight = InFlight()
    add_timed(in_flight, 1, now_ns=0, deadline_ns=TIMEOUT_NS)
    add_fresh(in_flight, 2, 3, 4, deadline_ns=TIMEOUT_NS)

    assert [] == in_flight.finish_fresh(ids(3))
    assert ids(1, 9) == in_flight.finish_fresh(ids(1, 2, 9))
    assert frames(4, 1) == list(in_flight.frames())


def test_a_message_finished_twice_in_one_go_is_named_once() -> None:
    in_flight = InFlight()
    add_fresh(in_flight, 1, 2, deadline_ns=TIMEOUT_NS)

    assert ids(1) == in_flight.finish_fresh(ids(1, 2, 1))


def test_pop_takes_out_one_of_either_kind() -> None:
    in_flight = InFlight()
    add_timed(in_flight, 1, now_ns=0, deadline_ns=TIMEOUT_NS)
    add_fresh(in_flight, 2, 3, deadline_ns=TIMEOUT_NS)

    assert frames(1, 2) == [in_flight.pop(each) for each in ids(1, 2)]
    assert [None, None, None] == [in_flight.pop(each) for each in ids(1, 2, 9)]
    assert frames(3) == list(in_flight.frames())


def test_pop_all_leaves_nothing_not_even_a_deadline() -> None:
    in_flight = InFlight()
    add_timed(in_flight, 1, now_ns=0, deadline_ns=TIMEOUT_NS)
    add_fresh(in_flight, 2, 3, deadline_ns=TIMEOUT_NS)

    assert frames(2, 3, 1) == in_flight.pop_all()
    assert 0 == len(in_flight)
    assert in_flight.next_deadline_ns() is None


def test_a_batch_expires_whole_and_not_before_its_time() -> None:
    in_flight = InFlight()
    add_fresh(in_flight, 1, 2, deadline_ns=TIMEOUT_NS)

    assert [] == in_flight.pop_expired(TIMEOUT_NS - 1)
    assert frames(1, 2) == in_flight.pop_expired(TIMEOUT_NS + DEADLINE_GRAIN_NS)
    assert 0 == len(in_flight)


def test_the_next_deadline_is_when_something_expires() -> None:
    in_flight = InFlight()
    add_fresh(in_flight, 1, deadline_ns=TIMEOUT_NS)
    next_ns = in_flight.next_deadline_ns()

    assert next_ns is not None
    assert TIMEOUT_NS <= next_ns <= TIMEOUT_NS + DEADLINE_GRAIN_NS
    assert [] == in_flight.pop_expired(next_ns - 1)
    assert frames(1) == in_flight.pop_expired(next_ns)


def test_batches_of_different_times_expire_one_after_the_other() -> None:
    in_flight = InFlight()
    add_fresh(in_flight, 1, 2, deadline_ns=TIMEOUT_NS)
    add_fresh(in_flight, 3, 4, deadline_ns=TIMEOUT_NS + SECOND_NS)

    assert frames(1, 2) == in_flight.pop_expired(TIMEOUT_NS + DEADLINE_GRAIN_NS)
    assert frames(3, 4) == in_flight.pop_expired(TIMEOUT_NS + SECOND_NS + DEADLINE_GRAIN_NS)


def test_batches_sent_within_the_grain_share_a_deadline() -> None:
    in_flight = InFlight()
    add_fresh(in_flight, 1, deadline_ns=TIMEOUT_NS)
    add_fresh(in_flight, 2, deadline_ns=TIMEOUT_NS + DEADLINE_GRAIN_NS)

    assert frames(1, 2) == in_flight.pop_expired(TIMEOUT_NS + DEADLINE_GRAIN_NS)


def test_a_shared_deadline_does_not_slide_along_with_a_steady_stream() -> None:
    in_flight = InFlight()
    for number in range(100):
        add_fresh(in_flight, number, deadline_ns=TIMEOUT_NS + number * MILLISECOND_NS)

    expired = in_flight.pop_expired(TIMEOUT_NS + 50 * MILLISECOND_NS)

    assert frames(*range(len(expired))) == expired
    assert 45 <= len(expired) <= 51


def test_late_messages_expire_each_at_its_own_time() -> None:
    in_flight = InFlight()
    add_timed(in_flight, 1, now_ns=0, deadline_ns=TIMEOUT_NS + 2)
    add_timed(in_flight, 2, now_ns=0, deadline_ns=TIMEOUT_NS + 1)

    assert TIMEOUT_NS + 1 == in_flight.next_deadline_ns()
    assert frames(2) == in_flight.pop_expired(TIMEOUT_NS + 1)
    assert TIMEOUT_NS + 2 == in_flight.next_deadline_ns()
    assert frames(1) == in_flight.pop_expired(TIMEOUT_NS + 2)


def test_what_was_answered_does_not_expire() -> None:
    in_flight = InFlight()
    add_fresh(in_flight, 1, 2, 3, deadline_ns=TIMEOUT_NS)
    add_timed(in_flight, 4, now_ns=0, deadline_ns=TIMEOUT_NS)
    in_flight.finish_fresh(ids(1))
    in_flight.pop(id_(3))
    in_flight.pop(id_(4))

    assert frames(2) == in_flight.pop_expired(2 * TIMEOUT_NS)


@pytest.mark.parametrize("late", [False, True])
def test_a_deadline_goes_with_its_message(late: bool) -> None:
    in_flight = InFlight()
    if late:
        add_timed(in_flight, 1, now_ns=0, deadline_ns=TIMEOUT_NS)
    else:
        add_fresh(in_flight, 1, deadline_ns=TIMEOUT_NS)
    in_flight.pop(id_(1))

    assert in_flight.next_deadline_ns() is None


def test_a_message_that_comes_again_has_its_new_deadline_only() -> None:
    in_flight = InFlight()
    add_timed(in_flight, 1, now_ns=0, deadline_ns=TIMEOUT_NS)
    in_flight.pop(id_(1))
    add_timed(in_flight, 1, now_ns=SECOND_NS, deadline_ns=TIMEOUT_NS + SECOND_NS)

    assert [] == in_flight.pop_expired(TIMEOUT_NS)
    assert frames(1) == in_flight.pop_expired(TIMEOUT_NS + SECOND_NS)


@pytest.mark.parametrize("late", [False, True])
def test_a_touch_starts_the_timeout_again(late: bool) -> None:
    in_flight = InFlight()
    if late:
        add_timed(in_flight, 1, now_ns=0, deadline_ns=TIMEOUT_NS)
    else:
        add_fresh(in_flight, 1, deadline_ns=TIMEOUT_NS)
    touched_ns = TIMEOUT_NS - SECOND_NS

    deadline_ns = in_flight.touch(id_(1), touched_ns, TIMEOUT_NS, TIMEOUT_MAX_NS)

    assert touched_ns + TIMEOUT_NS == deadline_ns == in_flight.next_deadline_ns()
    assert [] == in_flight.pop_expired(deadline_ns - 1)
    assert frames(1) == in_flight.pop_expired(deadline_ns)


def test_a_touch_concerns_one_message_of_a_batch() -> None:
    in_flight = InFlight()
    add_fresh(in_flight, 1, 2, 3, deadline_ns=TIMEOUT_NS)
    in_flight.touch(id_(2), SECOND_NS, TIMEOUT_NS, TIMEOUT_MAX_NS)

    assert frames(1, 3) == in_flight.pop_expired(TIMEOUT_NS + DEADLINE_GRAIN_NS)
    assert frames(2) == list(in_flight.frames())


@pytest.mark.parametrize("late", [False, True])
def test_no_touch_goes_beyond_the_longest_timeout_since_delivery(late: bool) -> None:
    delivered_ns = 7 * SECOND_NS
    in_flight = InFlight()
    if late:
        add_timed(in_flight, 1, now_ns=delivered_ns, deadline_ns=delivered_ns + TIMEOUT_NS)
    else:
        add_fresh(in_flight, 1, deadline_ns=delivered_ns + TIMEOUT_NS)

    for seconds in range(30, 1000, 30):
        in_flight.touch(id_(1), delivered_ns + seconds * SECOND_NS, TIMEOUT_NS, 15 * TIMEOUT_NS)

    assert delivered_ns + 15 * TIMEOUT_NS == in_flight.next_deadline_ns()


def test_a_touch_finds_the_delivery_time_of_any_batch() -> None:
    """Else the longest timeout would be measured from another message's delivery."""
    in_flight = InFlight()
    for number in range(5):
        add_fresh(
            in_flight, 2 * number, 2 * number + 1, deadline_ns=TIMEOUT_NS + number * SECOND_NS
        )

    for number in range(5):
        for each in ids(2 * number, 2 * number + 1):
            assert number * SECOND_NS + TIMEOUT_MAX_NS == in_flight.touch(
                each, 2 * TIMEOUT_MAX_NS, TIMEOUT_NS, TIMEOUT_MAX_NS
            )


def test_touching_over_and_over_does_not_pile_up_deadlines() -> None:
    in_flight = InFlight()
    add_fresh(in_flight, 1, deadline_ns=TIMEOUT_NS)
    for now_ns in range(10_000):
        in_flight.touch(id_(1), now_ns, TIMEOUT_NS, TIMEOUT_MAX_NS)

    assert len(in_flight._timed_deadlines) < 100
    assert 9_999 + TIMEOUT_NS == in_flight.next_deadline_ns()
    assert frames(1) == in_flight.pop_expired(9_999 + TIMEOUT_NS)


def test_what_is_not_in_flight_cannot_be_touched() -> None:
    in_flight = InFlight()
    add_fresh(in_flight, 1, deadline_ns=TIMEOUT_NS)

    assert in_flight.touch(id_(2), SECOND_NS, TIMEOUT_NS, TIMEOUT_MAX_NS) is None


def test_one_message_kept_long_does_not_pile_up_deadlines_for_those_finished() -> None:
    """The one that is kept was touched, so nothing older stands in the way of pruning."""
    in_flight = InFlight()
    add_fresh(in_flight, 0, deadline_ns=TIMEOUT_NS)
    in_flight.touch(id_(0), 0, TIMEOUT_NS, TIMEOUT_MAX_NS)
    for number in range(1, 10_000):
        add_fresh(in_flight, number, deadline_ns=TIMEOUT_NS + number * SECOND_NS)
        in_flight.finish_fresh(ids(number))

    assert len(in_flight._batches) <= 65


class InFlightAgainstAModel(RuleBasedStateMachine):
    """The model is a dict: for each id, the earliest and the latest moment at which it may expire,
    and the same for when it was delivered. They differ by the grain at most."""

    TIMEOUT_NS = 20 * MILLISECOND_NS
    TIMEOUT_MAX_NS = 50 * MILLISECOND_NS

    def __init__(self) -> None:
        super().__init__()
        self.in_flight = InFlight()
        self.deadlines: dict[bytes, tuple[int, int]] = {}
        self.delivered: dict[bytes, tuple[int, int]] = {}
        self.answered: set[bytes] = set()
        self.now_ns = 0
        self.next_number = 1

    @rule(milliseconds=st.integers(0, 15))
    def pass_time(self, milliseconds: int) -> None:
        self.now_ns += milliseconds * MILLISECOND_NS

    @rule(count=st.integers(1, 4))
    def add_fresh(self, count: int) -> None:
        numbers = range(self.next_number, self.next_number + count)
        self.next_number += count
        deadline_ns = self.now_ns + self.TIMEOUT_NS
        add_fresh(self.in_flight, *numbers, deadline_ns=deadline_ns)
        for each in ids(*numbers):
            self.deadlines[each] = deadline_ns, deadline_ns + DEADLINE_GRAIN_NS
            self.delivered[each] = self.now_ns - DEADLINE_GRAIN_NS, self.now_ns

    @precondition(lambda self: self.answered)
    @rule(data=st.data())
    def add_timed(self, data: st.DataObject) -> None:
        message_id = data.draw(st.sampled_from(sorted(self.answered)))
        self.answered.remove(message_id)
        deadline_ns = self.now_ns + self.TIMEOUT_NS
        self.in_flight.add_timed(message_id, frame_of(message_id), self.now_ns, deadline_ns)
        self.deadlines[message_id] = deadline_ns, deadline_ns
        self.delivered[message_id] = self.now_ns, self.now_ns

    @precondition(lambda self: self.deadlines)
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        known = st.sampled_from(sorted(self.deadlines))
        chosen = data.draw(st.lists(known | st.just(b"f" * 16), unique=True))
        others = self.in_flight.finish_fresh(chosen)
        for message_id in others:
            assert (self.in_flight.timed.pop(message_id, None) is None) == (message_id == b"f" * 16)
        self.forget(message_id for message_id in chosen if message_id != b"f" * 16)

    @precondition(lambda self: self.deadlines)
    @rule(data=st.data())
    def pop(self, data: st.DataObject) -> None:
        message_id = data.draw(st.sampled_from(sorted(self.deadlines)))
        assert frame_of(message_id) == self.in_flight.pop(message_id)
        self.forget([message_id])

    @precondition(lambda self: self.deadlines)
    @rule(data=st.data())
    def touch(self, data: st.DataObject) -> None:
        message_id = data.draw(st.sampled_from(sorted(self.deadlines)))
        lowest_ns, highest_ns = (
            min(self.now_ns + self.TIMEOUT_NS, delivered_ns + self.TIMEOUT_MAX_NS)
            for delivered_ns in self.delivered[message_id]
        )
        deadline_ns = self.in_flight.touch(
            message_id, self.now_ns, self.TIMEOUT_NS, self.TIMEOUT_MAX_NS
        )
        assert deadline_ns is not None
        assert lowest_ns <= deadline_ns <= highest_ns
        self.deadlines[message_id] = deadline_ns, deadline_ns

    @rule()
    def pop_expired(self) -> None:
        expired = [wire.message_id(each) for each in self.in_flight.pop_expired(self.now_ns)]
        must = {each for each, (_, latest) in self.deadlines.items() if latest <= self.now_ns}
        may = {each for each, (earliest, _) in self.deadlines.items() if earliest <= self.now_ns}
        assert len(expired) == len(set(expired))
        assert must <= set(expired) <= may
        self.forget(expired)

    @rule()
    def pop_all(self) -> None:
        assert sorted(map(frame_of, self.deadlines)) == sorted(self.in_flight.pop_all())
        self.forget(list(self.deadlines))

    @invariant()
    def holds_what_the_model_holds(self) -> None:
        assert len(self.deadlines) == len(self.in_flight)
        assert sorted(map(frame_of, self.deadlines)) == sorted(self.in_flight.frames())
        assert all(message_id in self.in_flight for message_id in self.deadlines)

    @invariant()
    def the_next_deadline_is_the_earliest(self) -> None:
        next_ns = self.in_flight.next_deadline_ns()
        if not self.deadlines:
            assert next_ns is None
            return
        assert next_ns is not None
        assert min(earliest for earliest, _ in self.deadlines.values()) <= next_ns
        assert next_ns <= min(latest for _, latest in self.deadlines.values())

    def forget(self, message_ids: Iterable[bytes]) -> None:
        for message_id in message_ids:
            del self.deadlines[message_id], self.delivered[message_id]
            self.answered.add(message_id)


def frame_of(message_id: bytes) -> bytes:
    return frame(int(message_id, 16))


TestInFlightAgainstAModel = InFlightAgainstAModel.TestCase
TestInFlightAgainstAModel.settings = settings(
    max_examples=150, stateful_step_count=40, deadline=None
)
