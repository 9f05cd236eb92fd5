"""atheris, in a process of its own: it instruments what it imports, and ends the process it is in.

    python -m fuzz.engine TARGET SECONDS FOLDER

tries new inputs for so long, led by those that reach code which none before has reached. The folder
has `inputs`, which grows, and if one fails `crash-...` with it. `fuzz` does all of this.
"""

import importlib.util
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from fuzz.corpus import kept_inputs
from fuzz.targets import load_target

__all__ = ["EngineError", "Fuzzed", "fuzz", "is_available"]

INPUT_BYTES_MAX = 600
# By the clock, and a busy machine may give us none of that time.
HANGS_AFTER_SECONDS = 30
STOPS_WITHIN_SECONDS = 120


class EngineError(Exception):
    """It did not end as it should, and has no input to show for it."""


@dataclass(frozen=True, slots=True)
class Fuzzed:
    """What came of it: the inputs that reach something of their own, and those that failed."""

    inputs: list[bytes]
    failed: list[bytes]
    output: str

    @property
    def runs(self) -> int:
        """How many inputs were tried."""
        _, _, after = self.output.rpartition("stat::number_of_executed_units:")
        return int(after.split(maxsplit=1)[0]) if after else 0


def is_available() -> bool:
    """Whether there is an atheris for this Python on this machine."""
    return importlib.util.find_spec("atheris") is not None


def fuzz(name: str, seconds: int) -> Fuzzed:
    """Fuzzes a target for about so long, from its seeds and from what is kept for it."""
    with tempfile.TemporaryDirectory(prefix="fuzz-") as path:
        folder = Path(path)
        target = load_target(name)
        _write_inputs(folder / "inputs", [*target.seeds, *kept_inputs(name)])
        # One without a word in it would be refused.
        words = (f'"{"".join(map(_hex, token))}"\n' for token in target.tokens or [b"\0"])
        (folder / "tokens").write_text("".join(words), encoding="ascii")
        ended, output = _run_engine(name, seconds, folder)
        failed = [file.read_bytes() for file in sorted(folder.iterdir()) if "-" in file.name]
        if not failed and ended != "exit code 0":
            raise EngineError(f"fuzzing {name} ended with {ended}:\n{output}")
        inputs = [file.read_bytes() for file in sorted((folder / "inputs").iterdir())]
    return Fuzzed(inputs, failed, output)


def _run_engine(name: str, seconds: int, folder: Path) -> tuple[str, str]:
    """How it ended, and what it said."""
    command = [sys.executable, "-m", "fuzz.engine", name, str(seconds), str(folder)]
    with (folder / "output").open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
        try:
            ended = f"exit code {process.wait(seconds + STOPS_WITHIN_SECONDS)}"
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            ended = f"no end after {seconds + STOPS_WITHIN_SECONDS} s"
    return ended, (folder / "output").read_text(encoding="utf-8", errors="replace")


def _write_inputs(folder: Path, inputs: list[bytes]) -> None:
    folder.mkdir()
    for number, data in enumerate(dict.fromkeys(inputs)):
        (folder / str(number)).write_bytes(data)


def _hex(byte: int) -> str:
    return f"\\x{byte:02x}"


def _run(name: str, seconds: str, folder: str) -> None:
    import atheris  # noqa: PLC0415 (it is not there for every Python)

    with atheris.instrument_imports(include=["penstock", "fuzz.targets"]):
        target = load_target(name)
    options = {
        "max_total_time": seconds,
        "max_len": INPUT_BYTES_MAX,
        "timeout": HANGS_AFTER_SECONDS,
        "dict": f"{folder}/tokens",
        "artifact_prefix": f"{folder}/",
        "print_final_stats": 1,
    }
    flags = [f"-{key}={value}" for key, value in options.items()]
    atheris.Setup([sys.argv[0], *flags, f"{folder}/inputs"], target.check)
    atheris.Fuzz()


if __name__ == "__main__":
    _run(*sys.argv[1:])
