import os
import re
import shutil
import sys

import pytest
from bench.load import LoadError
from bench.nsq import Nsq
from bench.targets import Target, nsqd, redis, running

PING = """
import http.server, sys
class Ping(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
print(sys.argv[1:], flush=True)
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Ping).serve_forever()
"""


def test_a_target_runs_on_its_own_port_until_the_end_of_the_block() -> None:
    target = Target("pinger", (sys.executable, "-c", PING, "{http_port}"), Nsq())

    with running(target) as one, running(target) as two:
        assert len({one.at.tcp, one.at.http, two.at.tcp, two.at.http}) == 4
        assert 0 < one.start_seconds
        assert one.rss_bytes() > 1_000_000

    with pytest.raises(ProcessLookupError):
        os.kill(one.pid, 0)


def test_the_data_path_exists_only_while_the_target_runs() -> None:
    save_path = "import pathlib, sys; pathlib.Path(sys.argv[2], 'seen').touch()\n" + PING
    target = Target("pinger", (sys.executable, "-c", save_path, "{http_port}", "{data}"), Nsq())

    with running(target) as server, open(f"/proc/{server.pid}/cmdline") as file:
        data = file.read().split("\0")[-2]
        assert os.listdir(data) == ["seen"]

    assert not os.path.exists(data)


@pytest.mark.parametrize(
    ("command", "error"),
    [
        ("no-such-program-anywhere", "against does not start: [Errno 2]"),
        (
            "sh -c 'echo port is taken; exit 1'",
            "against does not start: exit code 1; its last output: port is taken",
        ),
        ("false", "against does not start: exit code 1; it printed nothing"),
        ("sh -c 'exit 1' {port}", "a command may contain {tcp} {http}"),
        ("sh -c 'exit 1' {", "a command may contain {tcp} {http}"),
    ],
)
def test_a_target_that_does_not_start_reports_the_reason(command: str, error: str) -> None:
    with pytest.raises(LoadError, match=re.escape(error)), running(nsqd(command)):
        pass


def test_a_failed_run_reports_the_last_output_of_the_server() -> None:
    target = Target("pinger", (sys.executable, "-c", PING, "{http_port}"), Nsq())

    with (
        pytest.raises(LoadError, match=r"got 3 of 4 messages; its last output: .*/ping"),
        running(target),
    ):
        raise LoadError("got 3 of 4 messages")


# `make test` installs redis-server if it can.
@pytest.mark.skipif(not shutil.which("redis-server"), reason="redis-server is not installed")
def test_redis_takes_its_flags() -> None:
    with running(redis("redis-server")) as server:
        server.wire.create(server.at, "stream", ["group"])
