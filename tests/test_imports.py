"""The floor plan holds: imports go only downwards and in no circle, files and functions stay small, and `import torchdojo` stays light."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from conftest import REPOSITORY

PACKAGE = REPOSITORY / "torchdojo"

#: From top to bottom; a module imports from its own floor and from those below it. `torchdojo` alone is the public face, `__init__.py`.
FLOORS = (
    ("__main__",),
    ("commands",),
    ("evaluation",),
    ("planning", "learning", "identification"),
    ("envs",),
    ("viewer",),
    ("runs",),
    ("torchdojo",),
    ("models", "io", "testing", "scenes"),
    ("mechanism",),
    ("sensors",),
    ("engine",),
    ("native",),
    ("gradients",),
    ("solver",),
    ("dynamics", "posing"),
    ("structure",),
    ("state",),
    ("parametrize",),
    ("elements",),
    ("geometry",),
    ("precision",),
    ("quaternion", "parameters"),
)
FLOOR = {name: len(FLOORS) - i for i, names in enumerate(FLOORS) for name in names}
#: `Mechanism.animate` is where users look for a picture, so it imports the viewer when it is called.
EXCEPTIONS = {("torchdojo.mechanism", "torchdojo.viewer.animation")}
APPLICATIONS = [name for names in FLOORS[: FLOORS.index(("torchdojo",))] for name in names]
HEAVY = [
    "scipy",
    "lightning",
    "pytorch_lightning",
    "matplotlib",
    "mujoco",
    "gymnasium",
    "urchin",
    "trimesh",
    "viser",
    "websockets",
    "imageio",
    "imageio_ffmpeg",
    "PIL",
    "tqdm",
    "torch.utils.cpp_extension",
    "rsl_rl",
    "tensordict",
    "torchrl",
    "tensorboard",
]

MAXIMUM_LINES = 500
MAXIMUM_FUNCTION = 70  # lines without the docstring
INTERFACE = "torchdojo/mechanism.py"  # one class with all methods that users call; each has at most a screen, most have three lines
MAXIMUM_ROOT_FILES = 10


def modules() -> dict[str, Path]:
    found = {".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts): path for path in sorted(PACKAGE.rglob("*.py"))}
    return {name.removesuffix(".__init__"): path for name, path in found.items()}


def imports(module: str, path: Path, package: dict[str, Path]) -> Iterator[str]:
    """Modules of the package that a file imports: at its top, inside functions, and for type checkers only."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.partition(".")[0] == "torchdojo")
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parents = module.split(".") if path.name == "__init__.py" else module.split(".")[:-1]
                base = ".".join([*parents[: len(parents) - node.level + 1], *([base] if base else [])])
            if base.partition(".")[0] == "torchdojo":
                names = [f"{base}.{alias.name}" for alias in node.names]
                yield from (name if name in package else base for name in names)


@pytest.fixture(scope="module")
def arrows() -> dict[str, list[str]]:
    package = modules()
    found = {name: set(imports(name, path, package)) - {name} for name, path in package.items()}
    assert all(other in found[name] for name, other in EXCEPTIONS)
    return {name: sorted(other for other in others if (name, other) not in EXCEPTIONS) for name, others in found.items()}


def floor(module: str) -> int:
    parts = module.split(".")
    return FLOOR.get(parts[1] if len(parts) > 1 else parts[0], 0)


def circles(arrows: dict[str, list[str]]) -> list[list[str]]:
    """Strongly connected components of more than one module (Tarjan 1972)."""
    index: dict[str, int] = {}
    lowest: dict[str, int] = {}
    stack: list[str] = []
    result: list[list[str]] = []

    def visit(module: str) -> None:
        index[module] = lowest[module] = len(index)
        stack.append(module)
        for other in arrows.get(module, ()):
            if other not in index:
                visit(other)
                lowest[module] = min(lowest[module], lowest[other])
            elif other in stack:
                lowest[module] = min(lowest[module], index[other])
        if lowest[module] == index[module]:
            component = stack[stack.index(module) :]
            del stack[-len(component) :]
            if len(component) > 1:
                result.append(sorted(component))

    for module in arrows:
        if module not in index:
            visit(module)
    return result


def test_every_module_has_a_floor() -> None:
    homeless = [name for name in modules() if not floor(name)]
    assert not homeless, (
        f"no floor in FLOORS for {', '.join(homeless)}: add its folder to the floor plan, or move it into a folder there is"
    )


def test_imports_go_down(arrows: dict[str, list[str]]) -> None:
    upward = [f"{name} -> {other}" for name, others in arrows.items() for other in others if floor(other) > floor(name)]
    assert not upward, "imports that run up the floor plan:\n" + "\n".join(upward)


def test_packages_of_one_floor_do_not_know_each_other(arrows: dict[str, list[str]]) -> None:
    beside = [
        f"{name} -> {other}"
        for name, others in arrows.items()
        for other in others
        if floor(name) == floor(other) and "." in name and "." in other and name.split(".")[1] != other.split(".")[1]
    ]
    assert not beside, "imports between packages of one floor:\n" + "\n".join(beside)


def test_no_circle_between_modules(arrows: dict[str, list[str]]) -> None:
    found = circles(arrows)
    assert not found, "modules that import each other in a circle:\n" + "\n".join(", ".join(circle) for circle in found)


def test_walker_sees_every_kind_of_import(tmp_path: Path) -> None:
    path = tmp_path / "module.py"
    path.write_text(
        "from typing import TYPE_CHECKING\nimport torchdojo.a\nfrom torchdojo import b\nfrom torchdojo.c import thing\nfrom . import d\n"
        "from .e import thing\nfrom .. import f\nimport torch\nif TYPE_CHECKING:\n    from torchdojo.g import thing\n"
        "def function():\n    from torchdojo.h import thing\n"
    )
    package = {f"torchdojo.{name}": path for name in ("a", "b", "c", "folder.d", "folder.e", "f", "g", "h")}
    assert set(imports("torchdojo.folder.module", path, package)) == set(package)
    assert circles({"a": ["b"], "b": ["c", "d"], "c": ["a"], "d": []}) == [["a", "b", "c"]]


def test_files_are_small() -> None:
    files = [path for folder in ("torchdojo", "tests", "scripts") for path in sorted((REPOSITORY / folder).rglob("*"))]
    lines = {
        str(path.relative_to(REPOSITORY)): path.read_text().count("\n") for path in files if path.suffix in (".py", ".cpp", ".hpp", ".h")
    }
    long = [f"{path}: {count}" for path, count in lines.items() if count > MAXIMUM_LINES and path != INTERFACE]
    assert not long, f"files of more than {MAXIMUM_LINES} lines:\n" + "\n".join(long)


def length(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines of a function without its docstring."""
    assert function.end_lineno is not None
    lines = function.end_lineno - function.lineno + 1
    if ast.get_docstring(function, clean=False) is None:
        return lines
    docstring = function.body[0]
    assert docstring.end_lineno is not None
    return lines - (docstring.end_lineno - docstring.lineno + 1)


def test_functions_fit_a_screen() -> None:
    long, count = [], 0
    for path in (path for folder in ("torchdojo", "scripts") for path in sorted((REPOSITORY / folder).rglob("*.py"))):
        for node in ast.walk(ast.parse(path.read_text(), str(path))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                count += 1
                if length(node) > MAXIMUM_FUNCTION:
                    long.append(f"{path.relative_to(REPOSITORY)}, {node.name}: {length(node)}")
    assert count > 1000
    assert not long, f"functions of more than {MAXIMUM_FUNCTION} lines:\n" + "\n".join(long)


def test_root_of_the_package_is_small() -> None:
    files = sorted(path.name for path in PACKAGE.glob("*.py"))
    assert len(files) <= MAXIMUM_ROOT_FILES, f"{len(files)} Python files at the root of the package: {', '.join(files)}"


def test_import_loads_neither_applications_nor_heavy_packages() -> None:
    """Seconds are printed, not asserted; `scripts/bench_import.py` measures them."""
    code = (
        "import json, sys, time, torch; started, before = time.perf_counter(), set(sys.modules)\n"
        "import torchdojo; print(json.dumps([time.perf_counter() - started, sorted(set(sys.modules) - before)]))"
    )
    run = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, cwd=REPOSITORY)
    assert run.returncode == 0, run.stderr
    seconds, loaded = json.loads(run.stdout)
    print(f"import torchdojo: {seconds:.2f} s and {len(loaded)} modules beyond torch")
    unwanted = [*(f"torchdojo.{name}" for name in APPLICATIONS), *HEAVY]
    assert not [name for name in loaded if any(name == other or name.startswith(other + ".") for other in unwanted)]
