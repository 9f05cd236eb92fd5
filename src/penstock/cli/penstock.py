"""The `penstock` command: a group of subcommands beyond NSQ's own tools.

The module of a subcommand is imported only when the subcommand is used, for a fast start.
"""

import sys
from collections.abc import Sequence
from importlib import import_module

import click

from penstock import __version__
from penstock.cli.interrupts import require_stdout, silence_stdout
from penstock.common.errors import Error

__all__ = ["LazyGroup", "cli", "main"]


class LazyGroup(click.Group):
    """A group that imports its commands on demand: `modules` maps a command's name to the module
    that defines `command`."""

    def __init__(self, *args: object, modules: dict[str, str], **kwargs: object) -> None:
        super().__init__(*args, **kwargs)  # type: ignore[arg-type]
        self._modules = modules

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(self._modules)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self._modules:
            return None
        command: click.Command = import_module(self._modules[cmd_name]).command
        return command


@click.group(
    cls=LazyGroup,
    modules={
        "archive": "penstock.cli.archive",
        "check": "penstock.cli.check",
        "cluster": "penstock.cli.cluster",
        "doctor": "penstock.cli.doctor",
        "drain": "penstock.cli.drain",
        "history": "penstock.cli.history",
        "import": "penstock.cli.import_data",
        "log": "penstock.cli.log",
        "pub": "penstock.cli.pub",
        "replay": "penstock.cli.replay",
        "report": "penstock.cli.report",
        "seek": "penstock.cli.seek",
        "stream": "penstock.cli.stream",
        "sub": "penstock.cli.sub",
        "top": "penstock.cli.top",
        "up": "penstock.cli.up",
    },
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(__version__, prog_name="penstock")
def cli() -> None:
    """Run Penstock, publish and consume messages, and maintain the data.

    Exit codes: 0 for success, 1 for an error (reported in one line), 2 for an invalid command
    line. Long-running commands stop on Ctrl-C and exit with 0.
    """


def main(args: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code. Report an error in one line."""
    try:
        require_stdout()
        return cli.main(args, prog_name="penstock", standalone_mode=False) or 0
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except Error as error:
        click.echo(f"penstock: {error}", err=True)
        return 1
    except click.Abort:
        return 1
    except BrokenPipeError:
        silence_stdout()  # The reader of the pipe is gone.
        return 1
    except OSError as error:  # most likely from stdout: commands translate all others
        silence_stdout()
        click.echo(f"penstock: {error.strerror or error}", err=True)
        return 1


if __name__ == "__main__":
    sys.exit(main())
