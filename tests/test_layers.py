"""`make lint` holds what it promises: each defect, put into a skeleton of the project, fails it."""

import os
import shutil
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "penstock"


@pytest.fixture(scope="module")
def skeleton(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Our settings and our modules, with next to nothing in them.

    The checkers' caches in it make all but the first run quick.
    """
    root = tmp_path_factory.mktemp("skeleton")
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy2(ROOT / name, root)
    shutil.copytree(ROOT / "scripts", root / "scripts", ignore=shutil.ignore_patterns("*.py"))
    (root / ".venv").symlink_to(ROOT / ".venv")
    for module in PACKAGE.glob("*.py"):
        write(root / "src" / "penstock" / module.name, module.read_text())
    for module in PACKAGE.glob("*/*.py"):
        write(root / "src" / "penstock" / module.relative_to(PACKAGE), '"""Empty."""\n')
    for folder in tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["mypy"]["files"]:
        if folder != "src":
            write(root / folder / "__init__.py", '"""Empty."""\n')
    return root


@pytest.fixture
def project(skeleton: Path) -> Iterator[Path]:
    """The skeleton, and afterwards the skeleton again."""
    before = set(skeleton.glob("src/**/*.py"))
    yield skeleton
    for added in set(skeleton.glob("src/**/*.py")) - before:
        added.unlink()


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def lint(root: Path) -> subprocess.CompletedProcess[str]:
    # The packages are found here before those that are installed; and what is installed is left
    # alone, whatever the age of the copied files.
    environment = os.environ | {"PYTHONPATH": str(root / "src")}
    return subprocess.run(
        ["make", "--assume-old=.venv/.up-to-date", "lint"],
        cwd=root,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=240,
    )


def test_the_skeleton_itself_passes(project: Path) -> None:
    done = lint(project)

    assert 0 == done.returncode, done.stdout


def exporting(name: str, import_line: str) -> str:
    return f'{import_line}\n\n__all__ = ["{name}"]\n'


@pytest.mark.parametrize(
    ("module", "text", "complaint"),
    [
        pytest.param(
            "protocol/defect.py",
            exporting("storage", "from penstock import storage"),
            "penstock.protocol is not allowed to import penstock.storage",
            id="protocol imports storage",
        ),
        pytest.param(
            "storage/defect.py",
            exporting("broker", "from penstock import broker"),
            "penstock.storage is not allowed to import penstock.broker",
            id="storage imports broker",
        ),
        pytest.param(
            "broker/defect.py",
            exporting("asyncio", "import asyncio"),
            "penstock.broker is not allowed to import asyncio",
            id="broker imports asyncio",
        ),
        pytest.param(
            "nsqd/defect.py",
            exporting("pyspark", "import pyspark"),
            "penstock.nsqd is not allowed to import pyspark",
            id="nsqd imports Spark",
        ),
        pytest.param(
            "nsqd/defect.py",
            exporting("testing", "from penstock import testing"),
            "penstock.nsqd.defect -> penstock.testing",
            id="nsqd imports testing",
        ),
        pytest.param(
            "helpers.py", "", "every child of every container", id="a module without a place"
        ),
        pytest.param(
            "protocol/defect.py",
            'size: int = "four"\n',
            "Incompatible types in assignment",
            id="a type error",
        ),
        pytest.param(
            "protocol/defect.py", "def size(): ...\n", "ANN201", id="a function without types"
        ),
        pytest.param("protocol/defect.py", "import struct\n", "F401", id="an unused import"),
        pytest.param(
            "protocol/defect.py",
            "size  =  4\n",
            "1 file would be reformatted",
            id="unformatted code",
        ),
    ],
)
def test_a_defect_fails_it(project: Path, module: str, text: str, complaint: str) -> None:
    write(project / "src" / "penstock" / module, text)

    done = lint(project)

    assert 0 != done.returncode
    assert complaint in done.stdout
