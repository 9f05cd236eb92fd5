"""Plot of the samples and faults of a run."""

from collections.abc import Callable, Mapping, Sequence
from math import nan
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

from soak.samples import Sample

__all__ = ["draw"]

POINTS_MAX = 400

PANELS: Mapping[str, Callable[[Sample], float]] = {
    "resident memory, MB": lambda sample: sample.rss_mb,
    "open handles": lambda sample: float(sample.handles),
    "disk, MB": lambda sample: sample.disk_mb,
    "loop late, ms (the worst of each second)": lambda sample: sample.late_ms,
    "waiting for a core, ms of each second": lambda sample: sample.starved_ms,
}
FAULT_COLOURS = {
    "stop_and_continue": "tab:orange",
    "fill_disk": "tab:red",
    "kill_and_restart": "tab:purple",
}


def draw(
    path: Path, runs: Mapping[str, Sequence[Sample]], faults: Sequence[tuple[float, str]]
) -> None:
    """Write an SVG with one panel per figure and one line per nsqd."""
    # Makes the file reproducible.
    mpl.rcParams.update({"svg.hashsalt": "soak", "font.size": 8})
    figure = Figure(figsize=(9, 9))
    axes = figure.subplots(len(PANELS), sharex=True)
    for axis, (title, of) in zip(axes, PANELS.items(), strict=True):
        axis.set_title(title, loc="left")
        for name, samples in runs.items():
            thinned = samples[:: 1 + len(samples) // POINTS_MAX]
            minutes = [sample.at / 60 for sample in thinned]
            axis.plot(minutes, [of(sample) for sample in thinned], label=name, linewidth=0.8)
        _mark(axis, faults)
        axis.set_ylim(bottom=0)
    axes[-2].set_yscale("symlog", linthresh=10)
    axes[-1].set_xlabel("minutes")
    axes[0].legend(loc="lower right", ncols=4)
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, format="svg", metadata={"Date": None})


def _mark(axis: Any, faults: Sequence[tuple[float, str]]) -> None:
    for fault, colour in FAULT_COLOURS.items():
        minutes = [at / 60 for at, name in faults if name == fault]
        # All vertical lines as one path, to keep the file small.
        axis.plot(
            [x for minute in minutes for x in (minute, minute, nan)],
            [y for _ in minutes for y in (0, 1, nan)],
            transform=axis.get_xaxis_transform(),
            color=colour,
            alpha=0.3,
            linewidth=0.6,
            label=fault.replace("_", " "),
        )
