"""`penstock import`: take over the data path of NSQ's own nsqd."""

from pathlib import Path

import click

from penstock.cli.command_options import CommandWithExamples
from penstock.common.errors import StorageError

__all__ = ["command"]


@click.command(
    "import",
    cls=CommandWithExamples,
    examples=[
        "penstock import /var/lib/nsq --dry-run",
        "penstock import /var/lib/nsq --data-path /var/lib/penstock",
    ],
)
@click.argument("old_data_path", type=click.Path(), metavar="OLD_DATA_PATH")
@click.option("--data-path", type=click.Path(), help="Where to: our nsqd's --data-path.")
@click.option("--dry-run", is_flag=True, help="Read everything, count it, and write nothing.")
@click.option(
    "--node-id",
    type=click.IntRange(0, 1023),
    help="Our nsqd's --node-id.  [default: as nsqd's, made from the hostname]",
)
@click.pass_context
def command(
    context: click.Context,
    old_data_path: str,
    *,
    data_path: str | None,
    dry_run: bool,
    node_id: int | None,
) -> None:
    """Take over what NSQ's own nsqd has left on disk.

    Topics, channels, pauses, and every message that a topic or a channel still has, in its order,
    with its time and its attempts. The old nsqd must have been stopped; nothing in OLD_DATA_PATH is
    changed. What was written is read back and compared before it counts, so an import that is
    interrupted can simply be run again.

    Exits with 1 if messages are missing or damaged. All others are imported even so, and damaged
    bytes are kept in DATA_PATH/import-damage.
    """
    from penstock.cli.import_report import lines_of  # noqa: PLC0415
    from penstock.common.process import raise_open_files_limit  # noqa: PLC0415
    from penstock.migration.data_import import (  # noqa: PLC0415
        finish_interrupted,
        import_data,
        size_to_read,
        survey,
    )
    from penstock.nsqd.options import NsqdOptions  # noqa: PLC0415
    from penstock.tools.byte_bar import byte_bar  # noqa: PLC0415

    if data_path is None and not dry_run:
        raise click.UsageError("where to? name --data-path, or look first with --dry-run")
    if data_path is not None and Path(data_path).resolve() == Path(old_data_path).resolve():
        raise click.UsageError("--data-path must be another folder than OLD_DATA_PATH")
    if data_path is not None and not dry_run and (topics := finish_interrupted(data_path)):
        click.echo(f"completed an import that had been interrupted: {', '.join(topics)}")
        return
    raise_open_files_limit()  # all channels of a topic are read at once
    try:
        with byte_bar(size_to_read(old_data_path)) as bar:

            def on_read(size_bytes: int) -> None:
                if bar is not None:
                    bar.advance(bar.task_ids[0], size_bytes)

            if dry_run or data_path is None:
                found = survey(old_data_path, on_read)
            else:
                chosen = NsqdOptions().node_id if node_id is None else node_id
                found = import_data(old_data_path, data_path, node_id=chosen, on_read=on_read)
    except KeyboardInterrupt:
        raise StorageError("interrupted; it can be run again") from None
    for line in lines_of(found, None if dry_run else data_path):
        click.echo(line)
    context.exit(0 if found.is_complete else 1)
