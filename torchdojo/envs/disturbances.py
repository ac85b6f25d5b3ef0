"""Disturbances of a robot and its policy: kicks that change velocities, and sensors with noise, bias and delay."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor

from torchdojo.elements.joints import Joint
from torchdojo.envs.checks import counted, one_from, positive
from torchdojo.mechanism import Mechanism
from torchdojo.state.layout import STATE_SIZE

__all__ = ["Kicks", "SensorNoise", "Sensors", "rows_of_steps"]

VELOCITY = 3  # place of a body's velocity among its numbers
MOVES = 1e-6  # [m/s] by which the velocities of a robot that can move as a whole may differ from those of its joints


class Kicks:
    """Every so many control steps, all bodies of a robot get the same horizontal velocity, in a random direction.

    The bodies keep their velocities relative to each other, so joints stay satisfied. A planar robot is kicked forward or backward. Kicks
    of the environments are spread evenly over time. They do not depend on when episodes begin.

    Args:
        given: (speed [m/s], control steps between two kicks). mech: the robot. z: (1, 13 nb), a state to try. owner: for messages.

    Attributes:
        speed, every: see above. axes: (2,) 1 where the robot can move along x and y, else 0.
    """

    def __init__(self, given: Any, mech: Mechanism, z: Tensor, owner: str) -> None:
        if not isinstance(given, Sequence) or isinstance(given, str) or len(given) != 2:
            raise ValueError(
                f"kicks: got {given!r}; allowed: (speed [m/s], control steps between two kicks); give kicks=(0.5, 100), or None"
            )
        self.speed, self.every = positive("kicks, speed", given[0], zero=True), counted("kicks, control steps between two", given[1])
        self._push = torch.zeros(2, z.shape[-1], dtype=torch.float64)
        for axis in (0, 1):
            self._push[axis, VELOCITY + axis :: STATE_SIZE] = 1.0
        self.axes = torch.tensor([float(self._moves(mech, z + row)) for row in self._push], dtype=torch.float64)
        if not bool(self.axes.any()):
            held = [name for name, joint in mech.joints.items() if cast(Joint, joint).body_names[0] is None]
            raise ValueError(
                f"kicks: got {tuple(given)} for {owner}, whose base does not move freely along x or y ({', '.join(held)} holds it); "
                "allowed: robots with a floating base, or planar ones; leave kicks out"
            )

    @staticmethod
    def _moves(mech: Mechanism, z: Tensor) -> bool:
        """Whether the joints allow the velocities of a state."""
        return float((mech.to_maximal(*mech.to_minimal(z)) - z).abs().max()) < MOVES

    def draw(self, step: int | Tensor, uniform: Tensor) -> Tensor:
        """Velocities (B, 2) that a control step adds, zero but for the environments whose turn it is. uniform: (B,), from 0 to 1.

        Of several steps (H, 1) at once, with uniform (H, B): (H, B, 2).
        """
        count = uniform.shape[-1]
        phase = (torch.arange(count) * self.every).div(count, rounding_mode="floor")
        if bool(self.axes.all()):
            angle = 2.0 * math.pi * uniform
            direction = torch.stack((angle.cos(), angle.sin()), -1)
        else:
            direction = torch.where(uniform < 0.5, -1.0, 1.0)[..., None] * self.axes
        return torch.where(((step + 1 + phase) % self.every == 0)[..., None], self.speed * direction, 0.0)

    def apply(self, z: Tensor, velocity: Tensor) -> Tensor:
        """The state (B, 13 nb) with a velocity (B, 2) more of all bodies."""
        return torch.addmm(z, velocity, self._push)


@dataclass(frozen=True)
class SensorNoise:
    """The policy sees a disturbed observation: ``o(t − delay) + bias + noise · ε(t)``.

    noise, bias: standard deviations, each one number or one for each entry of the observation. ε is normal and new in every control step.
        An episode has one bias, which comes from the pool with the start. Or {name: deviation} of the environment's `sensors`, with zero
        for all other entries; or "file": the deviations that these sensors have (`td.Sensor.noise`).
    delay: control steps, or a pair (least, most), from which each start of the pool has one. Until as many have passed, the policy sees the
        first observation of the episode.
    """

    noise: float | Sequence[float] | Mapping[str, float] | str = 0.0
    bias: float | Sequence[float] | Mapping[str, float] | str = 0.0
    delay: int | Sequence[int] = 0

    def __post_init__(self) -> None:
        ends: tuple[Any, ...] = tuple(self.delay) if isinstance(self.delay, Sequence) and len(self.delay) == 2 else (0, self.delay)
        for end in ends:
            counted("sensor_noise, delay", end, zero=True)
        if ends[0] > ends[1]:
            raise ValueError(f"sensor_noise, delay: got {self.delay!r}; allowed: a whole number, or a pair (least, most)")

    @classmethod
    def of(cls, given: Any) -> SensorNoise:
        """From a number or "file", the noise; a mapping of the fields; None.

        Raises:
            ValueError: anything else.
        """
        if given is None or isinstance(given, cls):
            return given or cls()
        if isinstance(given, Mapping):
            for key in given:
                one_from("sensor_noise", key, [entry.name for entry in dataclasses.fields(cls)])
            return cls(**given)
        if given == "file":
            return cls(noise=given)
        return cls(noise=positive("sensor_noise", given, zero=True))


class Sensors:
    """`SensorNoise` for observations of n entries.

    The sensors carry a row from step to step: the delay where it differs, bias, and observations on their way, the newest first. It is
    empty where there is none of them.

    Attributes:
        draws: normal numbers that one reading takes, n or none.
    """

    def __init__(self, given: SensorNoise, num_obs: int) -> None:
        self.noise, self.bias = (_spread(f"sensor_noise, {name}", getattr(given, name), num_obs) for name in ("noise", "bias"))
        self.least, self.most = given.delay if isinstance(given.delay, Sequence) else (given.delay, given.delay)
        self.draws, self._head = len(self.noise), int(self.least < self.most) + len(self.bias)

    def begin(self, obs: Tensor, normal: Callable[..., Tensor]) -> tuple[Tensor, Tensor]:
        """The first observation (B, n) as the policy sees it, and the sensors' memory. normal: draws numbers of a shape."""
        bias = self.bias * normal(len(obs), len(self.bias)) if len(self.bias) else obs.new_zeros(len(obs), 0)
        delay = obs.new_zeros(len(obs), 0)
        if self.least < self.most:
            share = 0.5 + 0.5 * torch.erf(normal(len(obs), 1) / math.sqrt(2.0))  # uniform from 0 to 1
            delay = (self.least + (self.most - self.least + 1) * share).floor().clamp(max=self.most)
        carried = torch.cat((delay, bias, *[obs] * self.most), -1)
        seen = obs + bias if len(self.bias) else obs
        return (seen + self.noise * normal(len(obs), self.draws) if self.draws else seen), carried

    def read(self, obs: Tensor, carried: Tensor, drawn: Tensor) -> tuple[Tensor, Tensor]:
        """The observation (B, n) at the end of a control step as the policy sees it, and the sensors' memory.

        drawn: (B, ...), normal numbers in the last `draws` columns.
        """
        seen, head = obs, carried[:, : self._head]
        if self.most:
            past = [obs, *carried[:, self._head :].split(obs.shape[-1], -1)]
            seen = past[-1]
            for lag in reversed(range(self.least, self.most)):
                seen = torch.where(head[:, :1] == lag, past[lag], seen)
            carried = torch.cat((head, *past[:-1]), -1)
        if len(self.bias):
            seen = seen + head[:, -len(self.bias) :]
        return (seen + self.noise * drawn[:, -self.draws :] if self.draws else seen), carried


def _spread(name: str, given: Any, count: int) -> Tensor:
    """Standard deviations (count,), or none where all are zero."""
    try:
        sizes = torch.as_tensor(given, dtype=torch.float64)
    except (TypeError, ValueError, RuntimeError):
        sizes = torch.full((1,), torch.nan)
    if sizes.shape not in ((), (count,)) or not bool((torch.isfinite(sizes) & (sizes >= 0)).all()):
        got = f"{len(given)} of them" if isinstance(given, Sequence) and not isinstance(given, str) and len(given) != count else repr(given)
        raise ValueError(
            f"{name}: got {got}; allowed: a finite number of 0 or more, or one for each of the {count} entries of the observation"
        )
    return sizes.expand(count).clone() if bool(sizes.any()) else sizes.new_zeros(0)


def rows_of_steps(size: tuple[int, int], starts: int, kicks: Kicks | None, first: int, draws: int, generator: torch.Generator) -> Tensor:
    """Random numbers of steps, (steps, B, n): the generator gives those of one step after those of another.

    Args:
        size: steps, B. starts: places in the pool. first: number of the first of these steps. draws: normal numbers of each environment.
    """
    index, uniform = torch.empty(size, dtype=torch.int64), torch.empty(size, dtype=torch.float64)
    normal = torch.empty(*size, draws, dtype=torch.float64)
    for t in range(size[0]):
        index[t].random_(starts, generator=generator)
        if kicks is not None:
            uniform[t].uniform_(generator=generator)
        normal[t].normal_(generator=generator)
    kick = normal[..., :0] if kicks is None else kicks.draw(first + torch.arange(size[0])[:, None], uniform)
    return torch.cat((index.double()[..., None], kick, normal), -1)
