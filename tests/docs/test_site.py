"""The documentation site builds without a warning: no broken link, and no page missing from it."""

import os
import subprocess
import sys
from pathlib import Path

from tests.docs.pages import ROOT


def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", tmp_path / "site"],
        cwd=ROOT,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=240,
    )

    assert 0 == built.returncode, built.stdout
    assert (tmp_path / "site" / "reference" / "python_api.html").exists()
    assert "Producer" in (tmp_path / "site" / "reference" / "python_api.html").read_text()
