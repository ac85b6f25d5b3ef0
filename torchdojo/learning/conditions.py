"""Conditions under which a policy is tried: friction, masses, armature, friction of joints, kicks, delay; the same in two simulators.

Each number is one for all robots, or a range from which every robot gets its own. `Conditions.options` are keywords for an environment,
kicks and delay. `Conditions.apply` puts the rest on a built environment, and `Conditions.change` on a model of MuJoCo's.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from torchdojo.elements.bodies import Body
from torchdojo.elements.joints import StandardJoint
from torchdojo.envs import Env
from torchdojo.envs.changes import add_to_joints
from torchdojo.envs.disturbances import SensorNoise
from torchdojo.learning.motors import actuators

__all__ = ["Conditions"]

EVERY = 3.0  # time between kicks [s]
RANGES = ("friction", "mass", "armature", "joint_friction")
UNITS = {"friction": "", "mass": " times", "armature": " kg m^2", "joint_friction": " N m", "kicks": " m/s", "delay": " s"}
Range = float | tuple[float, float]


@dataclass(frozen=True)
class Conditions:
    """Differences from the environment; None: no difference.

    friction: coefficient of all contacts with the ground, in MuJoCo of all contacts. mass: factor of masses and inertias. armature: of the
    driven joints [kg·m², kg]. joint_friction: Coulomb friction of the driven joints [N·m, N]. kicks: speed of pushes, every 3 s [m/s].
    delay: of what the policy sees [s], a whole number of control steps. seed: of the numbers drawn from ranges.

    Raises:
        ValueError: negative numbers, masses and ranges that are none.
    """

    friction: Range | None = None
    mass: Range | None = None
    armature: Range | None = None
    joint_friction: Range | None = None
    kicks: float | None = None
    delay: float = 0.0
    seed: int = 0
    drawn: dict[str, Tensor] = field(default_factory=dict, init=False, compare=False)

    def __post_init__(self) -> None:
        for name in RANGES:
            value = getattr(self, name)
            if value is None:
                continue
            low, high = value if isinstance(value, tuple) else (value, value)
            least = 0.0 if name != "mass" else 1e-3
            if not (least <= low <= high and math.isfinite(high)):
                raise ValueError(f"{name}: got {value}; allowed: a finite number of {least:g} or more, or a range of two, LOW <= HIGH")
        for name in ("kicks", "delay"):
            value = getattr(self, name)
            if value is not None and not (0.0 <= value < math.inf):
                raise ValueError(f"{name}: got {value}; allowed: a finite number of 0 or more")

    def __bool__(self) -> bool:
        return bool(self.as_dict())

    def as_dict(self) -> dict[str, Any]:
        """The differences from the environment, for JSON."""
        differences = {entry.name: getattr(self, entry.name) for entry in fields(self) if entry.name not in ("seed", "drawn")}
        return {name: list(value) if isinstance(value, tuple) else value for name, value in differences.items() if value not in (None, 0.0)}

    def __str__(self) -> str:
        parts = []
        for name, value in self.as_dict().items():
            numbers = " to ".join(f"{number:g}" for number in (value if isinstance(value, list) else [value]))
            parts.append(f"{name.replace('_', ' ')} {numbers}{UNITS[name]}")
        return ", ".join(parts)

    def options(self, env: Env, given: Mapping[str, Any]) -> dict[str, Any]:
        """Keywords for an environment: kicks, and the delay together with the noise of sensors that it has.

        Args:
            env: a sample of the environment. given: its keywords.

        Raises:
            ValueError: a delay between two control steps.
        """
        result: dict[str, Any] = {}
        if self.kicks:
            result["kicks"] = (self.kicks, max(1, round(EVERY / env.period)))
        if self.delay:
            steps = round(self.delay / env.period)
            if abs(self.delay - steps * env.period) > 1e-6:
                raise ValueError(
                    f"delay: got {self.delay:g} s; allowed: whole numbers of control steps of {env.period:g} s, as {env.period:g} or "
                    f"{2 * env.period:g} s"
                )
            result["sensor_noise"] = _delayed(given.get("sensor_noise"), steps)
        return result

    def apply(self, env: Env) -> Env:
        """The environment with friction, masses, armature and friction of joints of these conditions, drawn for each robot."""
        generator, mech = torch.Generator().manual_seed(self.seed), env.mech
        for name in RANGES:
            value = getattr(self, name)
            if value is not None:
                low, high = value if isinstance(value, tuple) else (value, value)
                self.drawn[name] = low + (high - low) * torch.rand(env.num_envs, generator=generator, dtype=torch.float64)
        numbers = {
            label: self.drawn[name] for name, label in (("armature", "armature"), ("joint_friction", "friction")) if name in self.drawn
        }
        if numbers:
            add_to_joints(env, _driven(env), numbers)
        if "friction" in self.drawn:
            for contact in mech.named_contacts().values():
                if "friction" in contact.fields:
                    cast(Any, contact).friction = self.drawn["friction"]
        if "mass" in self.drawn:
            for body in mech.bodies.values():
                solid, factor = cast(Body, body), self.drawn["mass"]
                solid.mass, solid.inertia = solid.mass.detach() * factor, solid.inertia.detach() * factor[:, None, None]
        return env

    def change(self, model: Any, number: int, hinges: np.ndarray[Any, Any]) -> None:
        """Put the numbers of one robot of `apply` on a model of MuJoCo's. hinges: places in qvel of its actuators."""
        value = {name: float(drawn[number]) for name, drawn in self.drawn.items()}
        if "friction" in value:
            model.geom_friction[:, 0] = value["friction"]
            model.pair_friction[:, :2] = value["friction"]
        if "mass" in value:
            model.body_mass[:] *= value["mass"]
            model.body_inertia[:] *= value["mass"]
        if "armature" in value:
            model.dof_armature[hinges] = value["armature"]
        if "joint_friction" in value:
            model.dof_frictionloss[hinges] = value["joint_friction"]


def _delayed(noise: Any, steps: int) -> Any:
    """`sensor_noise` of an environment with a delay, in the form in which it was given: environments have forms of their own."""
    if isinstance(noise, SensorNoise):
        return replace(noise, delay=steps)
    return {**(noise if isinstance(noise, Mapping) else {} if noise is None else {"noise": noise}), "delay": steps}


def _driven(env: Env) -> dict[str, list[int]]:
    """Driven coordinates of each driven joint."""
    motors, result = actuators(env.mech), dict[str, list[int]]()
    for joint, coordinate in zip(motors.joints, motors.coordinates, strict=True):
        if isinstance(env.mech.joints[joint], StandardJoint):
            result.setdefault(joint, []).append(coordinate)
    return result
