"""No more files are open than allowed, and none is closed that another thread uses."""

import pytest

from penstock.storage.file_pool import FilePool, Handle
from penstock.testing import MemoryFiles


@pytest.fixture
def pool(memory_files: MemoryFiles) -> FilePool:
    return FilePool(memory_files, 2)


def created(pool: FilePool, count: int) -> list[Handle]:
    handles = [pool.handle(f"data/{at}") for at in range(count)]
    for handle in handles:
        handle.create().write(handle.path.encode(), 0)
    return handles


def test_the_one_opened_longest_ago_is_closed(pool: FilePool) -> None:
    first, second, third = created(pool, 3)

    assert 2 == len(pool)
    assert (True, False, False) == (first.file is None, second.file is None, third.file is None)


def test_a_closed_file_opens_itself_again(pool: FilePool) -> None:
    handles = created(pool, 5)

    assert [handle.path.encode() for handle in handles] == [
        handle.open().read(0, 100) for handle in handles
    ]
    assert 2 == len(pool)


def test_a_pinned_file_stays_open(pool: FilePool) -> None:
    first = created(pool, 1)[0]
    file = first.pin()
    others = [pool.handle(f"data/other-{at}") for at in range(3)]
    for other in others:
        other.create()

    assert file is first.file
    assert 2 == len(pool)


def test_closing_waits_for_the_last_pin(pool: FilePool) -> None:
    handle = created(pool, 1)[0]
    handle.pin()
    handle.pin()
    handle.close()
    handle.unpin()
    assert handle.file is not None

    handle.unpin()
    assert handle.file is None
    assert 0 == len(pool)


def test_when_all_are_pinned_more_are_opened(pool: FilePool) -> None:
    for handle in created(pool, 2):
        handle.pin()
    pool.handle("data/more").create()

    assert 3 == len(pool)
