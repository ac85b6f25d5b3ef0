"""The site's own code: links are checked, docstrings become markup, pictures are drawn. `scripts/docs.sh` builds the site."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import NamedTuple
from xml.etree import ElementTree

import pytest

DOCS = Path(__file__).resolve().parents[1] / "configs" / "docs"


def module(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"torchdojo_site_{name}", DOCS / f"{name}.py")
    assert spec is not None and spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = loaded
    spec.loader.exec_module(loaded)
    return loaded


def test_dead_links_are_named(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "index.html").write_text('<h1 id="top">t</h1><a href="a/b.html#here">1</a><a href="#top">2</a><a href="https://x.y">3</a>')
    (tmp_path / "a" / "b.html").write_text(
        '<p id="here"></p><a href="../index.html#gone">1</a><img src="no.svg"><a href="../../out">2</a><a href=".">3</a>'
    )
    dead = module("check_links").dead_links(tmp_path)
    assert dead == [f"a/b.html: {target}" for target in (".", "../../out", "../index.html#gone", "no.svg")]


class Result(NamedTuple):
    gap: float
    impulse: float


def example(z: object, u: object, *, kappa: float = 1e-6) -> None:
    """The docstring is given below."""


@pytest.mark.parametrize(
    ("obj", "lines", "wanted"),
    [
        (example, ["|ω|² of *all* `bodies`(z)"], ["\\|ω\\|² of \\*all\\* ``bodies``\\ (z)"]),
        (
            example,
            ["Args:", "    z: state [m]. u, kappa: inputs", "        of a step. z: again."],
            ["Args:", "    z: state [m].", "    u, kappa: inputs", "        of a step.", "    z: again."],
        ),
        (example, ["Raises:", "    ValueError: one. TypeError: two."], ["Raises:", "    ValueError: one.", "    TypeError: two."]),
        (example, ["The sum is", "", "    a |b| = 1", "", "so."], ["The sum is", "", "::", "", "    a |b| = 1", "", "so."]),
        (
            Result,
            ["A result.", "", "gap: of two", "    surfaces [m]. impulse: [N·s]."],
            ["A result.", "", "- ``gap``: of two", "  surfaces [m].", "- ``impulse``: [N·s]."],
        ),
    ],
    ids=["signs", "arguments", "errors", "equation", "fields"],
)
def test_docstrings_become_markup(obj: object, lines: list[str], wanted: list[str]) -> None:
    pytest.importorskip("sphinx", reason="extra docs")
    module("site_extension").tolerate_docstring(None, "function", "example", obj, None, lines)
    assert lines == wanted


def test_pictures_are_small_and_well_formed() -> None:
    pictures = sorted((DOCS / "pictures").glob("*.svg"))
    assert len(pictures) >= 6
    for picture in pictures:
        assert ElementTree.parse(picture).getroot().tag.endswith("svg") and picture.stat().st_size <= 50_000


def test_pictures_of_the_gallery_move() -> None:
    image = pytest.importorskip("PIL.Image", reason="extra view")
    entries = module("gallery").entries()
    assert len(entries) == (DOCS / "gallery.md").read_text().count("```bash") >= 12
    for name, (picture, commands) in entries.items():
        assert f"{name}.webp" in commands and picture.stat().st_size <= 600_000 and image.open(picture).n_frames >= 12, name


@pytest.mark.slow
def test_pictures_are_drawn_by_steps(tmp_path: Path) -> None:
    files = module("pictures").draw(tmp_path)
    assert {file.name for file in files} == {picture.name for picture in (DOCS / "pictures").glob("*.svg")}
    for file in files:  # curves agree with those of the repository to what a picture shows, so their sizes do
        assert abs(file.stat().st_size - (DOCS / "pictures" / file.name).stat().st_size) <= 200
