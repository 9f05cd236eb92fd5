import os
from os import urandom
from types import SimpleNamespace

import pytest

from penstock.common.node_id import NODE_IDS, choose_node_id, former_node_id


@pytest.mark.parametrize("used", [set(), {0, 1023}, set(range(NODE_IDS)) - {7, 900}])
def test_chosen_node_id_is_free(used: set[int]) -> None:
    for _ in range(50):
        assert choose_node_id(urandom, used) in set(range(NODE_IDS)) - used


def test_every_free_node_id_can_be_chosen() -> None:
    used = set(range(NODE_IDS)) - {7, 900}

    assert 7 == choose_node_id(bytes, used)
    assert 900 == choose_node_id(lambda size: bytes(size - 1) + b"\1", used)


def test_choice_depends_only_on_the_random_bytes() -> None:
    assert 1 == choose_node_id(lambda size: bytes(size - 1) + b"\1")


def test_former_node_id_is_a_hash_of_the_host_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "uname", lambda: SimpleNamespace(nodename="a-host"))

    # crc32(md5("a-host")) % 1024, as NSQ computes it
    assert (322, 325) == (former_node_id(), former_node_id(shard=3))
    assert 321 == former_node_id(shard=1023)
