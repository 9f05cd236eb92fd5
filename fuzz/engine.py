"""Runs atheris in its own process, because it instruments imports and ends its process.

    python -m fuzz.engine TARGET SECONDS FOLDER

generates inputs for SECONDS, guided by coverage. FOLDER contains `inputs`, to which new ones are
added, and `crash-...` for a failing input. `fuzz` starts this process.
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
# Wall time: on a busy machine the process may get no CPU for long.
HANGS_AFTER_SECONDS = 30
STOPS_WITHIN_SECONDS = 120


class EngineError(Exception):
    """The engine failed without a failing input."""


@dataclass(frozen=True, slots=True)
class Fuzzed:
    """Result: inputs that reach new code, and failing inputs."""

    inputs: list[bytes]
    failed: list[bytes]
    output: str

    @property
    def runs(self) -> int:
        """Number of inputs tried."""
        _, _, after = self.output.rpartition("stat::number_of_executed_units:")
        return int(after.split(maxsplit=1)[0]) if after else 0


def is_available() -> bool:
    """Whether atheris is installed."""
    return importlib.util.find_spec("atheris") is not None


def fuzz(name: str, seconds: int) -> Fuzzed:
    """Fuzz a target for about `seconds`, starting from its seeds and stored inputs."""
    with tempfile.TemporaryDirectory(prefix="fuzz-") as path:
        folder = Path(path)
        target = load_target(name)
        _write_inputs(folder / "inputs", [*target.seeds, *kept_inputs(name)])
        # atheris rejects an empty dictionary.
        words = (f'"{"".join(map(_hex, token))}"\n' for token in target.tokens or [b"\0"])
        (folder / "tokens").write_text("".join(words), encoding="ascii")
        ended, output = _run_engine(name, seconds, folder)
        failed = [file.read_bytes() for file in sorted(folder.iterdir()) if "-" in file.name]
        if not failed and ended != "exit code 0":
            raise EngineError(f"fuzzing {name} ended with {ended}:\n{output}")
        inputs = [file.read_bytes() for file in sorted((folder / "inputs").iterdir())]
    return Fuzzed(inputs, failed, output)


def _run_engine(name: str, seconds: int, folder: Path) -> tuple[str, str]:
    """Exit status and output."""
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
    import atheris  # noqa: PLC0415 (not available for every Python)

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
