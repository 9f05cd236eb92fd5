"""What deploy/ offers fits the daemons as they are."""

import json
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from penstock.common.durations import parse_duration
from penstock.common.options import load_config, unknown_keys
from penstock.nsqadmin import options as nsqadmin_options
from penstock.nsqd import options as nsqd_options
from penstock.nsqd.replication_metrics import REPLICATION_FAMILIES
from penstock.nsqlookupd import options as nsqlookupd_options
from penstock.protocol import commands
from penstock.testing.nsqd import run_nsqd
from penstock.testing.nsqlookupd import run_nsqlookupd
from penstock.testing.waiting import wait_until

DEPLOY = Path(__file__).parents[2] / "deploy"
DASHBOARD = json.loads((DEPLOY / "grafana/penstock.json").read_text())
RULES: Any = import_module("yaml").safe_load((DEPLOY / "prometheus/penstock.rules.yml").read_text())
OPTIONS: dict[str, tuple[type[Any], Callable[[Any], None]]] = {
    "nsqd": (nsqd_options.NsqdOptions, nsqd_options.check),
    "nsqlookupd": (nsqlookupd_options.NsqlookupdOptions, nsqlookupd_options.check),
    "nsqadmin": (nsqadmin_options.NsqadminOptions, nsqadmin_options.check),
}


def panels() -> list[Any]:
    return [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]


def expressions() -> Iterator[str]:
    for panel in panels():
        for target in panel["targets"]:
            yield target["expr"]
    for variable in DASHBOARD["templating"]["list"]:
        yield variable.get("definition", "")
    for group in RULES["groups"]:
        for rule in group["rules"]:
            yield rule["expr"]


def metrics_of(page: bytes) -> set[str]:
    return set(re.findall(r"^([a-z_0-9]+)[{ ]", page.decode(), re.MULTILINE))


def test_every_metric_that_is_asked_for_exists() -> None:
    asked = {
        name
        for expression in expressions()
        for name in re.findall(r"\b(?:nsqd|nsqlookupd|process)_[a-z_0-9]+", expression)
    }
    # tests/nsqd/test_replication_status.py tests that members have these.
    asked -= {family.name for family in REPLICATION_FAMILIES}
    with run_nsqlookupd() as lookupd:
        flags = (
            f"--lookupd-tcp-address={lookupd.tcp_address}",
            "--e2e-processing-latency-percentile=0.99",
        )
        with run_nsqd(*flags) as nsqd:
            nsqd.publish("t", b"one")
            consumer = nsqd.consumer("t", "c")
            consumer.send(commands.fin(consumer.message().id))
            nsqd.connect(opening=b"none")  # is refused
            nsqd.post("/channel/create?topic=t&channel=spark&from=earliest&mode=commit")
            offered = metrics_of(lookupd.http("GET", "/metrics").body)
            wait_until(
                lambda: asked <= (offered | metrics_of(nsqd.http("GET", "/metrics").body)),
                f"{asked - offered}",
                seconds=60.0,
            )


CHANNEL = '{instance="n", topic="t", channel="%s"}'
# By channel: depth, consumers, and when it was last committed.
WAITING = {
    "live": (5, 1, None),
    "spark": (5, 0, 0),
    "idle": (5, 0, None),
    "given-up": (5, 0, -90_000),
}


# promtool is part of Prometheus, which `make test` does not install.
@pytest.mark.skipif(not shutil.which("promtool"), reason="there is no promtool here")
def test_alerts_tell_abandoned_channels_from_those_of_spark(tmp_path: Path) -> None:
    """`committed` is relative to the time of the test, which begins at 0."""
    series = []
    for name, (depth, clients, committed) in WAITING.items():
        labels = CHANNEL % name
        series += [
            {"series": f"nsqd_channel_depth{labels}", "values": f"{depth}x30"},
            {"series": f"nsqd_channel_clients{labels}", "values": f"{clients}x30"},
            {"series": f"nsqd_channel_paused{labels}", "values": "0x30"},
        ]
        if committed is not None:
            metric = f"nsqd_channel_last_commit_timestamp_seconds{labels}"
            series.append({"series": metric, "values": f"{committed}+60x30"})
    alerts = [
        expected_alert(
            "ChannelHasNoConsumer", "idle", "t:idle has no consumer, and 5 messages wait"
        ),
        expected_alert(
            "ChannelIsNotCommitted",
            "given-up",
            "no job has committed t:given-up for a day, while 5 messages wait",
        ),
    ]
    check_alerts(tmp_path, series, alerts)


MEMBER = '{instance="%s", cluster="shop", node="%s"}'


@pytest.mark.skipif(not shutil.which("promtool"), reason="there is no promtool here")
def test_alerts_about_replication(tmp_path: Path) -> None:
    """Node n1 has a leader and one of two followers; n2 has no leader and no etcd."""
    values = {
        ("a", "n1"): {"leading": 1, "in_sync": 2, "etcd_connected": 1},
        ("b", "n1"): {"leading": 0, "in_sync": 2, "etcd_connected": 1},
        ("d", "n2"): {"leading": 0, "in_sync": 1, "etcd_connected": 0},
    }
    series = [
        {"series": f"nsqd_replication_{name}{MEMBER % member}", "values": f"{value}x30"}
        for member, metrics in values.items()
        for name, value in {**metrics, "replicas": 3, "min_in_sync": 2}.items()
    ]
    lag = '{instance="a", cluster="shop", node="n1", follower="%s"}'
    series += [
        {"series": f"nsqd_replication_follower_lag_seconds{lag % 'b'}", "values": "1x30"},
        {"series": f"nsqd_replication_follower_lag_seconds{lag % 'c'}", "values": "100x30"},
    ]
    cluster = {"cluster": "shop"}
    n1 = cluster | {"node": "n1", "instance": "a"}
    n2 = cluster | {"node": "n2"}
    expected = [
        (
            "ReplicatedNodeHasNoLeader",
            {"severity": "page"} | n2,
            "no member leads node n2 of cluster shop: its messages cannot be consumed",
        ),
        (
            "ReplicatedNodeIsUnderReplicated",
            {"severity": "ticket"} | n1,
            "node n1 of cluster shop has only 2 members in sync",
        ),
        (
            "FollowerLags",
            {"severity": "ticket", "follower": "c"} | n1,
            "follower c of node n1 lacks messages that are 100 seconds old",
        ),
        (
            "NsqdCannotReachEtcd",
            {"severity": "page", "instance": "d"} | n2,
            "nsqd d cannot reach etcd: if the leader of node n2 fails now, no member takes over",
        ),
    ]
    alerts: list[dict[str, object]] = [
        {
            "eval_time": "20m",
            "alertname": name,
            "exp_alerts": [{"exp_labels": labels, "exp_annotations": {"summary": summary}}],
        }
        for name, labels, summary in expected
    ]
    alerts.append(
        {"eval_time": "20m", "alertname": "ReplicatedNodeRefusesPublishes", "exp_alerts": []}
    )
    check_alerts(tmp_path, series, alerts)


def check_alerts(
    tmp_path: Path, series: list[dict[str, str]], alerts: list[dict[str, object]]
) -> None:
    """Fail if promtool finds other alerts for these series."""
    rules = DEPLOY / "prometheus/penstock.rules.yml"
    test = {"interval": "1m", "input_series": series, "alert_rule_test": alerts}
    file = tmp_path / "test.yml"  # JSON is YAML
    file.write_text(json.dumps({"rule_files": [str(rules)], "tests": [test]}))
    done = subprocess.run(
        ["promtool", "test", "rules", str(file)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )

    assert (0, "") == (done.returncode, done.stderr), done.stdout


def expected_alert(name: str, channel: str, summary: str) -> dict[str, object]:
    """The only one of its name that fires."""
    alert = {
        "exp_labels": {"severity": "ticket", "instance": "n", "topic": "t", "channel": channel},
        "exp_annotations": {"summary": summary},
    }
    return {"eval_time": "20m", "alertname": name, "exp_alerts": [alert]}


def test_alerts_say_what_is_wrong_and_where() -> None:
    rules = [rule for group in RULES["groups"] for rule in group["rules"]]

    assert rules
    for rule in rules:
        assert {"severity"} == rule["labels"].keys()
        assert "{{ $labels." in rule["annotations"]["summary"]


def test_panels_stand_side_by_side() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        columns = range(place["x"], place["x"] + place["w"])
        cells = {(x, y) for x in columns for y in range(place["y"], place["y"] + place["h"])}
        assert not taken & cells, panel["title"]
        assert columns[-1] < 24
        taken |= cells
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert sorted(set(ids)) == ids
    assert {"${datasource}"} == {panel["datasource"]["uid"] for panel in panels()}


@pytest.mark.parametrize("daemon", OPTIONS)
def test_a_config_file_is_taken(daemon: str, tmp_path: Path) -> None:
    """As it is, and with all that it only proposes."""
    kind, check = OPTIONS[daemon]
    file = DEPLOY / f"systemd/{daemon}.toml"
    proposed = tmp_path / "proposed.toml"
    proposed.write_text(re.sub(r"^#(?=\w+ = )", "", file.read_text(), flags=re.MULTILINE))

    check(kind(**load_config(kind, str(file))))
    assert [] == list(unknown_keys(kind, str(proposed)))
    assert load_config(kind, str(file)).items() <= load_config(kind, str(proposed)).items()


def test_a_stop_is_given_the_time_that_draining_takes() -> None:
    unit = (DEPLOY / "systemd/nsqd.service").read_text()
    config = tomllib.loads((DEPLOY / "systemd/nsqd.toml").read_text())
    (stop,) = re.findall(r"^TimeoutStopSec=(\w+)$", unit, re.MULTILINE)

    assert "drain" == config["sigterm"]
    assert parse_duration(config["drain_timeout"]) < parse_duration(stop)


# It is part of systemd, which is not installed where it does not run the machine.
@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="there is no systemd-analyze here")
@pytest.mark.parametrize("daemon", OPTIONS)
def test_a_unit_is_one(daemon: str, tmp_path: Path) -> None:
    unit = (DEPLOY / f"systemd/{daemon}.service").read_text()
    copy = tmp_path / f"{daemon}.service"
    copy.write_text(unit.replace("/opt/penstock/bin", str(Path(sys.executable).parent)))
    verified = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(copy)],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )

    assert (0, "") == (verified.returncode, verified.stderr)
