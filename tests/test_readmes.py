"""Every README, and every page of the site: its Python blocks run as written, its outputs are what they print, what it names exists.

Each README gets a process of its own, fresh but for the import of torchdojo, with torch's default dtype. Its blocks stand alone, each in a
namespace of its own, unless the README has the line ``<!-- blocks: in order -->``: then they share one. A ``text`` block right after a
``python`` block is its output, to the letter.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


def pages() -> list[Path]:
    found = list((ROOT / "configs/docs").rglob("*.md"))
    for folder, folders, files in os.walk(ROOT):  # the environment has far more files than the repository, so it is not entered
        folders[:] = [name for name in folders if not name.startswith(".") and name not in ("outputs", "build", "dist")]
        found += [Path(folder, "README.md")] * ("README.md" in files)
    return sorted(found)


READMES = pages()
IN_ORDER = "<!-- blocks: in order -->"
PYTHON = re.compile(r"^```python\n(.*?)^```\n(?:\n*```text\n(.*?)^```$)?", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"^```(?!python)\w*\n.*?^```$|`[^`\n]+`", re.MULTILINE | re.DOTALL)
FILE = re.compile(r"(?:[\w-]+/)+[\w.-]+\.(?:py|hpp|cpp|sh|yaml|ipynb|json)\b")
ROW = re.compile(r"^\| `([\w/]+\.\w+)` \| ((?:`\w+`(?:, )?)+) \|", re.MULTILINE)  # | `file` | `name`, `name` | ...
LINK = re.compile(r"\]\(([^)#:]+)\)")

# Forks a process for each README, [path, in order?, [[first line, source] ...]], and prints what each block printed, or its traceback.
# The processes share what takes longer than most blocks: the import, the kernel, and what torch imports with its first optimizer.
RUNNER = """
import contextlib, io, json, os, sys, traceback, warnings
import torch, torchdojo
from torchdojo.native import loader

loader.library()
torch.optim.SGD([torch.zeros(1, requires_grad=True)])


def run(readme, in_order, blocks):
    shared = {"__name__": "__main__"}
    for line, source in blocks:
        output = io.StringIO()
        try:
            with contextlib.redirect_stdout(output):
                exec(compile("\\n" * line + source, readme, "exec"), shared if in_order else {"__name__": "__main__"})
            assert torch.get_default_dtype() is torch.float32, "the block changes torch's default dtype"
            yield [output.getvalue(), None]
        except BaseException:
            yield [output.getvalue(), traceback.format_exc()]


results = []
for readme in json.load(sys.stdin):
    source, sink = os.pipe()
    if os.fork() == 0:
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", "`torch.jit.script` is deprecated")  # of PyTorch's own forward derivatives
        with open(sink, "w") as file:
            json.dump(list(run(*readme)), file)
        os._exit(0)
    os.close(sink)
    with open(source) as file:
        results.append(json.loads(file.read() or "[]"))
    os.wait()
print(json.dumps(results))
"""


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def test_blocks_run_and_print_what_they_say() -> None:
    found = {readme: list(PYTHON.finditer(readme.read_text())) for readme in READMES}
    work = []
    for readme, matches in found.items():
        text = readme.read_text()
        assert len(matches) == text.count("```python\n"), f"{name(readme)}: a python block is not closed"
        work.append([name(readme), IN_ORDER in text, [(text[: match.start(1)].count("\n"), match[1]) for match in matches]])
    process = subprocess.run(
        [sys.executable, "-c", RUNNER],
        input=json.dumps(work),
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        check=False,
    )
    assert process.returncode == 0, process.stderr
    wrong = []
    for (readme, _, blocks), matches, results in zip(work, found.values(), json.loads(process.stdout.splitlines()[-1]), strict=True):
        if len(results) != len(blocks):
            wrong.append(f"{readme}: its process ended before it had run its blocks: {process.stderr}")
        for match, (line, _), (printed, error) in zip(matches, blocks, results, strict=False):
            if error is not None:
                wrong.append(f"{readme}:{line}: {error}")
            elif match[2] is not None and printed.rstrip() != match[2].rstrip():
                wrong.append(f"{readme}:{line}: the block prints {printed!r}")
    assert not wrong, "\n".join(wrong)


def find(readme: Path, file: str) -> Path | None:
    """A file that a README names: from the root, from the package, or from the README's folder."""
    return next((base / file for base in (ROOT, ROOT / "torchdojo", readme.parent) if (base / file).exists()), None)


@pytest.mark.parametrize("readme", READMES, ids=name)
def test_what_a_readme_names_exists(readme: Path) -> None:
    text = readme.read_text()
    missing = [link for link in LINK.findall(text) if not (readme.parent / link).exists()]
    files = [file for code in CODE.findall(text) for file in FILE.findall(code)]
    missing += [file for file in files if file.split("/")[0] not in ("outputs", "shared") and find(readme, file) is None]
    for file, names in ROW.findall(text):
        path = find(readme, file)
        words = re.findall(r"\w+", names)
        missing += [file] if path is None else [f"{word} in {file}" for word in words if word not in path.read_text()]
    assert not missing, f"{name(readme)} names what does not exist: {missing}"


def test_the_first_page_is_short() -> None:
    text = (ROOT / "README.md").read_bytes()
    assert len(text) <= 6500 and text.count(b"\n") <= 115
