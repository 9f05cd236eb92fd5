import signal

import pytest
import uvloop

from penstock.admin_api.cluster import Cluster
from penstock.common.errors import ClientError
from penstock.net.http_client.client import HttpClient
from penstock.testing.nsqd import run_nsqd
from penstock.tools.draining import wait_until_drained


def test_a_node_that_does_not_answer_has_not_stopped() -> None:
    hasty = HttpClient(connect_timeout_seconds=0.2, request_timeout_seconds=0.2)
    with run_nsqd() as nsqd:
        node = nsqd.http_address
        nsqd.publish("orders", b"one")
        nsqd.post("/drain")
        nsqd.send_signal(signal.SIGSTOP)
        try:
            waiting = wait_until_drained(
                Cluster(hasty, nsqds=[node]), node, lambda _: None, timeout_seconds=0.3
            )
            with pytest.raises(ClientError, match="has not stopped in time: it does not answer"):
                uvloop.run(waiting)
        finally:
            nsqd.send_signal(signal.SIGCONT)
