"""Who may connect."""

from penstock.net.connection_limits import Admission


def test_without_limits_anybody_may_come() -> None:
    admission = Admission()
    for _ in range(3):
        assert admission.refusal("10.0.0.1") is None
        admission.enter("10.0.0.1")

    assert 3 == admission.total


def test_the_total_is_limited() -> None:
    admission = Admission(total_max=2)
    admission.enter("10.0.0.1")
    admission.enter("")

    assert "too many connections, the limit is 2" == admission.refusal("10.0.0.2")

    admission.leave("10.0.0.1")
    assert admission.refusal("10.0.0.2") is None


def test_each_address_is_limited() -> None:
    admission = Admission(per_address_max=1)
    admission.enter("10.0.0.1")

    assert "too many connections from 10.0.0.1, the limit is 1" == admission.refusal("10.0.0.1")
    assert admission.refusal("10.0.0.2") is None

    admission.leave("10.0.0.1")
    assert admission.refusal("10.0.0.1") is None


def test_peers_on_a_unix_socket_have_no_address_to_be_counted_by() -> None:
    admission = Admission(per_address_max=1)
    admission.enter("")

    assert admission.refusal("") is None
