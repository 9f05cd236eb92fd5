"""No two classes under src share a name."""

import ast
from collections import defaultdict
from pathlib import Path

SRC = Path(__file__).parents[1] / "src"

# Shared names, each with the reason. A name that a foreign interface requires may be added.
SHARED_NAMES = {
    # The blocking client has the classes of the asyncio client.
    name: [f"penstock/client/blocking/{module}.py", f"penstock/client/{module}.py"]
    for name, module in (
        ("Connection", "connection"),
        ("ConnectionPool", "connection_pool"),
        ("Consumer", "consumer"),
        ("Producer", "producer"),
    )
}


def files_by_class() -> dict[str, list[str]]:
    found: dict[str, list[str]] = defaultdict(list)
    for path in sorted(SRC.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                found[node.name].append(path.relative_to(SRC).as_posix())
    return found


def test_no_two_classes_share_a_name() -> None:
    shared = {name: sorted(files) for name, files in files_by_class().items() if len(files) > 1}

    assert SHARED_NAMES == shared
