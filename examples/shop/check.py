"""Repeats the checks of a running demo (`make demo KEEP=1`).

    .venv/bin/python -m examples.shop.check FOLDER

To test the checks, damage a file in the folder first. The exit code is 1 if a check fails.
"""

import argparse
import sys
from pathlib import Path

import msgspec
from examples.shop.console import DemoConsole
from examples.shop.demo import check
from examples.shop.results import DemoPaths
from rich.console import Console

from penstock.common.errors import Error


def main() -> int:
    parser = argparse.ArgumentParser(description="Repeat the checks of a running demo.")
    parser.add_argument("folder", type=Path, help="folder of the demo")
    args = parser.parse_args()
    console = DemoConsole(Console(highlight=False, soft_wrap=True))
    try:
        paths = msgspec.json.decode((args.folder / "demo.json").read_bytes(), type=DemoPaths)
        return 0 if check(console, paths) else 1
    except (Error, OSError, msgspec.DecodeError) as failure:
        console.print_fact(str(failure), "bold red")
        return 1


if __name__ == "__main__":
    sys.exit(main())
