"""`penstock doctor` shows every check, and exits with 1 if one has failed."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.cli.penstock import main
from penstock.tools.doctor import Diagnosis, Subject, checks
from penstock.tools.doctor.diagnosis import fail, ok, warn


@pytest.fixture
def findings(monkeypatch: pytest.MonkeyPatch) -> None:
    findings = {"one": ok("fine"), "another": warn("poor", "eat"), "third": fail("ill", "rest")}

    def always(diagnosis: Diagnosis) -> Callable[[Subject], Diagnosis]:
        return lambda _: diagnosis

    made = {name: always(diagnosis) for name, diagnosis in findings.items()}
    monkeypatch.setattr(checks, "CHECKS", made)


@pytest.mark.usefixtures("findings")
def test_a_failed_check_has_a_hint(capsys: pytest.CaptureFixture[str]) -> None:
    assert 1 == main(["doctor"])
    assert [
        "one      ok    fine",
        "another  warn  poor",
        "    eat",
        "third    FAIL  ill",
        "    rest",
        "not ready: 1 failed, 1 warning",
    ] == capsys.readouterr().out.splitlines()


@pytest.mark.usefixtures("findings")
def test_json_output(capsys: pytest.CaptureFixture[str]) -> None:
    assert 1 == main(["doctor", "--json"])
    said = json.loads(capsys.readouterr().out)
    assert not said["fit"]
    assert {"check": "another", "grade": "warn", "found": "poor", "hint": "eat"} == (
        said["checks"][1]
    )


def test_a_ready_machine_exits_with_0(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert 0 == main(["doctor", "--data-path", str(tmp_path)])
    assert capsys.readouterr().out.splitlines()[-1].startswith("ready")
