"""NSQ's consumer tools can start before an nsqlookupd answers, and wait for one."""

from pathlib import Path

import pytest
from tests.tools.tool_process import tool_process

from penstock.testing.addresses import reserved_address
from penstock.testing.nsqd import NsqdProcess, run_nsqd
from penstock.testing.nsqlookupd import run_nsqlookupd
from penstock.testing.waiting import wait_until

TOPIC = "orders"
CHANNEL = "late"


@pytest.mark.parametrize(
    ("tool", "flags"),
    [
        ("nsq_tail", ["--topic=orders"]),
        ("nsq_to_file", ["--topic=orders"]),
        ("nsq_to_file", ["--topic-pattern=^orders$", "--topic-refresh=200ms"]),
        ("nsq_to_http", ["--topic=orders", "--post=http://127.0.0.1:1/"]),
        ("nsq_to_nsq", ["--topic=orders"]),
    ],
)
def test_a_tool_waits_for_nsqlookupd(
    tool: str, flags: list[str], nsqd: NsqdProcess, tmp_path: Path
) -> None:
    own_flags = {
        "nsq_to_file": [f"--output-dir={tmp_path}"],
        "nsq_to_nsq": [f"--destination-nsqd-tcp-address={nsqd.tcp_address}"],
    }
    with reserved_address() as tcp, reserved_address() as http:
        all_flags = [
            f"--lookupd-http-address={http}",
            f"--channel={CHANNEL}",
            "--consumer-opt=lookupd_poll_interval,200ms",
            *flags,
            *own_flags.get(tool, []),
        ]
        with tool_process(tool, *all_flags) as consumer:
            consumer.logs(f"no nsqlookupd answered: http://{http}/")
            with (
                run_nsqlookupd(f"--tcp-address={tcp}", f"--http-address={http}"),
                run_nsqd(f"--lookupd-tcp-address={tcp}", "--broadcast-address=127.0.0.1") as late,
            ):
                late.post(f"/topic/create?topic={TOPIC}")
                late.post(f"/channel/create?topic={TOPIC}&channel={CHANNEL}")
                wait_until(lambda: late.shows(TOPIC, CHANNEL, client_count=1), "a subscription")
                consumer.stop()
