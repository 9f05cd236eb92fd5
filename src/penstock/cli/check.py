"""`penstock check`: verify the checksums and structure of a data path."""

from pathlib import Path

import click

from penstock.nsqd.shards import shard_folders
from penstock.storage import check_data_path
from penstock.storage.layout import FORMAT_NAME

__all__ = ["command"]


@click.command("check")
@click.argument("data_path", type=click.Path(), metavar="DATA_PATH")
@click.pass_context
def command(context: click.Context, data_path: str) -> None:
    """Verify every byte of a data path that no nsqd is using.

    Changes nothing. Exits with 1 if data is damaged. Leftovers of a crash, which the next start
    repairs, are listed as notes. For the data path of `penstock up` or of a sharded nsqd, the data
    path of every nsqd in it is verified.
    """
    verdicts = [_is_sound(each) for each in _data_paths(data_path)]
    context.exit(0 if all(verdicts) else 1)


def _data_paths(path: str) -> list[str]:
    """The data path and its shards; for a folder of data paths, those in it."""
    inner = sorted(Path(path).glob(f"*/{FORMAT_NAME}"))
    if inner and not (Path(path) / FORMAT_NAME).exists():
        return [str(each.parent) for each in inner]
    return [path, *shard_folders(path).values()]


def _is_sound(data_path: str) -> bool:
    findings = check_data_path(data_path)
    for finding in findings:
        click.echo(f"{'DAMAGE' if finding.is_damage else 'note'}: {finding}")
    damage = sum(finding.is_damage for finding in findings)
    if damage:
        click.echo(f"{data_path} is damaged: {damage} finding{'s' if damage > 1 else ''}")
    else:
        click.echo(f"{data_path} is sound")
    return not damage
