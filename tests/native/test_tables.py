"""Tables that Python and kernel share: the generated header repeats `tables.py` and `calls.py`; other tables are refused."""

from __future__ import annotations

import ctypes
import math
import re
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import torchdojo as td
from torchdojo.native import calls, header, loader, program, tables, toolchain
from torchdojo.native.lowering import lower
from torchdojo.native.packing import pieces_of
from torchdojo.native.toolchain import NativeUnavailable
from torchdojo.solver.options import GradientMode, Status

ROWS = tables.ROWS.items()
NATIVE = pytest.mark.skipif(not loader.available(), reason="no compiler for the native kernel")
STRUCTURES: dict[str, Any] = {
    "TdOptions": calls.Options,
    "TdLaw": calls.Law,
    "TdDrives": calls.Drives,
    "TdFeedback": calls.Feedback,
    "TdRollout": calls.Rollout,
    "TdImpacts": calls.Impacts,
    "TdGradient": calls.Gradient,
    "TdMap": calls.Map,
    "TdSensors": calls.Sensors,
    "TdNear": calls.Near,
    "TdNearSteps": calls.NearSteps,
}


def test_every_constant_and_place_is_in_the_header() -> None:
    declared = re.findall(r"^constexpr (\w+) (\w+)(?:\[\])? = (.*);$", header.text(), re.MULTILINE)
    values = [(name, kind, value) for kind, name, value in declared]
    for constants in tables.CONSTANTS.values():
        for name, value in constants.items():
            many = value if isinstance(value, tuple) else (value,)
            text = "{" + ", ".join(map(repr, many)) + "}" if isinstance(value, tuple) else repr(value)
            assert (name, "int" if isinstance(many[0], int) else "double", text) in values
            assert all(math.isfinite(v) for v in many)
    for layouts in tables.LAYOUTS.values():
        for end, layout in layouts.items():
            assert (end, "int", str(tables.size(layout))) in values
            assert all((name, "int", str(tables.place(layout, name))) in values for name in layout.names or ())


def test_enums_have_the_values_of_python() -> None:
    own = {"crooked_quaternion": 3, "too_fast": 4}
    assert tables.ENUMS["Status"][1] == {status.name.lower(): status.value for status in Status} | own
    assert tables.ENUMS["GradientMode"][1] == {mode.value: tables.GRADIENT_MODES[mode] for mode in GradientMode}
    for _, (_, members) in tables.ENUMS.items():
        assert len(set(members.values())) == len(members)
        assert f"{{ {', '.join(f'{name} = {value}' for name, value in members.items())} }}" in header.text()


def test_header_changes_with_every_declaration(monkeypatch: pytest.MonkeyPatch) -> None:
    layout, lines = header.layout(), header._body()
    monkeypatch.setitem(tables.CONSTANTS["constant"], "tie", 2e-6)
    assert header._body() != lines
    header.layout.cache_clear()
    assert header.layout() != layout
    header.layout.cache_clear()


@NATIVE
def test_sizes_and_places_are_those_of_the_compiler(tmp_path: Path) -> None:
    """A program that prints sizeof and offsetof of everything in the header, against numpy and ctypes."""
    rows = {f"rows::{name}": ({f: place for f, (_, place, *_) in (dtype.fields or {}).items()}, dtype.itemsize) for name, dtype in ROWS}
    structs = {name: ({f: getattr(kind, f).offset for f in calls.STRUCTS[name]}, ctypes.sizeof(kind)) for name, kind in STRUCTURES.items()}
    assert STRUCTURES.keys() == calls.STRUCTS.keys()
    expected, prints = [], []
    for name, (fields, size) in (rows | structs).items():
        expected += [*fields.values(), size]
        prints += [f"offsetof({name}, {field})" for field in fields] + [f"sizeof({name})"]
    source, binary = tmp_path / "sizes.cpp", tmp_path / "sizes"
    (tmp_path / header.NAME).write_text(header.text())
    lines = "".join(f'std::printf("%zu\\n", size_t({text}));' for text in prints)
    source.write_text(
        f'#include <cstddef>\n#include <cstdio>\n#include "{header.NAME}"\nusing namespace torchdojo;\nint main() {{{lines}}}\n'
    )
    compiler, flags = toolchain.find_compiler()
    subprocess.run([compiler, *flags, "-std=c++17", str(source), "-o", str(binary)], check=True)
    assert [int(line) for line in subprocess.run([binary], capture_output=True, text=True, check=True).stdout.split()] == expected


def test_rows_are_built_by_name() -> None:
    assert tables.row(tables.FILL, count=2, offset=1) == (1, 2)
    with pytest.raises(TypeError, match=r"fields \['count'\] of a row that has \['count', 'offset'\]"):
        tables.row(tables.FILL, count=2)
    with pytest.raises(TypeError, match="'size'"):
        tables.row(tables.FILL, count=2, offset=1, size=3)
    with pytest.raises(AttributeError, match="kapa"):
        calls.Options(kapa=1.0)


def test_places_follow_each_other() -> None:
    layout = tables.numbers(tables.CONTACT_PARAMETERS, restitution=1, shape_a=tables.SHAPES["box"])
    assert (tables.place(layout, "friction"), tables.place(layout, "restitution"), tables.place(layout, "shape_a")) == (14, 15, 16)
    assert tables.size(layout) == 27


def quadruped() -> tuple[np.ndarray, np.ndarray]:
    """Its tables and schedule."""
    system = td.models.quadruped().backends.system
    pieces, size = pieces_of(system)
    acting = [(True, True) for piece in pieces if isinstance(piece.group.template, td.StandardJoint)]
    table, schedule = lower(system, pieces, [], True, acting, size)
    return table, schedule.table


@NATIVE
def test_tables_say_how_long_they_are() -> None:
    table, schedule = quadruped()
    head = table[: tables.HEAD.itemsize // 4].view(tables.HEAD)[0]
    joints, contacts = int(head["num_joints"]), int(head["num_contacts"])
    assert (int(head["num_bodies"]), joints, contacts) == (13, 13, 12)
    start = (tables.HEAD.itemsize + tables.BODY.itemsize * 13) // 4
    rows = table[start : start + joints * tables.JOINT.itemsize // 4].view(tables.JOINT)
    assert rows["child"].tolist() == sorted(rows["child"].tolist()) and set(rows["has_spring"]) == {1}
    handle = program.create(table, schedule)
    program.kernel_library().td_mechanism_destroy(handle)


@NATIVE
def test_other_layouts_and_lengths_are_refused() -> None:
    table, schedule = quadruped()
    with pytest.raises(
        NativeUnavailable, match=f"compiled with the layout {header.layout():016x} of its tables, and this process has 0{'0' * 14}7"
    ):
        program.create(table, schedule, layout=7)
    with pytest.raises(NativeUnavailable, match=f"refuses tables of {table.size - 1} numbers where its head says {table.size};"):
        program.create(table[:-1].copy(), schedule)
    with pytest.raises(NativeUnavailable, match="refuses tables of 0 numbers"):
        program.create(table[:0].copy(), schedule)
    longer = np.append(schedule, np.int32(0))
    with pytest.raises(NativeUnavailable, match=f"tables of .* and schedule of {longer.size} numbers where its head says {schedule.size};"):
        program.create(np.append(table, np.int32(0)), longer)
    with pytest.raises(NativeUnavailable, match="refuses schedule of 5 numbers where its head says 6;"):
        program.create(table, schedule[:5].copy())


@NATIVE
def test_types_of_functions_come_from_the_declarations() -> None:
    kernel = program.kernel_library()
    for name, (result, arguments) in calls.ENTRIES.items():
        function = getattr(kernel, name)
        assert len(function.argtypes) == len(arguments) and (function.restype is None) == (result == "void")
        assert f"{name}({', '.join(arguments)});" in header.text()


@NATIVE
def test_gradient_modes_reach_the_kernel() -> None:
    """A sphere that lies on the ground and is pulled up: each mode has another gradient, the same in kernel and reference."""
    mech = td.models.sphere()
    start = td.models.initial_state("sphere", mech)
    start[2], start[3:6] = 0.5, 0.0
    gradients = []
    for mode in (GradientMode.CENTRAL_PATH, GradientMode.EXACT, GradientMode.COMPLEMENTARITY_AWARE):
        for backend in ("native", "reference"):
            mech.options = td.SolverOptions(backend=backend, gradient_mode=mode, kappa=1e-3)
            z = start.clone().requires_grad_()
            (-mech.step(z).z[2]).backward()
            gradients.append(z.grad)
    for native, reference in zip(gradients[::2], gradients[1::2], strict=True):
        torch.testing.assert_close(native, reference, rtol=1e-6, atol=1e-8)
    assert not torch.allclose(gradients[0], gradients[2], atol=1e-3) and not torch.allclose(gradients[2], gradients[4], atol=1e-3)
