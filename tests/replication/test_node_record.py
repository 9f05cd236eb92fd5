"""The record of a replicated node, and its changes."""

import msgspec
import pytest

from penstock.common.errors import ReplicationError
from penstock.replication.node_record import (
    InSyncMember,
    add_in_sync,
    add_member,
    claim_leadership,
    create_record,
    decode_record,
    encode_record,
    force_leader,
    prefer_leader,
    remove_in_sync,
    remove_member,
)

NEW = create_record("uuid", "a", "a1")
THREE = add_in_sync(add_member(add_member(NEW, "c"), "b"), "b", "b1")


def test_round_trip() -> None:
    assert THREE == decode_record(encode_record(THREE))


def test_first_member_leads() -> None:
    assert (1, "a", frozenset({"a"}), ("a",)) == (
        NEW.epoch,
        NEW.leader,
        NEW.in_sync_members,
        NEW.members,
    )


def test_new_leader_has_a_new_epoch() -> None:
    claimed = claim_leadership(THREE, "b", "b1")

    assert (2, "b") == (claimed.epoch, claimed.leader)
    assert THREE.in_sync == claimed.in_sync


def test_restarted_leader_has_a_new_epoch() -> None:
    assert (2, "a") == (claim_leadership(NEW, "a", "a1").epoch, NEW.leader)


@pytest.mark.parametrize(("member", "incarnation"), [("c", "c1"), ("b", "b2"), ("x", "b1")])
def test_only_a_member_in_sync_with_the_same_incarnation_can_lead(
    member: str, incarnation: str
) -> None:
    with pytest.raises(ReplicationError, match=f"{member} is not in sync and cannot lead"):
        claim_leadership(THREE, member, incarnation)


def test_member_that_caught_up_again_has_its_new_incarnation() -> None:
    again = add_in_sync(THREE, "b", "b2")

    assert not again.is_in_sync("b", "b1")
    assert again.is_in_sync("b", "b2")


def test_leader_stays_in_sync() -> None:
    assert frozenset({"a"}) == remove_in_sync(THREE, frozenset({"a", "b"})).in_sync_members


def test_removed_member_is_neither_in_sync_nor_preferred() -> None:
    removed = remove_member(prefer_leader(THREE, "b"), "b")

    assert (("a", "c"), frozenset({"a"}), None) == (
        removed.members,
        removed.in_sync_members,
        removed.preferred_leader,
    )


def test_forced_leader_is_alone_in_sync() -> None:
    forced = force_leader(THREE, "c", "c1")

    assert (2, "c", (InSyncMember("c", "c1"),)) == (forced.epoch, forced.leader, forced.in_sync)
    assert forced.is_forced
    assert claim_leadership(forced, "c", "c1").is_forced
    assert not add_in_sync(forced, "b", "b2").is_forced


@pytest.mark.parametrize(
    "change",
    [
        lambda: remove_member(THREE, "a"),
        lambda: remove_member(THREE, "x"),
        lambda: prefer_leader(THREE, "x"),
        lambda: force_leader(THREE, "x", "x1"),
    ],
)
def test_impossible_change_is_refused(change: object) -> None:
    assert callable(change)
    with pytest.raises(ReplicationError):
        change()


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"not JSON", "etcd contains an invalid record"),
        (b"{}", "etcd contains an invalid record"),
        (
            encode_record(msgspec.structs.replace(NEW, format=2)),
            "the cluster has format 2, written by a newer version; this one supports up to 1",
        ),
    ],
)
def test_invalid_record(data: bytes, message: str) -> None:
    with pytest.raises(ReplicationError, match=message):
        decode_record(data)
