"""The public names and their signatures are those of tests/data/public_api.json.

Annotations are left out: they are for type checkers, which have their own check. After a change that is meant:
`python tests/test_public_api.py` writes the table anew.
"""

from __future__ import annotations

import enum
import inspect
import json
import re
import types
from pathlib import Path
from typing import Any

import torchdojo as td

TABLE = Path(__file__).parent / "data" / "public_api.json"


def signature(function: Any) -> str:
    try:
        declared = inspect.signature(function)
    except (TypeError, ValueError):
        return ""
    bare = [parameter.replace(annotation=inspect.Parameter.empty) for parameter in declared.parameters.values()]
    text = str(declared.replace(parameters=bare, return_annotation=inspect.Signature.empty))
    # A class or function as a default value: its name alone, wherever its module lies.
    return re.sub(r"<(?:class '|function )(?:\w+\.)*(\w+)[^>]*>", r"\1", text)


def public_namespaces() -> dict[str, Any]:
    """Every name of `td.__all__`, and of `__all__` of the modules among them."""
    names = {name: getattr(td, name) for name in td.__all__}
    for module, value in list(names.items()):
        if isinstance(value, types.ModuleType):
            names |= {f"{module}.{name}": getattr(value, name) for name in value.__all__}
    return names


def members(cls: type, bases: list[type]) -> dict[str, str]:
    """Methods, properties and members of an enumeration that a class of torchdojo adds to its public bases."""
    own = [base for base in cls.__mro__ if base.__module__.startswith("torchdojo")]
    result = {}
    for name in sorted({name for base in own for name in vars(base) if not name.startswith("_")}):
        value = inspect.getattr_static(cls, name)
        if any(inspect.getattr_static(base, name, None) is value for base in bases):
            continue
        if isinstance(value, cls) and issubclass(cls, enum.Enum):
            result[name] = repr(value.value)
        elif isinstance(value, property):
            result[name] = "property"
        elif isinstance(value, staticmethod | classmethod):
            result[name] = signature(value.__func__)
        elif callable(value):
            result[name] = signature(value)
    return result


def public_api() -> dict[str, str]:
    names = public_namespaces()
    short = {id(value): name for name, value in reversed(names.items())}
    result = {}
    for name, value in names.items():
        if isinstance(value, types.ModuleType):
            result[name] = "module"
        elif inspect.isclass(value):
            bases = [base for base in value.__mro__[1:] if id(base) in short]
            above = f" of {short[id(bases[0])]}" if bases else ""
            result[name] = ("enum" if issubclass(value, enum.Enum) else signature(value)) + above
            result |= {f"{name}.{member}": text for member, text in members(value, bases).items()}
        else:
            result[name] = signature(value) if callable(value) else type(value).__name__
    return result


def test_public_names_and_signatures() -> None:
    expected, present = json.loads(TABLE.read_text()), public_api()
    changes = [f"removed: {name}{expected[name]}" for name in expected if name not in present]
    changes += [f"added: {name}{present[name]}" for name in present if name not in expected]
    changes += [f"changed: {name}{text}, now {present[name]}" for name, text in expected.items() if present.get(name, text) != text]
    assert not changes, "the public API differs from tests/data/public_api.json:\n" + "\n".join(changes)


def test_the_version_is_that_of_pyproject() -> None:
    text = (Path(__file__).resolve().parents[1] / "pyproject.toml").read_text()
    assert re.findall(r'^version = "(.*)"', text, re.MULTILINE) == [td.__version__]


if __name__ == "__main__":
    TABLE.write_text(json.dumps(public_api(), indent=0, sort_keys=True) + "\n")
