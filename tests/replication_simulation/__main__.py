"""Run simulated schedules of a replicated node with three members.

python -m tests.replication_simulation --seed 123 [--trace]     one schedule; shortened if it fails
python -m tests.replication_simulation --seeds 10000            many, with new seeds, on all cores
python -m tests.replication_simulation --seed 123 --seeds 500   the schedules of seeds 123 to 622
python -m tests.replication_simulation --mutations              insert bugs; each must be found
"""

import argparse
import multiprocessing
import os
import secrets
import sys
import time

from tests.replication_simulation.campaign import campaign, shortened, trace_of
from tests.replication_simulation.mutations import MUTATIONS, SEEDS_MAX, seeds_until_found
from tests.replication_simulation.run import run
from tests.replication_simulation.schedule import schedule_of
from tests.simulation.campaign import Campaign

_CHUNK = 250


def main() -> int:
    """Returns the exit code: 1 if a schedule failed or a bug was not found."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.replication_simulation",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--seed", type=int, help="seed of the schedule, or of the first one")
    parser.add_argument("--seeds", type=int, help="how many schedules to run")
    parser.add_argument("--trace", action="store_true", help="print what happens")
    parser.add_argument("--mutations", action="store_true", help="look for deliberate bugs")
    options = parser.parse_args()
    exit_code = 0
    if options.seeds is not None:
        first = secrets.randbits(40) if options.seed is None else options.seed
        exit_code = _run_many(first, options.seeds)
    elif options.seed is not None:
        exit_code = _run_one(options.seed, with_trace=options.trace)
    elif not options.mutations:
        parser.error("one of --seed, --seeds and --mutations is needed")
    if options.mutations:
        exit_code |= _find_mutations()
    return exit_code


def _run_one(seed: int, *, with_trace: bool) -> int:
    schedule = schedule_of(seed)
    has_failed = run(schedule).violation is not None
    if has_failed:
        schedule = shortened(schedule)
    if has_failed or with_trace:
        print(trace_of(schedule))
    else:
        print(f"seed {seed}: {len(schedule.steps)} steps, no violation")
    return int(has_failed)


def _run_many(first: int, count: int) -> int:
    command = f"python -m tests.replication_simulation --seed {first} --seeds {count}"
    print(f"{command} repeats this", file=sys.stderr)
    started = time.monotonic()
    total = Campaign()
    end = first + count
    ranges = [range(at, min(at + _CHUNK, end)) for at in range(first, end, _CHUNK)]
    with multiprocessing.Pool(os.cpu_count()) as pool:
        for part in pool.imap_unordered(campaign, ranges):
            total.runs += part.runs
            total.failures |= part.failures
            total.coverage.update(part.coverage)
            print(f"\r{total.runs} schedules, {len(total.failures)} fail", end="", file=sys.stderr)
    print(f", {time.monotonic() - started:.0f} s", file=sys.stderr)
    for event, number in sorted(total.coverage.items()):
        print(f"{number:9} {event}")
    for seed, violation in sorted(total.failures.items()):
        print(f"seed {seed}: {violation}")
    if total.failures:
        print(trace_of(shortened(schedule_of(min(total.failures)))))
    return int(bool(total.failures))


def _find_mutations() -> int:
    with multiprocessing.Pool(os.cpu_count()) as pool:
        seeds = pool.map(seeds_until_found, [each.name for each in MUTATIONS], chunksize=1)
    for mutation, seed in zip(MUTATIONS, seeds, strict=True):
        outcome = f"not found in {SEEDS_MAX}" if seed is None else f"found by schedule {seed}"
        print(f"{outcome:26} {mutation.name}")
    return int(None in seeds)


if __name__ == "__main__":
    sys.exit(main())
