"""The page about history shows calls that are there."""

import re
from pathlib import Path

from tests.nsqd.history_reading import log_of

from penstock.testing.nsqd import run_nsqd

PAGE = Path(__file__).parents[2] / "docs" / "history.md"
CURL = re.compile(r"curl (?P<flags>[^'\n]*)'http://127\.0\.0\.1:4151(?P<target>[^']*)'")
SEQ = re.compile(r"\b17947845\d{8}\b")


def test_its_examples_work() -> None:
    """Each with a number that there is, and the stream that never ends with an end."""
    with run_nsqd("--retention-time=72h") as nsqd:
        nsqd.publish("orders", b"one", b"two")
        nsqd.post("/channel/create?topic=orders&channel=billing")
        first_seq = str(log_of(nsqd, "orders").first_seq)
        examples = CURL.findall(PAGE.read_text(encoding="utf-8"))
        statuses = {}
        for flags, target in examples:
            if "channel=audit" in target:
                nsqd.http("POST", "/channel/delete?topic=orders&channel=audit")
            call = SEQ.sub(first_seq, target).replace("&follow=true", "")
            method = "POST" if "-X POST" in flags else "GET"
            statuses[method, call] = nsqd.http(method, call).status

    assert len(examples) >= 9
    assert {200} == set(statuses.values()), statuses
