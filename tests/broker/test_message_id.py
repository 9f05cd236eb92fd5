import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.broker.message_id import id_number, maybe_run, seq_of, seqs_of
from penstock.protocol import frames as wire

nodes = st.integers(0, 1023)
seqs = st.integers(0, (1 << 54) - 1)


def id_of(node_id: int, seq: int) -> bytes:
    return wire.message_id(wire.render_messages([b""], id_number(node_id, seq), 0)[0])


@pytest.mark.parametrize(
    ("node_id", "seq", "expected"),
    [
        (0, 0, b"0000000000000000"),
        (0, 1_700_000_000_000_000, b"00060a24181e4000"),
        (1, 1, b"0040000000000001"),
        (1023, (1 << 54) - 1, b"ffffffffffffffff"),
    ],
)
def test_an_id_is_16_hex_digits_of_node_and_sequence(
    node_id: int, seq: int, expected: bytes
) -> None:
    assert expected == id_of(node_id, seq)


@given(nodes, seqs)
def test_the_sequence_number_is_read_back_from_the_id(node_id: int, seq: int) -> None:
    assert seq == seq_of(id_of(node_id, seq))


@given(nodes, st.lists(seqs))
def test_many_are_read_back_in_their_order(node_id: int, many: list[int]) -> None:
    assert many == seqs_of([id_of(node_id, seq) for seq in many])


@given(nodes, seqs, seqs)
def test_ids_of_a_node_sort_as_their_sequence_numbers(node_id: int, one: int, other: int) -> None:
    assert (one < other) == (id_of(node_id, one) < id_of(node_id, other))


@pytest.mark.parametrize(
    ("numbers", "expected"),
    [
        ([5], (5, 6)),
        ([5, 6, 7], (5, 8)),
        ([7, 5, 6], (5, 8)),
        ([5, 7], None),
        ([7, 5, 8], None),
    ],
)
def test_numbers_without_a_gap_are_a_run_in_any_order(
    numbers: list[int], expected: tuple[int, int] | None
) -> None:
    assert expected == maybe_run([id_of(3, seq) for seq in numbers])


@given(nodes, st.sets(st.integers(0, 30), min_size=1))
def test_a_run_holds_the_numbers_given_and_no_other(node_id: int, numbers: set[int]) -> None:
    run = maybe_run([id_of(node_id, seq) for seq in numbers])

    assert (run is not None) == (len(numbers) == max(numbers) - min(numbers) + 1)
    assert run is None or numbers == set(range(*run))


def test_ids_of_several_nodes_are_a_run_only_if_their_numbers_are() -> None:
    finished = [(4, 6), (4, 12), (2, 18), (2, 19), (7, 22), (7, 23)]
    ids = [id_of(node_id, seq) for node_id, seq in finished]

    assert maybe_run(ids) is None
