"""Packages import what stands above them in fairseq_plugins/README.md, and nothing else of the project."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "fairseq_plugins"
(LISTED,) = re.findall(r"^```text\n(options.*?)^```", (PACKAGE / "README.md").read_text(encoding="utf-8"), re.M | re.S)
ROWS = {name: row for row, line in enumerate(LISTED.splitlines()) for name in line.split(", ")}


def imported(path):
    """The project's packages that a module imports, wherever it does."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        for name in names:
            first, *rest = name.split(".")
            if first == PACKAGE.name and rest:
                yield rest[0]


def test_every_package_has_a_row():
    packages = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    assert packages | {path.stem for path in PACKAGE.glob("*.py")} - {"__init__"} == ROWS.keys()


@pytest.mark.parametrize("name", ROWS)
def test_imports_point_down(name):
    for path in [*(PACKAGE / name).rglob("*.py"), *PACKAGE.glob(f"{name}.py")]:
        for other in imported(path):
            assert other == name or ROWS[other] < ROWS[name], f"{path.relative_to(ROOT)} imports {other}"
