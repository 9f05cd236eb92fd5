"""What every daemon can be told."""

from dataclasses import fields

import pytest

from penstock.common.daemon_options import DaemonOptions
from penstock.common.logs import LogLevel
from penstock.nsqadmin.options import NsqadminOptions
from penstock.nsqd.options import NsqdOptions
from penstock.nsqlookupd.options import NsqlookupdOptions

DAEMONS = (("nsqd", NsqdOptions), ("nsqlookupd", NsqlookupdOptions), ("nsqadmin", NsqadminOptions))


@pytest.mark.parametrize(("name", "options"), DAEMONS)
def test_every_daemon_can_be_told_it_first_and_has_a_prefix_of_its_own(
    name: str, options: type[DaemonOptions]
) -> None:
    shared = [each.name for each in fields(DaemonOptions)]

    assert shared == [each.name for each in fields(options)][: len(shared)]
    assert f"[{name}] " == options().log_prefix


def test_it_logs_as_it_was_told(capsys: pytest.CaptureFixture[str]) -> None:
    log = DaemonOptions(log_prefix="[x] ", log_level=LogLevel.WARN).logger()
    log.info("too little")
    log.warning("enough")
    DaemonOptions(log_format="json").logger().info("as an object")

    text, json = capsys.readouterr().err.splitlines()
    assert text.startswith("[x] ")
    assert text.endswith(" WARNING: enough")
    assert json.startswith("{")
