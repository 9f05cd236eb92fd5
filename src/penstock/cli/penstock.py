"""The `penstock` command: what NSQ's own tools have no word for.

A command's module is imported when the command is used, so that each starts as fast as it can.
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
    """A group whose commands are named by their modules, each of which has a `command`."""

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
    """Run Penstock, work with its messages, and look after its data.

    Exits with 0 if all went well, with 1 if something failed, which is told in one line, and with
    2 if the command line is wrong. Ctrl-C is the way to leave what goes on until it is left, and
    no failure.
    """


def main(args: Sequence[str] | None = None) -> int:
    """Runs a command; returns the exit code. What goes wrong is told in one line."""
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
        silence_stdout()  # Whoever read our output has seen enough.
        return 1
    except OSError as error:  # of our output, most likely: commands translate what else may fail
        silence_stdout()
        click.echo(f"penstock: {error.strerror or error}", err=True)
        return 1


if __name__ == "__main__":
    sys.exit(main())
