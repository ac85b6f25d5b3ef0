"""A user's object, reached as ``module:function``.

The function builds a mechanism with unknowns,

    def ball(timestep, parameters=("friction",), *, start=None, kappa=1e-6, **laws) -> ParametricMechanism

Its arguments are the time step [s], the names of the unknowns, values by name, the central-path parameter, and further keywords. A fit
starts at the values by name; unknowns that are not fitted keep them. A description gives the further keywords as `laws`. Without `start`
and `kappa`, the function builds the nominal object. The module may also have

- ``WIDTH``: the length [m] that position errors are compared with;
- ``check_recordings(recordings, label)``: raises `DataError` for recordings of something else; `label` names them in the message.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from torchdojo.identification.parameters import ParametricMechanism
from torchdojo.identification.recordings import Recordings

__all__ = ["NAMES_OF_BEFORE", "UserObject", "find_object", "full_name"]

#: Short names, as in descriptions and fit folders from versions without module names.
NAMES_OF_BEFORE = {
    "cube": "torchdojo.identification.objects.cube:cube_model",
    "elbow": "torchdojo.identification.objects.elbow:elbow_model",
}


class UserObject(NamedTuple):
    """The description of an object by its module, whose documentation explains the fields."""

    name: str
    function: Callable[..., ParametricMechanism]
    width: float | None
    check_recordings: Callable[[Recordings, str], None] | None

    def build(self, timestep: float, parameters: Sequence[str], **keywords: Any) -> ParametricMechanism:
        """Call the function.

        Raises:
            TypeError: it returns something else.
        """
        model = self.function(timestep, tuple(parameters), **keywords)
        if not isinstance(model, ParametricMechanism):
            raise TypeError(f"object {self.name!r}: its function returns {type(model).__name__}; allowed: a ParametricMechanism")
        return model


def full_name(name: str) -> str:
    """``module:function``, also of a name of before."""
    return NAMES_OF_BEFORE.get(name, name)


def find_object(name: str) -> UserObject:
    """Import an object.

    Raises:
        ValueError: no such module or function, or a function with other arguments.
    """
    path, colon, attribute = full_name(name).partition(":")
    if not colon:
        raise ValueError(f"no object {name!r}; allowed: module:function, as in {NAMES_OF_BEFORE['cube']}")
    try:
        module = importlib.import_module(path)
    except ImportError as error:
        raise ValueError(f"object {name!r}: {error}; allowed: module:function, of a module that Python finds (PYTHONPATH)") from error
    function = getattr(module, attribute, None)
    if not callable(function):
        functions = [key for key, value in vars(module).items() if inspect.isfunction(value) and value.__module__ == module.__name__]
        raise ValueError(f"object {name!r}: {path} has no function {attribute!r}; its functions: {', '.join(functions) or 'none'}")
    try:
        inspect.signature(function).bind(1e-2, (), start={}, kappa=1e-6)
    except TypeError as error:
        raise ValueError(f"object {name!r}: {error}; allowed: a function (timestep, parameters, *, start, kappa, **laws)") from error
    return UserObject(name, function, getattr(module, "WIDTH", None), getattr(module, "check_recordings", None))
