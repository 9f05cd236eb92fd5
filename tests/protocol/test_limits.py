"""The default limits are those of NSQ."""

from penstock.protocol.events import LINE_BYTES_MAX, Limits


def test_the_defaults() -> None:
    expected = Limits(
        max_msg_size=1_048_576,
        max_body_size=5_242_880,
        max_rdy_count=2500,
        max_req_timeout_ms=3_600_000,
    )

    assert expected == Limits()
    assert 16384 == LINE_BYTES_MAX


def test_the_largest_body_holds_so_many_messages_of_one_byte() -> None:
    assert 1 == Limits(max_body_size=4 + 5).max_messages
    assert 1 == Limits(max_body_size=4 + 5 + 4).max_messages
    assert 2 == Limits(max_body_size=4 + 5 + 5).max_messages
