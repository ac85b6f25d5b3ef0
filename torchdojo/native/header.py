"""The C++ header of `tables.py` and `calls.py`. To read it: `python -c "from torchdojo.native import header; print(header.text())"`.

`loader.py` compiles the kernel with this header, so the text is part of the key of the cached library. The header exists in the build
folder only.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterator

import numpy as np

from torchdojo.native.calls import ENTRIES, STRUCTS
from torchdojo.native.tables import CONSTANTS, ENUMS, LAYOUTS, ROWS, TABLES, place, size

__all__ = ["NAME", "layout", "text"]

NAME = "torchdojo_tables.hpp"


@functools.cache
def text() -> str:
    """The text of the header."""
    return "\n".join(
        [
            "// Written by torchdojo/native/header.py from tables.py and calls.py.",
            "#pragma once",
            "#include <cstdint>",
            "#include <cstring>",
            *_body(),
            "namespace torchdojo {",
            f"constexpr uint64_t table_layout = {layout()}u;",
            "}  // namespace torchdojo",
            "",
        ]
    )


@functools.cache
def layout() -> int:
    """A number that changes with every declaration. A kernel creates a mechanism only if it is compiled with the same number."""
    return int.from_bytes(hashlib.sha256("\n".join(_body()).encode()).digest()[:8], "little")


def _body() -> list[str]:
    lines = ["namespace torchdojo {"]
    for place_, constants in CONSTANTS.items():
        lines += _within(place_, [_constant(name, value) for name, value in constants.items()])
    for place_, layouts in LAYOUTS.items():
        lines += _within(place_, [line for end, dtype in layouts.items() for line in _places(end, dtype)])
    nested: dict[str, list[str]] = {}
    for name, (kind, members) in ENUMS.items():
        scope, _, unscoped = name.rpartition("::")
        line = f"enum {unscoped} : {kind} {{ {', '.join(f'{member} = {value}' for member, value in members.items())} }};"
        if scope.startswith("rows::"):
            nested.setdefault(scope.removeprefix("rows::"), []).append(line)
        else:
            lines += _within(scope, [line])
    lines += _within("rows", [line for name, dtype in ROWS.items() for line in _struct(name, dtype, nested.get(name, []))])
    lines += _length()
    for name, fields in STRUCTS.items():
        lines += [f"struct {name} {{", *(f"    {_declare(kind, field)};" for field, kind in fields.items()), "};"]
    prototypes = [f"{_declare(result, name)}({', '.join(arguments)});" for name, (result, arguments) in ENTRIES.items()]
    return [*lines, 'extern "C" {', *prototypes, "}", "}  // namespace torchdojo"]


def _within(namespace: str, lines: list[str]) -> list[str]:
    return [f"namespace {namespace} {{", *lines, f"}}  // namespace {namespace}"] if namespace else lines


def _declare(kind: str, name: str) -> str:
    return f"{kind}{name}" if kind.endswith("*") else f"{kind} {name}"


def _constant(name: str, value: float | tuple[float, ...]) -> str:
    first = value[0] if isinstance(value, tuple) else value
    kind = "int" if isinstance(first, int) else "double"
    if isinstance(value, tuple):
        return f"constexpr {kind} {name}[] = {{{', '.join(map(repr, value))}}};"
    return f"constexpr {kind} {name} = {value!r};"


def _places(end: str, dtype: np.dtype) -> Iterator[str]:
    for name in dtype.names or ():
        yield f"constexpr int {name} = {place(dtype, name)};"
    yield f"constexpr int {end} = {size(dtype)};"


def _struct(name: str, dtype: np.dtype, enums: list[str]) -> list[str]:
    names = {id(row): other for other, row in ROWS.items()}
    fields = []
    for field, (kind, *_) in (dtype.fields or {}).items():
        count = f"[{kind.shape[0]}]" if kind.shape else ""
        fields.append(f"    {names.get(id(kind), 'int32_t')} {field}{count};")
    return [f"struct {name} {{", *(f"    {line}" for line in enums), *fields, "};", f"static_assert(sizeof({name}) == {dtype.itemsize});"]


def _length() -> list[str]:
    """A function that computes the length of a mechanism's tables from their head, in int32."""
    head = ROWS["Head"].itemsize // 4
    terms = [f"    expected += int64_t(head.{count}) * {dtype.itemsize // 4};" for dtype, count in TABLES.values()]
    return [
        "inline int64_t table_length(const int32_t *table, int64_t given) {",
        f"    int64_t expected = {head};",
        "    if (given < expected) return expected;",
        "    rows::Head head;",
        "    std::memcpy(&head, table, sizeof(head));",
        *terms,
        "    return expected;",
        "}",
    ]
