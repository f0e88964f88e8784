"""Packages import what stands above them in fairseq_plugins/README.md, and no modules import in a circle."""

import ast
import re
from graphlib import TopologicalSorter

import pytest
from paths import PLUGINS, ROOT

PACKAGE = PLUGINS
(LISTED,) = re.findall(r"^```text\n(options.*?)^```", (PACKAGE / "README.md").read_text(encoding="utf-8"), re.M | re.S)
ROWS = {name: row for row, line in enumerate(LISTED.splitlines()) for name in line.split(", ")}


def imported(path):
    """Parts of the names of the project's modules that a module imports, wherever it does, without the package's."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom):
            names = [node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names)]
        for name in names:
            first, *rest = name.split(".")
            if first == PACKAGE.name and rest:
                yield rest


def test_every_package_has_a_row():
    packages = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    assert packages | {path.stem for path in PACKAGE.glob("*.py")} - {"__init__"} == ROWS.keys()


@pytest.mark.parametrize("name", ROWS)
def test_imports_point_down(name):
    for path in [*(PACKAGE / name).rglob("*.py"), *PACKAGE.glob(f"{name}.py")]:
        for other, *_ in imported(path):
            assert other == name or ROWS.get(other, -1) < ROWS[name], f"{path.relative_to(ROOT)} imports {other}"


def test_no_modules_import_each_other_in_a_circle():
    modules = set(PACKAGE.rglob("*.py"))
    needed = {
        path: {PACKAGE.joinpath(*rest).with_suffix(".py") for rest in imported(path)} & modules for path in modules
    }
    TopologicalSorter(needed).prepare()  # raises CycleError
