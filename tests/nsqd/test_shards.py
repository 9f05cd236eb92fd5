"""The options of each shard."""

from pathlib import Path

import pytest

from penstock.common.errors import ConfigError
from penstock.nsqd.options import NsqdOptions
from penstock.nsqd.shards import shards_of
from penstock.storage import DataPath, LogSettings


def options(path: Path, shards: int, **others: object) -> NsqdOptions:
    return NsqdOptions(data_path=str(path), shards=shards, **others)  # type: ignore[arg-type]


def make_shard(path: Path, number: int) -> None:
    folder = path / f"shard-{number}"
    folder.mkdir()
    DataPath.open(str(folder), LogSettings()).close()


def test_a_single_shard_has_the_options_unchanged(tmp_path: Path) -> None:
    given = options(tmp_path, 1)

    (shard,) = shards_of(given)

    assert given is shard.options


def test_shard_0_has_the_given_options_and_others_have_higher_ports(tmp_path: Path) -> None:
    given = options(tmp_path, 3, node_id=1022, tcp_address="h:4150", broadcast_tcp_port=7000)

    first, second, third = (shard.options for shard in shards_of(given))

    assert (str(tmp_path), 1022, "h:4150", "0.0.0.0:4151", "0.0.0.0:4152", 7000, 0) == (
        first.data_path,
        first.node_id,
        first.tcp_address,
        first.http_address,
        first.https_address,
        first.broadcast_tcp_port,
        first.broadcast_http_port,
    )
    assert (f"{tmp_path}/shard-1", 1023, "h:4250", "0.0.0.0:4251", "0.0.0.0:4252", 7100, 0) == (
        second.data_path,
        second.node_id,
        second.tcp_address,
        second.http_address,
        second.https_address,
        second.broadcast_tcp_port,
        second.broadcast_http_port,
    )
    assert (0, "h:4350") == (third.node_id, third.tcp_address)


def test_by_default_each_shard_has_the_node_id_of_its_data_path(tmp_path: Path) -> None:
    assert [None] * 3 == [shard.options.node_id for shard in shards_of(options(tmp_path, 3))]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("h:0", "h:0"),
        ("/run/nsqd.sock", "/run/nsqd.sock.1"),
        ("", ""),
        ("h:nonsense", "h:nonsense"),
    ],
)
def test_addresses_without_a_port(tmp_path: Path, given: str, expected: str) -> None:
    shards = shards_of(options(tmp_path, 2, http_address=given))

    assert expected == shards[1].options.http_address


@pytest.mark.parametrize(
    ("given", "expected"), [("[nsqd] ", "[nsqd/1] "), ("nsqd: ", "nsqd: [1] "), ("", "[1] ")]
)
def test_log_lines_name_their_shard(tmp_path: Path, given: str, expected: str) -> None:
    shards = shards_of(options(tmp_path, 2, log_prefix=given))

    assert expected == shards[1].options.log_prefix


def test_a_port_that_is_too_high_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="port 65600 of shard 1 exceeds 65535"):
        shards_of(options(tmp_path, 2, tcp_address="h:65500"))


def test_a_shard_beyond_the_configured_number_is_retiring(tmp_path: Path) -> None:
    for number in (1, 2, 10):
        make_shard(tmp_path, number)
    (tmp_path / "shard-3").mkdir()  # which has no data
    (tmp_path / "shard-04").mkdir()

    shards = shards_of(options(tmp_path, 2, sigterm="drain"))

    assert [(0, False), (1, False), (2, True), (10, True)] == [
        (shard.number, shard.is_retiring) for shard in shards
    ]
    assert ("drain", 60_000_000_000) == (
        shards[1].options.sigterm,
        shards[1].options.drain_timeout_ns,
    )
    assert ("stop", 0) == (shards[2].options.sigterm, shards[2].options.drain_timeout_ns)
