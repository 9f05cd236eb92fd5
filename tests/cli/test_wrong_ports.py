"""A command that is given the port of another protocol reports it in one line,
without a traceback.
"""

from collections.abc import Iterator
from typing import NamedTuple

import pytest
from tests.cli.programs import in_pipe
from tests.net.tls.certificates import Authority
from tests.tools.tool_process import tool_process

from penstock.testing.nsqd import run_nsqd
from penstock.testing.nsqlookupd import run_nsqlookupd


class Ports(NamedTuple):
    """Addresses of a cluster; the last two daemons accept only TLS."""

    nsqd_tcp: str
    nsqd_http: str
    lookupd_tcp: str
    lookupd_http: str
    secure_nsqd_tcp: str
    secure_lookupd_http: str


@pytest.fixture(scope="module")
def ports(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ports]:
    identity = Authority(tmp_path_factory.mktemp("certificates")).issue("server")
    tls = (f"--tls-cert={identity.cert}", f"--tls-key={identity.key}")
    with (
        run_nsqd() as nsqd,
        run_nsqlookupd() as lookupd,
        run_nsqd(*tls, "--tls-required=true", "--https-address=127.0.0.1:0") as secure_nsqd,
        run_nsqlookupd(*tls) as secure_lookupd,
    ):
        nsqd.post("/topic/create?topic=t")
        nsqd.post("/channel/create?topic=t&channel=c")
        yield Ports(
            nsqd_tcp=nsqd.tcp_address,
            nsqd_http=nsqd.http_address,
            lookupd_tcp=lookupd.tcp_address,
            lookupd_http=lookupd.http_address,
            secure_nsqd_tcp=secure_nsqd.tcp_address,
            secure_lookupd_http=secure_lookupd.http_address,
        )


NSQD_HTTP = [
    ["nsq_stat", "--topic=t", "--channel=c", "--count=1"],
    ["penstock", "top", "--once"],
    ["penstock", "history", "t"],
    ["penstock", "seek", "t", "c", "15m", "--yes"],
]
NSQD_TCP = [
    ["nsq_tail", "--topic=t"],
    ["nsq_to_file", "--topic=t"],
    ["nsq_to_http", "--topic=t", "--post=http://127.0.0.1:1/"],
    ["nsq_to_nsq", "--topic=t", "--destination-nsqd-tcp-address={nsqd_tcp}"],
    ["to_nsq", "--topic=t"],
    ["penstock", "pub", "t", "body"],
    ["penstock", "sub", "t", "c"],
]
LOOKUPD_HTTP = [*NSQD_HTTP, ["penstock", "pub", "t", "body"], ["penstock", "sub", "t", "c"]]
WAITING = NSQD_TCP[:4]
"""Tools that log the failure and ask again, if it is one of an nsqlookupd."""


def failure_of(command: list[str], flag: str, ports: Ports) -> str:
    """The only line on stderr of a command that fails."""
    program, *args = (each.format(**ports._asdict()) for each in [*command, flag])
    done = in_pipe(program, *args)
    assert (1, 1) == (done.returncode, done.stderr.count("\n")), done.stderr
    return done.stderr


@pytest.mark.parametrize("command", NSQD_TCP, ids=" ".join)
@pytest.mark.parametrize(
    ("address", "complaint"),
    [
        ("{nsqd_http}", "it is HTTP, which has another port"),
        ("{lookupd_tcp}", "it is the TCP port of nsqlookupd"),
    ],
)
def test_a_tcp_address_of_another_protocol_is_reported(
    command: list[str], address: str, complaint: str, ports: Ports
) -> None:
    assert complaint in failure_of(command, f"--nsqd-tcp-address={address}", ports)


@pytest.mark.parametrize(
    "command", [each for each in NSQD_TCP if each[0] != "to_nsq"], ids=" ".join
)
def test_a_tcp_address_that_requires_tls_is_reported(command: list[str], ports: Ports) -> None:
    assert "TLS required" in failure_of(command, "--nsqd-tcp-address={secure_nsqd_tcp}", ports)


@pytest.mark.parametrize("command", [["to_nsq", "--topic=t"], *NSQD_TCP[:3]], ids=" ".join)
def test_tls_to_an_nsqd_without_tls_is_reported(command: list[str], ports: Ports) -> None:
    role = "producer" if command[0] == "to_nsq" else "consumer"
    with_tls = [*command, f"--{role}-opt=tls_v1"]

    assert "nsqd does not offer TLS" in failure_of(with_tls, "--nsqd-tcp-address={nsqd_tcp}", ports)


@pytest.mark.parametrize("command", NSQD_HTTP, ids=" ".join)
@pytest.mark.parametrize(
    ("address", "complaint"),
    [
        ("{nsqd_tcp}", "the response is not HTTP"),
        ("{lookupd_http}", ""),
    ],
)
def test_a_wrong_protocol_at_the_http_address_of_nsqd_is_reported(
    command: list[str], address: str, complaint: str, ports: Ports
) -> None:
    assert complaint in failure_of(command, f"--nsqd-http-address={address}", ports)


@pytest.mark.parametrize("command", LOOKUPD_HTTP, ids=" ".join)
@pytest.mark.parametrize(
    ("address", "complaint"),
    [
        ("{nsqd_tcp}", "the response is not HTTP"),
        ("{lookupd_tcp}", "the response is not HTTP"),
        ("{nsqd_http}", "404"),
        ("{secure_lookupd_http}", "the connection closed before the response was complete"),
    ],
)
def test_a_wrong_protocol_at_the_http_address_of_nsqlookupd_is_reported(
    command: list[str], address: str, complaint: str, ports: Ports
) -> None:
    assert complaint in failure_of(command, f"--lookupd-http-address={address}", ports)


@pytest.mark.parametrize("command", [*NSQD_HTTP[1:], *LOOKUPD_HTTP[-2:]], ids=" ".join)
def test_https_to_a_server_without_it_is_reported(command: list[str], ports: Ports) -> None:
    is_of_nsqd = command in NSQD_HTTP
    flag = "--nsqd-http-address=https://{nsqd_http}"
    flag = flag if is_of_nsqd else "--lookupd-http-address=https://{lookupd_http}"

    assert "the server does not speak TLS on this port" in failure_of(command, flag, ports)


@pytest.mark.parametrize("command", WAITING, ids=" ".join)
@pytest.mark.parametrize(
    ("address", "complaint"),
    [
        ("{lookupd_tcp}", "the response is not HTTP"),
        ("{nsqd_http}", "got response 404: this is not an nsqlookupd"),
        ("https://{lookupd_http}", "the server does not speak TLS on this port"),
    ],
)
def test_a_tool_that_waits_for_nsqlookupd_logs_why(
    command: list[str], address: str, complaint: str, ports: Ports
) -> None:
    flags = [*command[1:], f"--lookupd-http-address={address}"]
    with tool_process(command[0], *(each.format(**ports._asdict()) for each in flags)) as tool:
        tool.logs(complaint)
        tool.stop()
