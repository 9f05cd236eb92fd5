"""The benchmarks with a table of their own run, with small loads."""

from pathlib import Path

import pytest
from bench.figures import Results
from bench.nats import has_nats, run_jetstream
from click.testing import CliRunner

from bench import channels, fsync, history, hostile, replication
from penstock.testing.etcd import has_etcd


@pytest.mark.parametrize("attack", hostile.ATTACKS)
def test_a_client_is_timed_during_an_attack(attack: str) -> None:
    effect = hostile.measure(hostile.ATTACKS[attack], 0.1)

    assert effect.publishes >= 1
    assert 0 < effect.p99_ms <= effect.longest_ms


def test_an_attack_may_be_chosen() -> None:
    run = CliRunner().invoke(hostile.main, ["--only=compressed publishes"])

    assert 0 == run.exit_code, run.output
    assert "compressed" in run.output
    assert "silent" not in run.output


def test_history_is_read_and_live_messages_are_timed() -> None:
    run = CliRunner().invoke(history.main, ["--messages=2000", "--seconds=0.1"])

    assert 0 == run.exit_code, run.output
    assert "MB per CPU-second" in run.output
    assert "p99" in run.output


def test_many_channels_are_created_and_survive_a_restart() -> None:
    figures = channels.measure(topics=3, idle_seconds=0.1)

    assert {"create, s", "stop, s", "start, s", "resident, MB"} <= figures.keys()


def test_publishing_with_an_fsync_each_is_measured_beside_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fsync, "LOADS", ((2, 2),))
    run = CliRunner().invoke(fsync.main, ["--seconds=0.3", f"--data-path={tmp_path}"])

    assert 0 == run.exit_code, run.output
    assert "fsync/s" in run.output
    assert "peak memory" in run.output


@pytest.mark.skipif(not has_etcd(), reason="needs etcd; `make test` installs it")
def test_replicated_nodes_are_measured_beside_a_single_one() -> None:
    run = CliRunner().invoke(
        replication.main, ["--repeat=1", "--cpu-seconds=0.05", "--no-jetstream"]
    )

    assert 0 == run.exit_code, run.output
    for row in ("mpub", "backlog", "live", "pub1", "pub32", "sync mpub"):
        assert f"{row:11}3 members" in run.output


@pytest.mark.skipif(not has_nats(), reason="needs nats-server; `make test` installs it")
def test_jetstream_publishes_and_consumes_every_message_once() -> None:
    with run_jetstream() as cluster:
        results = Results()
        replication.Measurement(replication.JetStreamGroup(cluster), results, 0).batches(0.05)

    assert {"mpub", "backlog", "live"} == set(results.rows())
