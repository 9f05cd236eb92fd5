"""Every command and every sample of the docs runs as shown."""

import doctest
import re
import shlex
import tomllib
from pathlib import Path

import pytest
from tests.docs.outputs import answers_alike
from tests.docs.pages import (
    LANGUAGES,
    ROOT,
    Block,
    blocks,
    commands,
    pages,
    pages_to_follow,
    steps,
)
from tests.docs.terminal import Terminal

NOT_RUN_MAX = 13
_RUN_ELSEWHERE = re.compile(r"tests/\S+\.py (does it|runs these lines)")


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.timeout(600)  # the first page that needs Spark starts it
@pytest.mark.parametrize("page", pages_to_follow(), ids=name)
def test_a_page_can_be_followed_word_for_word(
    page: Path, terminal: Terminal, request: pytest.FixtureRequest
) -> None:
    to_do = steps(page)
    desk: list[str] = request.getfixturevalue("desk") if any(map(needs_spark, to_do)) else []
    session: dict[str, object] = {}
    for block in to_do:
        try:
            follow(block, terminal, desk, session)
        except AssertionError as failure:
            raise AssertionError(f"{name(page)}:{block.line}: {failure}") from None
    if desk:
        terminal.run(shlex.join([*desk, "clear"]))


def needs_spark(block: Block) -> bool:
    jobs = ("penstock archive", "penstock replay", "penstock stream")
    return block.is_for_pyspark or any(command.line.startswith(jobs) for command in commands(block))


def follow(block: Block, terminal: Terminal, desk: list[str], session: dict[str, object]) -> None:
    """Run a block and compare its output."""
    if block.file:
        (terminal.folder / block.file).write_text(block.text)
    elif block.text.startswith(">>> "):
        follow_session(block.text, session)
    elif block.language == "python":
        follow_script(block, terminal, desk)
    else:
        for command in commands(block):
            printed = terminal.run(command.line, command.printed)
        if block.answer is not None:
            assert answers_alike(block.answer, printed), printed


def follow_script(block: Block, terminal: Terminal, desk: list[str]) -> None:
    script = terminal.folder / f"script_{block.line}.py"
    script.write_text(block.text)
    run = [*desk, "type"] if block.is_for_pyspark else ["python"]
    is_long_running = "nsq.run()" in block.text  # pynsq's way
    terminal.run(shlex.join([*run, script.name]), block.printed, is_long_running=is_long_running)


def follow_session(text: str, session: dict[str, object]) -> None:
    example = doctest.DocTestParser().get_doctest(text, session, "page", None, 0)
    result = doctest.DocTestRunner(verbose=False).run(example, clear_globs=False)
    session.update(example.globs)
    assert 0 == result.failed


@pytest.mark.parametrize("page", pages(), ids=name)
def test_every_block_has_a_known_language(page: Path) -> None:
    assert [] == [block for block in blocks(page) if block.language not in LANGUAGES]
    for block in blocks(page):
        if block.language == "toml":
            tomllib.loads(block.text)
        elif block.language == "json":
            assert answers_alike(block.text, block.text)


def test_few_blocks_are_not_run() -> None:
    """A block that another test runs word for word does not count."""
    reasons = [block.not_run for page in pages() for block in blocks(page) if block.not_run]
    unrun = [reason for reason in reasons if not _RUN_ELSEWHERE.search(reason)]

    assert len(unrun) <= NOT_RUN_MAX, unrun
