"""Pieces of MJCF files, and what reading one says."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torchdojo.io import load

Write = Callable[..., Path]
GEOM = '<geom type="box" size=".1 .2 .3" pos=".05 .02 .01"/>'
TETRAHEDRON = "v 0 0 0\nv 1 0 0\nv 0 1 0\nv 0 0 1\nf 1 3 2\nf 1 2 4\nf 1 4 3\nf 2 3 4\n"
FLOOR = '<geom name="floor" type="plane" size="1 1 1"/>'
X, Y, Z = '"1 0 0"', '"0 1 0"', '"0 0 1"'


def body(joints: str, content: str = GEOM, inside: str = "", name: str = "a", place: str = 'pos="1 2 3" euler=".1 .2 .3"') -> str:
    return f'<body name="{name}" {place}>{joints}{content}{inside}</body>'


def quiet(path: Path, **options: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return load(path, **options)


def notes(path: Path, **options: Any) -> str:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        load(path, **options)
    return "\n".join(str(w.message) for w in caught)


def free_body(geoms: str, place: str = 'pos="0 0 1" euler=".3 .2 .1"') -> str:
    return f'<body name="a" {place}><freejoint/>{geoms}</body>'


def hinge(name: str, axis: str, more: str = "") -> str:
    return f'<joint name="{name}" axis={axis} pos=".3 -.1 .2" {more}/>'


def slide(name: str, axis: str, more: str = "") -> str:
    return f'<joint name="{name}" type="slide" axis={axis} {more}/>'


TREE = body(hinge("h", Z), inside=body("", '<inertial mass="2" pos=".1 .2 .3" fullinertia=".2 .3 .4 .01 .02 .03"/>', name="b"))
