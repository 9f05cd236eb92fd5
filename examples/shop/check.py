"""The checks of a demo that was kept running (`make demo KEEP=1`), once more.

    .venv/bin/python -m examples.shop.check FOLDER

Damage something in the folder, and see whether it is found. The exit code is 1 if it is.
"""

import argparse
import sys
from pathlib import Path

import msgspec
from examples.shop.demo import check
from examples.shop.found import Places
from examples.shop.scenes import Stage
from rich.console import Console

from penstock.common.errors import Error


def main() -> int:
    parser = argparse.ArgumentParser(description="Checks a demo that is still running once more.")
    parser.add_argument("folder", type=Path, help="the demo's folder, as it has told it")
    args = parser.parse_args()
    stage = Stage(Console(highlight=False, soft_wrap=True))
    try:
        places = msgspec.json.decode((args.folder / "demo.json").read_bytes(), type=Places)
        return 0 if check(stage, places) else 1
    except (Error, OSError, msgspec.DecodeError) as failure:
        stage.tell(str(failure), "bold red")
        return 1


if __name__ == "__main__":
    sys.exit(main())
