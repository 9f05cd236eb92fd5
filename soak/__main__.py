"""python -m soak: load and faults, then a plot and a verdict."""

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from random import Random

import click
import trustme

from penstock.testing.addresses import reserved_address
from penstock.testing.nsqd import NsqdProcess, run_nsqd
from soak.faults import Fault, fill_disk, kill_and_restart, stop_and_continue
from soak.load import Account, Order, Where
from soak.plot import draw
from soak.samples import Sampler
from soak.verdict import Finding, judge_account, judge_samples

__all__ = ["main"]

FAULT_EVERY_SECONDS = (5.0, 25.0)
END_SECONDS_MAX = 240.0
PROGRESS_SECONDS = 60.0

# Small files and short retention, so that minutes have the turnover of days.
FLAGS = (
    "--max-bytes-per-file=1048576",
    "--retention-bytes=4194304",
    "--mem-queue-size=1000",
    "--msg-timeout=10s",
    "--https-address=127.0.0.1:0",
)


@dataclass
class Node:
    """An nsqd with its faults and samples."""

    name: str
    nsqd: NsqdProcess
    sampler: Sampler
    fates: Sequence[Fault]
    happened: list[tuple[float, str]] = field(default_factory=list)

    @property
    def where(self) -> Where:
        return Where(self.nsqd.tcp_address, self.nsqd.http_address)

    def suffer(self, chance: Random, at: float) -> None:
        fault = chance.choice(self.fates)
        self.happened.append((at, fault.__name__))
        self.sampler.pid = 0 if fault is kill_and_restart else self.sampler.pid
        fault(self.nsqd, chance)
        self.sampler.pid = self.nsqd.pid


@click.command()
@click.option("--minutes", default=20.0, show_default=True, envvar="MINUTES")
@click.option(
    "--rate", default=2000, show_default=True, help="Messages per second, on each of both nsqds."
)
@click.option("--seed", type=int, help="Seed for the times and kinds of faults. [default: random]")
@click.option(
    "--plot",
    type=click.Path(dir_okay=False, path_type=Path),
    default=Path("docs/images/soak.svg"),
    show_default=True,
)
def main(*, minutes: float, rate: int, seed: int | None, plot: Path) -> None:
    """Run load and faults, then write a plot and a verdict.

    The exit code is 1 if a message was lost or a resource grew.
    """
    seed = Random().randrange(2**32) if seed is None else seed
    click.echo(f"{minutes:g} minutes at {rate} messages/s, seed {seed}")
    with nodes() as (steady, mortal, ca_file):
        both = [steady, mortal]
        accounts = soak(both, Order([node.where for node in both], rate, ca_file), minutes, seed)
    draw(
        plot,
        {node.name: node.sampler.samples for node in both},
        sorted(fault for node in both for fault in node.happened),
    )
    findings = [
        *judge_samples(steady.sampler.samples, minutes * 60),
        *(finding for account in accounts for finding in judge_account(account)),
    ]
    report(both, accounts, findings)
    click.echo(f"plot: {plot}")
    sys.exit(0 if all(finding.is_good for finding in findings) else 1)


@contextmanager
def nodes() -> Iterator[tuple[Node, Node, str]]:
    """The steady nsqd, the one that is killed, and the path of their CA file."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="soak-")))
        certificate, key, ca = (folder / name for name in ("cert.pem", "key.pem", "ca.pem"))
        authority = trustme.CA()
        issued = authority.issue_cert("127.0.0.1")
        issued.private_key_pem.write_to_path(key)
        issued.cert_chain_pems[0].write_to_path(certificate)
        authority.cert_pem.write_to_path(ca)
        flags = (*FLAGS, f"--tls-cert={certificate}", f"--tls-key={key}")
        steady = stack.enter_context(node("lives", folder / "lives", flags))
        steady.fates = (stop_and_continue, fill_disk)
        mortal = stack.enter_context(node("is killed", folder / "killed", flags))
        mortal.fates = (kill_and_restart,)
        yield steady, mortal, str(ca)


@contextmanager
def node(name: str, data_path: Path, flags: Sequence[str]) -> Iterator[Node]:
    data_path.mkdir()
    # On fixed ports, so that clients find it after a restart.
    with (
        reserved_address() as tcp,
        reserved_address() as http,
        run_nsqd(
            *flags, f"--tcp-address={tcp}", f"--http-address={http}", data_path=data_path
        ) as nsqd,
    ):
        sampler = Sampler(nsqd.http_address, data_path)
        sampler.start(nsqd.pid)
        try:
            yield Node(name, nsqd, sampler, ())
        finally:
            sampler.stop()


def soak(both: Sequence[Node], order: Order, minutes: float, seed: int) -> list[Account]:
    """Run load and faults; returns the report of the load."""
    command = [sys.executable, "-m", "soak.load", json.dumps(asdict(order))]
    load = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        _let_it_happen(both, load, Random(seed), minutes * 60)
        said, _ = load.communicate(timeout=END_SECONDS_MAX)
    finally:
        load.kill()
        load.wait()
    if load.returncode:
        raise click.ClickException(f"the load ended with exit code {load.returncode}")
    return [Account(**account) for account in json.loads(said)]


def _let_it_happen(
    both: Sequence[Node], load: subprocess.Popen[bytes], chance: Random, seconds: float
) -> None:
    began = time.monotonic()
    ends, next_progress = began + seconds, began + PROGRESS_SECONDS
    while (now := time.monotonic()) < ends and load.poll() is None:
        if now > next_progress:
            next_progress += PROGRESS_SECONDS
            click.echo(_progress(both, now - began))
        time.sleep(min(chance.uniform(*FAULT_EVERY_SECONDS), ends - now))
        # No faults near the end, so that the last samples do not show a recovery.
        if time.monotonic() < ends - 0.1 * seconds:
            chance.choice(both).suffer(chance, time.monotonic() - began)


def _progress(both: Sequence[Node], seconds: float) -> str:
    parts = [
        f"{node.name}: {node.sampler.samples[-1].rss_mb:.0f} MB, {len(node.happened)} faults"
        for node in both
        if node.sampler.samples
    ]
    return f"minute {seconds / 60:.0f}: " + "; ".join(parts)


def report(both: Sequence[Node], accounts: Sequence[Account], findings: Sequence[Finding]) -> None:
    """Print the verdict."""
    for each, account in zip(both, accounts, strict=True):
        kinds = [name for _, name in each.happened]
        faults = ", ".join(f"{kinds.count(kind)} x {kind}" for kind in dict.fromkeys(kinds))
        click.echo(f"{each.name}: {faults or 'no fault'}; troubles of its clients:")
        for trouble, times in sorted(account.troubles.items()):
            click.echo(f"    {times} x {trouble}")
    for finding in findings:
        click.echo(f"{'good ' if finding.is_good else 'WRONG'} {finding.text}")


if __name__ == "__main__":
    main()
