"""Run simulated schedules.

python -m tests.simulation --seed 123 [--trace]     one schedule; shortened if it fails
python -m tests.simulation --seeds 10000            many, with new seeds, on all cores
python -m tests.simulation --seed 123 --seeds 500   the schedules of the seeds 123 to 622
python -m tests.simulation --seeds 10000 --coverage also count events
python -m tests.simulation --mutations              insert bugs; each must be found
"""

import argparse
import multiprocessing
import os
import secrets
import sys
import time
from collections.abc import Iterator

from tests.simulation.campaign import Campaign, campaign, shortened, trace_of
from tests.simulation.coverage import coverage_table, missing_from
from tests.simulation.mutations import MUTATIONS, SEEDS_MAX, seeds_until_found
from tests.simulation.run import run
from tests.simulation.schedule import schedule_of

_CHUNK = 500


def main() -> int:
    """Returns the exit code: 1 if a schedule failed or a bug was not found."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.simulation",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--seed", type=int, help="seed of the schedule, or of the first one")
    parser.add_argument("--seeds", type=int, help="how many schedules to run")
    parser.add_argument("--trace", action="store_true", help="print what happens")
    parser.add_argument(
        "--coverage", action="store_true", help="print how often each event occurred"
    )
    parser.add_argument("--mutations", action="store_true", help="look for deliberate bugs")
    options = parser.parse_args()
    if options.mutations:
        return _find_mutations()
    if options.seeds is not None:
        first = secrets.randbits(40) if options.seed is None else options.seed
        return _run_many(first, options.seeds, with_coverage=options.coverage)
    if options.seed is None:
        parser.error("one of --seed, --seeds and --mutations is needed")
    return _run_one(options.seed, with_trace=options.trace)


def _run_one(seed: int, *, with_trace: bool) -> int:
    schedule = schedule_of(seed)
    failed = run(schedule).violation is not None
    if failed:
        schedule = shortened(schedule)
    if failed or with_trace:
        print(trace_of(schedule))
    else:
        print(f"seed {seed}: {len(schedule.steps)} steps, no violation")
    return int(failed)


def _run_many(first: int, count: int, *, with_coverage: bool) -> int:
    print(
        f"python -m tests.simulation --seed {first} --seeds {count} repeats this", file=sys.stderr
    )
    started = time.monotonic()
    total = Campaign()
    for part in _parts(first, count):
        total.runs += part.runs
        total.failures |= part.failures
        total.coverage.update(part.coverage)
        print(f"\r{total.runs} schedules, {len(total.failures)} fail", end="", file=sys.stderr)
    print(f", {time.monotonic() - started:.0f} s", file=sys.stderr)
    if with_coverage:
        print(coverage_table(total.coverage))
        for missing in missing_from(total.coverage):
            print(f"never: {missing}")
    for seed, violation in sorted(total.failures.items()):
        print(f"seed {seed}: {violation}")
    return int(bool(total.failures))


def _parts(first: int, count: int) -> Iterator[Campaign]:
    end = first + count
    ranges = [range(at, min(at + _CHUNK, end)) for at in range(first, end, _CHUNK)]
    with multiprocessing.Pool(os.cpu_count()) as pool:
        yield from pool.imap_unordered(campaign, ranges)


def _find_mutations() -> int:
    unfound = 0
    for mutation in MUTATIONS:
        found = seeds_until_found(mutation)
        unfound += found is None
        outcome = f"not found in {SEEDS_MAX}" if found is None else f"found by schedule {found}"
        print(f"{outcome:26} {mutation.name}")
    return int(bool(unfound))


if __name__ == "__main__":
    sys.exit(main())
