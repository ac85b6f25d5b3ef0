"""Sensors of a mechanism in the observation of an environment."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from torchdojo.envs.disturbances import SensorNoise
from torchdojo.envs.driving import first_step
from torchdojo.envs.motion import EnvState, Motion
from torchdojo.gradients.reference_step import StepOutput
from torchdojo.sensors.kind import KINDS, Sensor

__all__ = ["Instruments", "SensorNames", "by_sensor"]

SensorNames = Sequence[str] | Mapping[str, Sensor]


class Instruments:
    """Sensors that an observation ends with, in the given order.

    Sensors of poses and velocities read the state that is observed. Accelerations and forces are means over the control step that led
    there, and belong to the configuration before it, as in `Mechanism.read_sensors`. A start has those of a step without action.

    Args:
        env: whose mechanism has them. given: names in `mech.sensors`, or sensors by name, which the mechanism then gets.

    Raises:
        ValueError: unknown names.

    Attributes:
        layout: the places of the sensors among the last numbers of the observation.
    """

    def __init__(self, env: Any, given: SensorNames) -> None:
        if isinstance(given, str):
            raise TypeError(f"sensors: got {given!r}; allowed: a sequence of names, such as ({given!r},)")
        table = env.mech.sensors
        if isinstance(given, Mapping):
            table.update(given)
        self.names = tuple(given)
        self.noise = {name: sensor.noise for name, sensor in table.chosen(self.names).items()}
        self.layout = table.layout_of(self.names)
        self.kinds = {name: sensor.kind for name, sensor in table.chosen(self.names).items()}
        if env.driving is not None:
            env.driving.check_sensors(self.kinds)
        stepping = {name for name, sensor in table.chosen(self.names).items() if KINDS[sensor.kind].needs_step}
        self._parts = [tuple(name for name in self.names if (name in stepping) == side) for side in (False, True)]
        size = sum(table[name].size for name in self.names)
        places = [table.layout_of(part) for part in self._parts]
        order = [(name in stepping, places[name in stepping][name]) for name in self.names]
        first = sum(table[name].size for name in self._parts[0])
        self._order = [i + first * late for late, place in order for i in range(place.start, place.stop)]
        assert len(self._order) == size

    def read(self, env: Any, motion: Motion, before: EnvState | None, out: StepOutput | None) -> Tensor:
        """(B, m). before, out: what the control step that led here started from, and its result; None: at a start."""
        prompt, late = self._parts
        time, result = motion.time * env.period, list[Tensor]()
        if prompt:
            result.append(env.mech.read_sensors(motion.z, names=prompt, **self._driven(env, prompt, motion, motion.action), time=time))
        if late:
            repeat, start = env.repeat, motion if before is None else before
            if before is None or out is None:
                repeat, out = 1, first_step(env, motion)
            driven = self._driven(env, late, start, motion.action)
            result.append(env.mech.read_sensors(start.z, out, names=late, **driven, time=time, repeat=repeat))
        return torch.cat(result, -1)[..., self._order]

    def _driven(self, env: Any, names: Sequence[str], at: Motion | EnvState, action: Tensor) -> dict[str, Tensor]:
        """Controls or inputs under which sensors are read."""
        if env.driving is None:
            return {"ctrl": action}
        pushes: dict[str, Tensor] = env.driving.pushes([self.kinds[name] for name in names], at.z, at.activation, action)
        return pushes

    def deviations(self, label: str, given: Mapping[str, float] | str, num_obs: int) -> list[float]:
        """Standard deviations of the entries of an observation, of sensors by name or as in their file ("file").

        Raises:
            ValueError: an unknown name, another string.
        """
        if isinstance(given, str) and given != "file":
            raise ValueError(f"{label}: got {given!r}; allowed: 'file', numbers, or {{name: deviation}} with names of {list(self.names)}")
        chosen = self.noise if isinstance(given, str) else given
        unknown = [name for name in chosen if name not in self.layout]
        if unknown:
            raise ValueError(f"{label}: got {unknown}; allowed: the environment's sensors, {list(self.names)}; give others in sensors=")
        result = [0.0] * num_obs
        start = num_obs - sum(place.stop - place.start for place in self.layout.values())
        for name, deviation in chosen.items():
            place = self.layout[name]
            result[start + place.start : start + place.stop] = [float(deviation)] * (place.stop - place.start)
        return result


def by_sensor(noise: SensorNoise, instruments: Instruments | None, num_obs: int) -> SensorNoise:
    """Noise and bias with deviations of all entries, where they are given by names of sensors.

    Raises:
        ValueError: names of an environment without sensors, or as `Instruments.deviations`.
    """
    spreads: dict[str, Any] = {}
    for field in ("noise", "bias"):
        deviations, label = getattr(noise, field), f"sensor_noise, {field}"
        if not isinstance(deviations, (Mapping, str)):
            continue
        if instruments is None:
            raise ValueError(
                f"{label}: got {deviations!r} for an environment without sensors; allowed: numbers; give sensors=(NAME, ...), too"
            )
        spreads[field] = instruments.deviations(label, deviations, num_obs)
    return dataclasses.replace(noise, **spreads)
