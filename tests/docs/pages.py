"""A page of documentation, as what somebody does who follows it from top to bottom.

Every block between fences says by its language what it is:

    sh         commands; they are run
    console    commands, after `$ `, with what they print, which is compared (see outputs.py)
    python     a script, or what is typed into pyspark's shell if it uses a `spark` that it does not
               make; with `>>> `, a session of Python's. It is run
    json       the answer of the last command; at any other place it is only read
    toml, yaml a file
    text       what the last script printed; at any other place, no code
    mermaid    a picture

A block that cannot be run has its reason above it, `<!-- not run: reason -->`; one that the reader
is to save has its name there, `<!-- file: tasks.py -->`. What a page takes for granted, such as a
running nsqd, is done by commands in `<!-- given: ... -->`.
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

# A block between fences, or a comment that says what a page takes for granted.
_BLOCK = re.compile(
    r"^(?:<!-- (?P<mark>not run|file): (?P<said>[^>]*?) -->\n+)?"
    r"^```(?P<language>\S*)\n(?P<text>.*?)^```$|^<!-- given:(?P<given>.*?)-->$",
    re.MULTILINE | re.DOTALL,
)
_HEREDOC = re.compile(r"<<'(\w+)'")


@dataclass(frozen=True, slots=True)
class Block:
    """A block of a page, and the one that says what it printed, if there is such a one."""

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
        """Whether it uses a `spark` that it does not make."""
        if self.language != "python" or self.text.startswith(">>> "):
            return False
        names = [node for node in ast.walk(ast.parse(self.text)) if isinstance(node, ast.Name)]
        spark = [type(name.ctx) for name in names if name.id == "spark"]
        return ast.Load in spark and ast.Store not in spark


@dataclass(frozen=True, slots=True)
class Command:
    """A command line, and what it prints, if that is shown."""

    line: str
    printed: str | None = None


_NOTHING = Block("", "", 0)


def pages() -> list[Path]:
    """Every page there is."""
    folders = [ROOT / name for name in ("docs", "examples", "deploy")]
    below = [path for folder in folders for path in folder.rglob("*.md")]
    return sorted([*ROOT.glob("*.md"), *below])


def pages_to_follow() -> list[Path]:
    """Those with something to run."""
    return [page for page in pages() if any(block.language in RUN for block in steps(page))]


def blocks(page: Path) -> list[Block]:
    """All that is between fences on a page, and what it takes for granted."""
    text = page.read_text(encoding="utf-8")
    return [_block(found, text) for found in _BLOCK.finditer(text)]


def steps(page: Path) -> list[Block]:
    """What there is to do on a page, in its order, with what comes of it."""
    text = page.read_text(encoding="utf-8")
    return [
        block if text[block.end : after.begin].strip() else _with_result(block, after)
        for block, after in pairwise([*blocks(page), _NOTHING])
        if not block.not_run and (block.language in RUN or block.file)
    ]


def commands(block: Block) -> list[Command]:
    """The command lines of a block of them."""
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
    """Lines, each with those that continue it: after a backslash, or up to the end of a heredoc."""
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
    """Each command with the lines that follow it."""
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
