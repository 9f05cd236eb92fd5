"""Options that all daemons have."""

from dataclasses import fields

import pytest

from penstock.common.daemon_options import DaemonOptions
from penstock.common.logs import LogLevel
from penstock.nsqadmin.options import NsqadminOptions
from penstock.nsqd.options import NsqdOptions
from penstock.nsqlookupd.options import NsqlookupdOptions

DAEMONS = (("nsqd", NsqdOptions), ("nsqlookupd", NsqlookupdOptions), ("nsqadmin", NsqadminOptions))


@pytest.mark.parametrize(("name", "options"), DAEMONS)
def test_every_daemon_has_the_common_options_first_and_its_own_log_prefix(
    name: str, options: type[DaemonOptions]
) -> None:
    shared = [each.name for each in fields(DaemonOptions)]

    assert shared == [each.name for each in fields(options)][: len(shared)]
    assert f"[{name}] " == options().log_prefix


def test_a_daemon_logs_with_the_given_options(capsys: pytest.CaptureFixture[str]) -> None:
    log = DaemonOptions(log_prefix="[x] ", log_level=LogLevel.WARN).logger()
    log.info("too little")
    log.warning("enough")
    DaemonOptions(log_format="json").logger().info("as an object")

    text, json = capsys.readouterr().err.splitlines()
    assert text.startswith("[x] ")
    assert text.endswith(" WARNING: enough")
    assert json.startswith("{")
