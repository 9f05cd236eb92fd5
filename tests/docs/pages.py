"""Splits a page of documentation into the steps of a reader who follows it from top to bottom.

The language of a fenced block says what it is:

    sh         commands; they are run
    console    commands after `$ `, with their output, which is compared (see outputs.py)
    python     a script, or input for pyspark's shell if it uses a `spark` that it does not
               create; with `>>> `, a Python session. It is run
    json       the response of the last command; elsewhere it is only parsed
    toml, yaml a file
    text       the output of the last script; elsewhere it is not code
    mermaid    a diagram

A block that cannot be run has the reason above it, `<!-- not run: reason -->`. A block that the
reader saves as a file has the name there, `<!-- file: tasks.py -->`. Preparation that a page
assumes, such as a running nsqd, consists of commands in `<!-- given: ... -->`.
"""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

__all__ = [
    "LANGUAGES",
    "ROOT",
    "Block",
    "Command",
    "blocks",
    "commands",
    "pages",
    "pages_to_follow",
    "steps",
]

ROOT = Path(__file__).parents[2]

LANGUAGES = {"sh", "console", "python", "json", "toml", "yaml", "text", "mermaid", "given"}
RUN = {"sh", "console", "python", "given"}

# A fenced block, or a comment with the preparation of a page.
_BLOCK = re.compile(
    r"^(?:<!-- (?P<mark>not run|file): (?P<said>[^>]*?) -->\n+)?"
    r"^```(?P<language>\S*)\n(?P<text>.*?)^```$|^<!-- given:(?P<given>.*?)-->$",
    re.MULTILINE | re.DOTALL,
)
_HEREDOC = re.compile(r"<<'(\w+)'")


@dataclass(frozen=True, slots=True)
class Block:
    """A block of a page, and the output block that follows it, if any."""

    language: str
    text: str
    line: int
    begin: int = 0
    end: int = 0
    not_run: str = ""
    file: str = ""
    printed: str | None = None
    answer: str | None = None

    @property
    def is_for_pyspark(self) -> bool:
        """Whether it uses a `spark` that it does not create."""
        if self.language != "python" or self.text.startswith(">>> "):
            return False
        names = [node for node in ast.walk(ast.parse(self.text)) if isinstance(node, ast.Name)]
        spark = [type(name.ctx) for name in names if name.id == "spark"]
        return ast.Load in spark and ast.Store not in spark


@dataclass(frozen=True, slots=True)
class Command:
    """A command line, and its shown output, if any."""

    line: str
    printed: str | None = None


_NOTHING = Block("", "", 0)


def pages() -> list[Path]:
    """All pages."""
    folders = [ROOT / name for name in ("docs", "examples", "deploy")]
    below = [path for folder in folders for path in folder.rglob("*.md")]
    return sorted([*ROOT.glob("*.md"), *below])


def pages_to_follow() -> list[Path]:
    """Pages with blocks to run."""
    return [page for page in pages() if any(block.language in RUN for block in steps(page))]


def blocks(page: Path) -> list[Block]:
    """All fenced blocks and preparations of a page."""
    text = page.read_text(encoding="utf-8")
    return [_block(found, text) for found in _BLOCK.finditer(text)]


def steps(page: Path) -> list[Block]:
    """The blocks of a page in order, each with its output."""
    text = page.read_text(encoding="utf-8")
    return [
        block if text[block.end : after.begin].strip() else _with_result(block, after)
        for block, after in pairwise([*blocks(page), _NOTHING])
        if not block.not_run and (block.language in RUN or block.file)
    ]


def commands(block: Block) -> list[Command]:
    """The command lines of a block."""
    if block.language == "console":
        return [
            Command(line, "\n".join(printed)) for line, printed in _dialogue(_lines(block.text))
        ]
    lines = [line for line in _lines(block.text) if line and not line.startswith("#")]
    return [Command(line) for line in lines]


def _block(found: re.Match[str], text: str) -> Block:
    said = {found["mark"]: found["said"]}
    is_given = found["given"] is not None
    return Block(
        "given" if is_given else found["language"],
        found["given"].strip() if is_given else found["text"],
        text.count("\n", 0, found.start()) + 1,
        found.start(),
        found.end(),
        not_run=said.get("not run", ""),
        file=said.get("file", ""),
    )


def _with_result(block: Block, after: Block) -> Block:
    if block.language == "python" and after.language == "text":
        return replace(block, printed=after.text)
    if block.language == "sh" and after.language == "json":
        return replace(block, answer=after.text)
    return block


def _lines(text: str) -> list[str]:
    """Lines, joined with their continuations: after a backslash, or up to the end of a heredoc."""
    whole: list[str] = []
    until = ""
    for line in text.splitlines():
        if until or (whole and whole[-1].endswith("\\")):
            whole[-1] += "\n" + line
            until = "" if line == until else until
        else:
            whole.append(line)
            heredoc = _HEREDOC.search(line)
            until = heredoc[1] if heredoc else ""
    return whole


def _dialogue(lines: list[str]) -> Iterator[tuple[str, list[str]]]:
    """Each command with its output."""
    printed: list[str] = []
    command = ""
    for line in lines:
        if line.startswith("$ "):
            if command:
                yield command, printed
            command, printed = line.removeprefix("$ "), []
        else:
            printed.append(line)
    if command:
        yield command, printed
