"""The named parts of a mechanism: dictionaries whose edits lay out the mechanism anew, or raise and change nothing.

A mechanism computes much from its parts when it is built: places of impulses and inputs, the spanning tree, tables of the kernel. An edit
of a dictionary that stayed unseen there would act in some functions and not in others. So every edit goes through `Owner._edit`.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from torch import nn

from torchdojo.parameters import Modules

__all__ = ["Owner", "Parts", "checked_parts"]

_MISSING = object()


class Owner(Protocol):
    """A mechanism, which checks and takes the modules that one of its dictionaries is to hold."""

    def _edit(self, kind: str, modules: Modules) -> None: ...


class Parts(nn.ModuleDict):
    """Bodies, joints, contacts or couplings of a mechanism by name: an `nn.ModuleDict` whose edits go to the mechanism.

    Assignment, `del`, `pop`, `update` and `clear` are checked as a mechanism is checked when it is built, and the mechanism is then laid
    out anew. An edit that is refused changes nothing. `update` is one edit, however many modules it has.
    """

    def __init__(self, modules: Mapping[str, nn.Module]) -> None:
        super().__init__(dict(modules))
        self._belongs_to(None, "")

    def _belongs_to(self, owner: Owner | None, kind: str) -> None:
        """Send edits to `owner`, under the name `kind`. A copy belongs to nobody until the copy of the mechanism claims it."""
        self.__dict__["_owner"] = None if owner is None else (weakref.ref(owner), kind)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_owner": None}

    def _edit(self, modules: Modules) -> None:
        reference, kind = self.__dict__.get("_owner") or (None, "")
        owner = None if reference is None else reference()
        if owner is None:
            self._hold(dict(modules))
        else:
            owner._edit(kind, modules)

    def _hold(self, modules: Mapping[str, nn.Module]) -> None:
        """Hold these modules in this order, unchecked."""
        modules = dict(modules)
        self._modules.clear()
        self._modules.update(modules)

    def add_module(self, name: str, module: nn.Module | None) -> None:
        self._edit({**self._modules, name: module})

    def __setattr__(self, name: str, value: Any) -> None:
        if isinstance(value, nn.Module) or name in self._modules:
            self.add_module(name, value)
        else:
            super().__setattr__(name, value)

    def __delitem__(self, name: str) -> None:
        if name not in self._modules:
            raise KeyError(f"{name!r}; there are {list(self._modules)}")
        self._edit({key: module for key, module in self._modules.items() if key != name})

    def __delattr__(self, name: str) -> None:
        if name in self._modules:
            del self[name]
        else:
            super().__delattr__(name)

    def pop(self, key: str, default: Any = _MISSING) -> Any:
        """Remove a module, and return it; `default`, where it is given, if there is none."""
        if key not in self._modules and default is not _MISSING:
            return default
        module = self._modules.get(key)
        del self[key]
        return module

    def clear(self) -> None:
        """Remove all modules."""
        self._edit({})

    def update(self, modules: Mapping[str, nn.Module] | Iterable[tuple[str, nn.Module]]) -> None:
        """Add or replace several modules in one edit."""
        pairs = list(modules.items() if isinstance(modules, Mapping | nn.ModuleDict) else modules)
        names = [name for name, _ in pairs]
        if len(set(names)) < len(names):
            raise ValueError(f"update: got the names {names}, one of them twice; names must differ")
        self._edit({**self._modules, **dict(pairs)})


def checked_parts(kind: str, given: Modules, cls: type[nn.Module]) -> dict[str, Any]:
    """Modules by name, in the given order.

    Raises:
        ValueError: doubled names, or names that cannot be module names. TypeError: values of the wrong type.
    """
    result: dict[str, nn.Module] = {}
    seen: set[int] = set()
    for name, module in given.items() if isinstance(given, Mapping | nn.ModuleDict) else given:
        if not isinstance(module, cls):
            raise TypeError(f"{kind}[{name!r}]: got {type(module).__name__}; allowed: {cls.__name__}")
        if name in result:
            raise ValueError(f"{kind}: the name {name!r} is given twice; names must differ")
        if not isinstance(name, str) or not name or "." in name or name == "world" or hasattr(_EMPTY, name):
            raise ValueError(
                f"{kind}: {name!r} cannot be a name; allowed: non-empty strings without dots, not 'world', not a method of nn.ModuleDict"
            )
        if id(module) in seen:
            raise ValueError(f"{kind}: {name!r} is the same object as another entry; make one module for each")
        result[name] = module
        seen.add(id(module))
    return result


_EMPTY = Parts({})
