"""penstock seek as a program: shows the effect, asks for confirmation, moves the channel."""

import json

import pytest
from tests.cli.programs import in_pipe, on_terminal

from penstock.protocol import commands
from penstock.testing.nsqd import NsqdProcess, run_nsqd
from penstock.testing.nsqlookupd import NsqlookupdProcess
from penstock.testing.waiting import wait_until


def moving(nsqd: NsqdProcess, topic: str, to: str, *flags: str) -> list[str]:
    return ["seek", topic, "c", to, "--nsqd-http-address", nsqd.http_address, *flags]


def seqs(nsqd: NsqdProcess, topic: str) -> list[int]:
    lines = nsqd.http("GET", f"/topic/messages?topic={topic}").body.splitlines()
    return [json.loads(line)["seq"] for line in lines]


def publish_and_finish(nsqd: NsqdProcess, topic: str, *bodies: bytes, finished: int) -> None:
    nsqd.publish(topic, *bodies)
    consumer = nsqd.consumer(topic, "c")
    for _ in range(finished):
        consumer.send(commands.fin(consumer.message().id))
    left = len(bodies) - finished
    if left:
        consumer.message()
    consumer.close()
    wait_until(lambda: nsqd.shows(topic, "c", depth=left, in_flight_count=0), "the FINs")


def test_rewinding_reports_how_many_messages_are_redelivered(nsqd: NsqdProcess) -> None:
    publish_and_finish(nsqd, "rewound", b"0", b"1", b"2", b"3", finished=3)
    second = seqs(nsqd, "rewound")[1]
    log_id = nsqd.http("GET", "/topic/log?topic=rewound").json()["log_id"]
    position = f"{log_id[:8]}:{second}"
    done = in_pipe("penstock", *moving(nsqd, "rewound", str(second), "--yes"))

    assert 0 == done.returncode
    assert [
        f"{nsqd.http_address}: will deliver 3 messages from {position} on, 2 of them again",
        "moved rewound/c",
    ] == done.stderr.splitlines()
    assert nsqd.shows("rewound", "c", depth=3)


def test_skipping_reports_how_many_messages_are_skipped(nsqd: NsqdProcess) -> None:
    publish_and_finish(nsqd, "skipped", b"0", b"1", b"2", finished=1)
    done = in_pipe("penstock", *moving(nsqd, "skipped", "latest", "--yes"))

    assert 0 == done.returncode
    assert "; 2 waiting messages are skipped" in done.stderr
    assert nsqd.shows("skipped", "c", depth=0)


def test_without_a_terminal_or_yes_nothing_is_changed(nsqd: NsqdProcess) -> None:
    publish_and_finish(nsqd, "unasked", b"0", finished=1)
    done = in_pipe("penstock", *moving(nsqd, "unasked", "earliest"))

    assert 1 == done.returncode
    assert "no terminal to ask for confirmation: pass --yes" in done.stderr
    assert nsqd.shows("unasked", "c", depth=0)


@pytest.mark.parametrize(("answer", "code", "depth"), [("y", 0, 1), ("n", 1, 0)])
def test_it_asks_for_confirmation_on_a_terminal(
    nsqd: NsqdProcess, answer: str, code: int, depth: int
) -> None:
    topic = f"asked-{answer}"
    publish_and_finish(nsqd, topic, b"0", finished=1)
    with on_terminal("penstock", *moving(nsqd, topic, "1h")) as terminal:
        assert "1 of them again" in terminal.see(f"Move {topic}/c? [y/N]")
        terminal.press(f"{answer}\n")

        assert code == terminal.end()[0]
    assert nsqd.shows(topic, "c", depth=depth)


def test_a_channel_is_moved_on_all_its_nodes(
    nsqd: NsqdProcess, nsqlookupd: NsqlookupdProcess
) -> None:
    flags = [f"--lookupd-tcp-address={nsqlookupd.tcp_address}", "--broadcast-address=127.0.0.1"]
    with run_nsqd(*flags, "--retention-time=1h") as other:
        for node in (nsqd, other):
            publish_and_finish(node, "everywhere", b"0", b"1", finished=2)
        wait_until(lambda: len(nsqlookupd.found("everywhere")) == 2, "both nodes to be known")
        found = ["--lookupd-http-address", nsqlookupd.http_address, "--yes"]
        for mistake in ("12345", "whenever"):
            assert 2 == in_pipe("penstock", "seek", "everywhere", "c", mistake, *found).returncode
        log = other.http("GET", "/topic/log?topic=everywhere").json()
        position = f"{log['log_id'][:8]}:{log['next_seq'] - 1}"
        assert 0 == in_pipe("penstock", "seek", "everywhere", "c", position, *found).returncode
        assert nsqd.shows("everywhere", "c", depth=0)
        assert other.shows("everywhere", "c", depth=1)
        done = in_pipe("penstock", "seek", "everywhere", "c", "earliest", *found)

        assert 0 == done.returncode
        assert nsqd.shows("everywhere", "c", depth=2)
        assert other.shows("everywhere", "c", depth=2)


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        (["nobody-has-it", "c", "earliest"], "there is no channel c of nobody-has-it"),
        (["there", "other", "earliest"], "there is no channel other of there"),
        (["there", "c", "1"], "the message is no longer stored; the first stored one is "),
        (["there", "c", "latest", "--nsqd-http-address=127.0.0.1:1"], "127.0.0.1:1/stats: "),
    ],
)
def test_errors_are_reported_in_one_line(args: list[str], expected: str, nsqd: NsqdProcess) -> None:
    nsqd.publish("there", b"one")
    nsqd.post("/channel/create?topic=there&channel=c")
    env = {"PENSTOCK_NSQD_HTTP_ADDRESS": nsqd.http_address}
    done = in_pipe("penstock", "seek", *args, "--yes", env=env)

    assert (1, 1) == (done.returncode, done.stderr.count("\n"))
    assert expected in done.stderr
