"""python -m bench.plot FILE...: plots the output of `bench --json` and `bench.growth --json`.

bench-rates.svg has the messages per server CPU-second of each target. bench-growth.svg has a panel
for each curve, from any number of files. The plots are readable on light and dark backgrounds.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import matplotlib as mpl
from matplotlib.figure import Figure

from bench.scenarios import row_titles

__all__ = ["draw_growth", "draw_rates", "main"]

IMAGES = Path(__file__).parents[1] / "docs" / "images"

INK = "#808890"
COLOURS = ("#3b82c4", "#d9822b", "#3f9f5f", "#a05fb4")
COLUMNS = 3


@click.command()
@click.argument(
    "files",
    nargs=-1,
    required=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
)
@click.option(
    "--into",
    type=click.Path(file_okay=False, path_type=Path),
    default=IMAGES,
    help="Folder for the plots. [default: docs/images]",
)
def main(*, files: Sequence[Path], into: Path) -> None:
    """Plot the results of the bench and of bench.growth as SVG."""
    documents = [_document(file) for file in files]
    into.mkdir(parents=True, exist_ok=True)
    if table := [line for one in documents for line in one.get("table", [])]:
        draw_rates(table, into / "bench-rates.svg")
        click.echo(into / "bench-rates.svg")
    if curves := [curve for one in documents for curve in one.get("curves", [])]:
        draw_growth(curves, into / "bench-growth.svg")
        click.echo(into / "bench-growth.svg")


def draw_rates(table: Sequence[Mapping[str, Any]], path: Path) -> None:
    """One line for each row with messages per CPU-second, with one dot for each target."""
    lines = [line for line in table if line["metric"] == "per_cpu"][::-1]
    figure = _figure(9, 1 + 0.28 * len(lines))
    axis = figure.subplots()
    for number, target in enumerate(lines[0]["medians"]):
        measured = [(y, line["medians"][target]) for y, line in enumerate(lines)]
        known = [(y, rate) for y, rate in measured if rate]
        axis.scatter(
            [rate for _, rate in known],
            [y for y, _ in known],
            label=target,
            color=COLOURS[number % len(COLOURS)],
            zorder=3 - number,  # ours on top
        )
    titles = row_titles()
    axis.set_yticks(range(len(lines)), [titles.get(line["row"], line["row"]) for line in lines])
    axis.set_xscale("log")
    axis.set_xlabel("messages per CPU-second of the server (more is better)")
    axis.xaxis.set_major_formatter(_in_full)
    axis.legend(loc="lower center", bbox_to_anchor=(0.5, 1), ncols=4, frameon=False, labelcolor=INK)
    _plain(axis)
    _save(figure, path)


def draw_growth(curves: Sequence[Mapping[str, Any]], path: Path) -> None:
    """One panel for each curve, with one line for each operation."""
    rows = -(-len(curves) // COLUMNS)
    figure = _figure(10, 2.9 * rows)
    panels = figure.subplots(rows, COLUMNS, squeeze=False).flatten()
    lines = list(
        dict.fromkeys(line for curve in curves for one in curve["cpu_us"] for line in one["costs"])
    )
    for axis, curve in zip(panels, curves, strict=False):
        for line in lines:
            known = [one for one in curve["cpu_us"] if line in one["costs"]]
            if known:
                axis.plot(
                    [one["point"] for one in known],
                    [one["costs"][line] for one in known],
                    marker="o",
                    markersize=4,
                    linewidth=1.5,
                    label=line,
                    color=COLOURS[lines.index(line) % len(COLOURS)],
                )
        _growth_axes(axis, curve)
    for axis in panels[len(curves) :]:
        axis.set_visible(False)
    _save(figure, path)


def _growth_axes(axis: Any, curve: Mapping[str, Any]) -> None:
    points = [one["point"] for one in curve["cpu_us"]]
    # The logarithmic scale needs a position for an empty backlog.
    if min(points) == 0:
        axis.set_xscale("symlog", linthresh=min(point for point in points if point))
        axis.set_xlim(left=0)
    else:
        axis.set_xscale("log")
    axis.set_yscale("log")
    costs = [cost for one in curve["cpu_us"] for cost in one["costs"].values()]
    # At least two decades, so that a nearly constant curve looks constant.
    middle = (min(costs) * max(costs)) ** 0.5
    axis.set_ylim(min(min(costs) / 2, middle / 10), max(max(costs) * 2, middle * 10))
    axis.set_title(curve["title"], loc="left", color=INK)
    axis.set_xlabel(curve["unit"])
    axis.set_ylabel("CPU µs per message")
    axis.xaxis.set_major_formatter(_in_full)
    axis.yaxis.set_major_formatter(_in_full)
    axis.legend(frameon=False, labelcolor=INK)
    _plain(axis)


def _figure(width: float, height: float) -> Figure:
    # Makes the file reproducible.
    mpl.rcParams.update({"svg.hashsalt": "bench", "svg.fonttype": "none", "font.size": 9})
    return Figure(figsize=(width, height))


def _in_full(value: float, _position: float) -> str:
    """Plain numbers below 10,000; larger ones with k and M."""
    if value >= 1e6:
        return f"{value / 1e6:g}M"
    return f"{value / 1e3:g}k" if value >= 1e4 else f"{value:,g}"


def _plain(axis: Any) -> None:
    for side in ("top", "right"):
        axis.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axis.spines[side].set_color(INK)
    axis.minorticks_off()
    axis.tick_params(color=INK, labelcolor=INK)
    axis.xaxis.label.set_color(INK)
    axis.yaxis.label.set_color(INK)
    axis.grid(visible=True, which="major", color=INK, alpha=0.25, linewidth=0.6)
    axis.set_axisbelow(True)


def _save(figure: Figure, path: Path) -> None:
    figure.tight_layout()
    figure.savefig(path, format="svg", transparent=True, metadata={"Date": None})


def _document(file: Path) -> dict[str, Any]:
    try:
        document = json.loads(file.read_text())
    except ValueError as error:
        raise click.ClickException(f"{file} is no JSON: {error}") from None
    if not isinstance(document, dict) or not {"table", "curves"} & document.keys():
        raise click.ClickException(f"{file} is neither of bench --json nor of bench.growth --json")
    return document


if __name__ == "__main__":
    main()
