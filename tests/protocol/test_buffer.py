"""The receive buffer loses nothing and does not join chunks too early."""

from hypothesis import given
from hypothesis import strategies as st

from penstock.protocol.buffer import ReceiveBuffer


def test_a_chunk_for_an_empty_buffer_is_not_copied() -> None:
    buffer = ReceiveBuffer()
    first, second = b"first", b"second"
    buffer.append(first)

    assert buffer.is_ready()
    assert first is buffer.data

    buffer.start = len(first)
    buffer.append(second)

    assert buffer.is_ready()
    assert second is buffer.data


def test_an_empty_buffer_is_not_ready() -> None:
    buffer = ReceiveBuffer()

    assert not buffer.is_ready()

    buffer.append(b"")

    assert not buffer.is_ready()


def test_chunks_are_joined_once_when_enough_bytes_have_come() -> None:
    buffer = ReceiveBuffer()
    head = b"xxhead"
    buffer.append(head)
    assert buffer.is_ready()
    buffer.start = 2
    buffer.want(4 + 1000)
    for _ in range(999):
        buffer.append(b"x")

        assert not buffer.is_ready()
        assert head is buffer.data

    buffer.append(b"x")

    assert buffer.is_ready()
    assert b"head" + b"x" * 1000 == buffer.data[buffer.start :]


def test_bytes_that_are_taken_out_are_removed() -> None:
    buffer = ReceiveBuffer()
    buffer.append(b"parsed,unread")
    assert buffer.is_ready()
    buffer.start = len(b"parsed,")
    buffer.want(100)
    buffer.append(b",later")

    assert b"unread,later" == buffer.take_all()
    assert b"" == buffer.take_all()
    assert not buffer.is_ready()

    buffer.append(b"new")

    assert buffer.is_ready()
    assert b"new" == buffer.data[buffer.start :]


@given(st.lists(st.binary(max_size=20)), st.lists(st.integers(1, 30)))
def test_a_reader_sees_exactly_the_bytes_that_came(chunks: list[bytes], sizes: list[int]) -> None:
    buffer = ReceiveBuffer()
    seen = []
    for index, chunk in enumerate(chunks):
        buffer.append(chunk)
        size = sizes[index % len(sizes)] if sizes else 1
        if buffer.is_ready() and len(buffer.data) - buffer.start >= size:
            seen.append(buffer.data[buffer.start : buffer.start + size])
            buffer.start += size
        else:
            buffer.want(size)
    seen.append(buffer.take_all())

    assert b"".join(chunks) == b"".join(seen)
