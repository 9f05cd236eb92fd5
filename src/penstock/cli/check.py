"""`penstock check`: is everything in a data path as it was written?"""

import click

from penstock.log import check_data_path

__all__ = ["command"]


@click.command("check")
@click.argument("data_path", type=click.Path(), metavar="DATA_PATH")
@click.pass_context
def command(context: click.Context, data_path: str) -> None:
    """Verify every byte of a data path that no nsqd is using.

    Nothing is changed. Exits with 1 if something is damaged. What a crash leaves behind, and the
    next start puts right, is listed as a note.
    """
    findings = check_data_path(data_path)
    for finding in findings:
        click.echo(f"{'DAMAGE' if finding.is_damage else 'note'}: {finding}")
    damage = sum(finding.is_damage for finding in findings)
    if damage:
        click.echo(f"{data_path} is damaged: {damage} finding{'s' if damage > 1 else ''}")
        context.exit(1)
    click.echo(f"{data_path} is sound")
