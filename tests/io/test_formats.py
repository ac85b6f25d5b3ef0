"""The formats share one description of a robot and know nothing of each other."""

import ast
from pathlib import Path

import pytest

from torchdojo import io

FOLDER = Path(io.__file__).parent


ALLOWED = {"report.py": (), "robot.py": (), "meshes.py": (), "pairs.py": (), "urdf/*.py": ("urdf",), "mjcf/*.py": ("mjcf",)}


@pytest.mark.parametrize(("path", "formats"), ALLOWED.items())
def test_no_reader_imports_another(path, formats):
    files = list(FOLDER.glob(path))
    assert files
    for file in files:
        modules = {node.module for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.ImportFrom) and node.module}
        inside = {module.split(".")[2] for module in modules if module.startswith("torchdojo.io.")}
        assert inside <= {"robot", "report", "meshes", "pairs", "pieces", "starts", "coupled", "xmlfile", *formats}, file
