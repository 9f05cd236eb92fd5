"""`penstock log`: commands that look into a log."""

import click

from penstock.cli.penstock import LazyGroup

__all__ = ["command"]


@click.group("log", cls=LazyGroup, modules={"dump": "penstock.cli.log_dump"})
def command() -> None:
    """Look into the files of a log."""
