"""python -m fuzz: replay what is kept, then look for what breaks."""

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
@click.option("--seconds", default=60, show_default=True, help="How long each is fuzzed; 0: not.")
@click.option("--keep", is_flag=True, help="Keep the inputs that reach something of their own.")
def main(targets: Sequence[str], *, seconds: int, keep: bool) -> None:
    """Replay the kept inputs, then fuzz with atheris, led by coverage.

    An input that fails is printed with its traceback. With --keep it is kept too, so that every
    replay fails until its cause is mended.
    """
    if seconds and not engine.is_available():
        raise click.ClickException("there is no atheris for this Python: --seconds=0 replays")
    # A list, so that one that fails keeps none of the others from being tried.
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
        # What atheris says is the same, unless the input took too long or too much memory.
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
