"""The table of built-in mechanisms: the decorator `built_in` adds a row, `make` and `initial_state` read it."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar, cast

import torch
from torch import Tensor

from torchdojo.elements.actuators import Actuator, actuate
from torchdojo.mechanism import Mechanism
from torchdojo.posing.poses import Keyframe

__all__ = ["MODELS", "add_motors", "built_in", "initial_state", "make", "names"]

Build = TypeVar("Build", bound=Callable[..., Mechanism])


class Model(NamedTuple):
    """build(**options) -> Mechanism; start: keywords of `Mechanism.initial_state` for a state worth simulating from."""

    build: Callable[..., Mechanism]
    start: Mapping[str, Mapping[str, Any]]


MODELS: dict[str, Model] = {}


def built_in(**start: Mapping[str, Any]) -> Callable[[Build], Build]:
    """Make the decorated function a built-in mechanism of its own name, whose `poses["home"]` is the state to start from.

    Args:
        start: keywords of `Mechanism.initial_state` for a state worth simulating from: joint={"q": ...}, body={"position": ...}.
    """

    def register(build: Build) -> Build:
        @functools.wraps(build)
        def with_home(*arguments: Any, **options: Any) -> Mechanism:
            mech = build(*arguments, **options)
            mech.poses.setdefault("home", Keyframe(start))
            return mech

        MODELS[build.__name__] = Model(with_home, start)
        return cast(Build, with_home)

    return register


def add_motors(mech: Mechanism, labels: Mapping[str, Sequence[str]] | None = None) -> Mechanism:
    """Give every coordinate of an actuated joint with an effort limit a motor: a control of ±1 is plus or minus that limit.

    `td.actuate` replaces these motors.

    Args:
        labels: names of the motors of a joint; default: the joint's name, with the number of the coordinate where it has several.
    """
    motors: dict[str, Actuator] = {}
    for name, joint in mech.joints.items():
        limit = getattr(joint, "effort_limit", None)
        if limit is None or name not in mech.input_layout:
            continue
        limits = torch.as_tensor(limit, dtype=torch.float64).reshape(-1)
        motor_names = (labels or {}).get(name) or ([name] if len(limits) == 1 else [f"{name}_{i}" for i in range(len(limits))])
        for i, label in enumerate(motor_names):
            motors[label] = Actuator.motor(name, gear=float(limits[i]), ctrlrange=(-1.0, 1.0), coordinate=i)
    actuate(mech, motors).replaceable = True
    return mech


def names() -> list[str]:
    """Names of the built-in mechanisms."""
    return list(MODELS)


def make(name: str, **options: Any) -> Mechanism:
    """Build a mechanism by name; `options` are the keywords of `td.models.<name>`.

    Raises:
        ValueError: no mechanism of this name, or an option that it does not have.
    """
    build = _find(name).build
    allowed = list(inspect.signature(build).parameters)
    unknown = [option for option in options if option not in allowed]
    if unknown:
        raise ValueError(f"{name!r} has no option {', '.join(map(repr, unknown))}; its options: {', '.join(allowed)}")
    return build(**options)


def initial_state(name: str, mechanism: Mechanism, batch_shape: Sequence[int] = ()) -> Tensor:
    """A state worth simulating from, (*batch_shape, 13 nb): tilted pendulums, a thrown box, a standing robot.

    Args:
        name: of the model. mechanism: `make(name, ...)` with any options.

    Raises:
        ValueError: no mechanism of this name.
    """
    start: dict[str, Any] = dict(_find(name).start)
    return mechanism.initial_state(tuple(batch_shape), **start)


def _find(name: str) -> Model:
    if name not in MODELS:
        raise ValueError(f"no built-in mechanism {name!r}; there are: {', '.join(MODELS)}")
    return MODELS[name]
