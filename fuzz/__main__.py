"""python -m fuzz: replay stored inputs, then fuzz."""

import sys
from collections.abc import Sequence

import click

from fuzz import engine
from fuzz.corpus import keep_inputs, kept_inputs
from fuzz.minimising import minimised
from fuzz.replay import failure_of, replay
from fuzz.targets import TARGETS, Target, load_target

__all__ = ["main"]

_LIST = "\n".join(f"{name:14}{what}" for name, what in TARGETS.items())


@click.command(epilog=f"\b\nTargets, all unless some are named:\n{_LIST}")
@click.argument("targets", nargs=-1, type=click.Choice(list(TARGETS)), metavar="[TARGET]...")
@click.option(
    "--seconds", default=60, show_default=True, help="Duration per target; 0 only replays."
)
@click.option("--keep", is_flag=True, help="Store inputs that reach new code.")
def main(targets: Sequence[str], *, seconds: int, keep: bool) -> None:
    """Replay the stored inputs, then fuzz with atheris, guided by coverage.

    A failing input is printed with its traceback. With --keep it is also stored, so that every
    replay fails until the bug is fixed.
    """
    if seconds and not engine.is_available():
        raise click.ClickException(
            "atheris is not available for this Python; pass --seconds=0 to replay only"
        )
    # A list: all targets run, even if one fails.
    are_sound = [_try_target(load_target(name), seconds, keep=keep) for name in targets or TARGETS]
    sys.exit(0 if all(are_sound) else 1)


def _try_target(target: Target, seconds: int, *, keep: bool) -> bool:
    replayed = replay(target)
    click.echo(f"{target.name}: {replayed.inputs} inputs replayed in {replayed.seconds:.1f} s")
    for failure in replayed.failures:
        click.echo(failure, err=True)
    if not seconds or replayed.failures:
        return not replayed.failures
    try:
        fuzzed = engine.fuzz(target.name, seconds)
    except engine.EngineError as failure:
        raise click.ClickException(str(failure)) from None
    click.echo(f"{target.name}: {fuzzed.runs:,} inputs tried in {seconds} s")
    for data in fuzzed.failed:
        # Show the output of atheris only if the input failed by time or memory.
        click.echo(failure_of(target, data) or f"{data!r}\n{fuzzed.output}", err=True)
    if keep:
        _keep(target, fuzzed)
    return not fuzzed.failed


def _keep(target: Target, fuzzed: engine.Fuzzed) -> None:
    chosen = minimised(target, {*kept_inputs(target.name), *fuzzed.inputs} - {*fuzzed.failed})
    kept = keep_inputs(target.name, [*chosen, *fuzzed.failed])
    click.echo(f"{target.name}: {kept} inputs kept")


if __name__ == "__main__":
    main()
