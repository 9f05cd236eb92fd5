"""scripts/ensure-test-programs asks for what is missing, and never keeps the tests from running."""

import subprocess
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "scripts" / "ensure-test-programs"
PROGRAMS = (
    "chromium",
    "redis-server",
    "nats-server",
    "ip",
    "mkfs.ext4",
    "openssl",
    "etcd",
)


def run_with(folder: Path, programs: tuple[str, ...]) -> subprocess.CompletedProcess[str]:
    """Runs it where these programs, and no apt-get, are to be found."""
    for name in ("sh", "dirname"):
        (folder / name).symlink_to(Path("/bin") / name)
    for name in programs:
        (folder / name).write_text("")
        (folder / name).chmod(0o755)
    return subprocess.run(
        [SCRIPT], env={"PATH": str(folder)}, capture_output=True, text=True, timeout=60, check=True
    )


def test_it_prints_nothing_if_all_programs_are_installed(tmp_path: Path) -> None:
    assert "" == run_with(tmp_path, PROGRAMS).stderr


def test_it_names_programs_that_are_missing_and_cannot_be_installed(tmp_path: Path) -> None:
    told = run_with(tmp_path, ("ip", "mkfs.ext4", "openssl", "etcd")).stderr.splitlines()

    assert [
        f"Tests that need {name} are skipped: run 'apt-get install {name}' to run them."
        for name in ("chromium", "redis-server", "nats-server")
    ] == told
