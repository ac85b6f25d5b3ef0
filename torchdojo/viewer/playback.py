"""Motions: the poses of a scene over time, with contact forces and curves, as plain numbers in SI units and world axes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from torchdojo.engine.minimal_steps import MinimalTrajectory
from torchdojo.engine.near_gaps import terms_at
from torchdojo.engine.rollout import Trajectory
from torchdojo.mechanism import Mechanism
from torchdojo.parameters import PhysicalModule
from torchdojo.solver.options import Status
from torchdojo.state.layout import STATE_SIZE, neutral_state, split_state
from torchdojo.viewer.scene import Scene

__all__ = ["Playback"]

STRING = "string:"  # before the name of a tendon, among the numbers of a motion
Array = NDArray[np.float64]
Motion = Trajectory | MinimalTrajectory | Tensor | NDArray[Any]


@dataclass(frozen=True)
class Playback:
    """One motion of one scene, K frames.

    times: (K,) [s], increasing. positions: (K, bodies, 3) [m] of centers of mass. orientations: (K, bodies, 4) wxyz, body to world.
    contact_points: (K, contacts, 3) [m] and contact_forces: (K, contacts, 3) [N] on the body, in the mean of the step that ends at
    the frame (zero at the first one); None where they are not known. curves: numbers to plot against time, "energy [J]" -> (K,), each with
    its unit. strings: points (K, n, 3) [m] along each tendon, NaN between branches. loads: (K,) of tendons by name, which color them: a
    tension [N], or an activation. timestep: of the simulation [s]; 0 where it is not known. NaN leaves a gap in a curve. A frame whose
    poses are not finite is a gap: it keeps its time, and nothing is drawn.
    """

    scene: Scene
    times: Array
    positions: Array
    orientations: Array
    label: str = ""
    contact_points: Array | None = None
    contact_forces: Array | None = None
    curves: Mapping[str, Array] = field(default_factory=dict)
    timestep: float = 0.0
    strings: Mapping[str, Array] = field(default_factory=dict)
    loads: Mapping[str, Array] = field(default_factory=dict)

    @property
    def num_frames(self) -> int:
        return len(self.times)

    @classmethod
    def of(
        cls,
        mechanism: Mechanism,
        trajectory: Motion,
        *,
        label: str = "",
        environment: int | None = None,
        repeat: int = 1,
        collision: bool = False,
        sites: bool = False,
        curves: Mapping[str, Any] | None = None,
        loads: Mapping[str, Any] | None = None,
    ) -> Playback:
        """The playback of a rollout, or of states alone.

        Args:
            mechanism: which made the trajectory.
            trajectory: of `Mechanism.rollout` or `rollout_minimal`, or its states (..., K, 13 nb) alone, which tell no contact forces.
            environment: of a batch, counted over all its dimensions; see also `batch`.
            repeat: steps of each period of the rollout. collision: draw the shapes that collide, in addition to visual ones. sites: draw
                the sites, as small balls.
            curves: further numbers to plot, "torque of the knee [N m]" -> (K,) each.
            loads: name of a spatial tendon -> (K,) numbers that color it, from blue at 0 to red at the largest one: its tension [N], or the
                activation of its muscle. (K − 1,) are those of the steps, as `mech.drives.rollout` returns them.

        Raises:
            ValueError: states of another mechanism, no frame, a batch without `environment`, an environment that is not there, loads of
                unknown tendons or of another length.
        """
        motion = _Motion(mechanism, trajectory, repeat)
        if environment is None and motion.environments > 1:
            raise ValueError(
                f"Playback.of: got a batch {tuple(motion.batch)} of trajectories; give environment= (0 to {motion.environments - 1}), or "
                "call Playback.batch"
            )
        index = motion.check(environment or 0)
        scene = Scene.of(mechanism, environment=index, collision=collision, sites=sites)
        return motion.playback(cls, index, scene, label, curves or {}, loads or {})

    @classmethod
    def batch(
        cls,
        mechanism: Mechanism,
        trajectory: Motion,
        environments: Sequence[int] | None = None,
        *,
        labels: Sequence[str] = (),
        repeat: int = 1,
        collision: bool = False,
        sites: bool = False,
    ) -> list[Playback]:
        """Playbacks of some environments of a batch (None: of all), labeled "0", "1", ... unless `labels` are given; other arguments as in
        `of`."""
        motion = _Motion(mechanism, trajectory, repeat)
        chosen = [motion.check(i) for i in (range(motion.environments) if environments is None else environments)]
        names = list(labels) or [str(i) for i in chosen]
        if len(names) != len(chosen):
            raise ValueError(f"Playback.batch: got {len(names)} labels for {len(chosen)} environments; give one for each")
        scene = Scene.of(mechanism, collision=collision, sites=sites)
        scenes = [Scene.of(mechanism, environment=i, collision=collision, sites=sites) if motion.varied else scene for i in chosen]
        return [motion.playback(cls, i, scene, name, {}, {}) for i, scene, name in zip(chosen, scenes, names, strict=True)]


class _Motion:
    """A trajectory whose numbers are computed once for all environments that are asked for."""

    def __init__(self, mechanism: Mechanism, trajectory: Motion, repeat: int) -> None:
        rollout = trajectory if isinstance(trajectory, Trajectory | MinimalTrajectory) else None
        states = torch.as_tensor(trajectory if rollout is None else rollout.z)
        size = STATE_SIZE * mechanism.num_bodies
        if states.ndim < 2 or states.shape[-1] != size:
            raise ValueError(
                f"the trajectory has states of shape {tuple(states.shape)}; allowed for this mechanism of {mechanism.num_bodies} bodies: "
                f"(..., K, {size}). Is it of another mechanism?"
            )
        if not states.shape[-2]:
            raise ValueError("the trajectory has 0 frames; a playback needs at least one")
        if isinstance(repeat, bool) or not isinstance(repeat, int) or repeat < 1:
            raise ValueError(f"repeat: got {repeat!r}; allowed: a whole number of steps of a period, 1 or more")
        self.mechanism, self.rollout, self.repeat = mechanism, rollout, repeat
        self.z = states.detach().cpu().double()
        self.batch = self.z.shape[:-2]
        self.environments = self.batch.numel()
        self.varied = _varied(mechanism)

    def check(self, environment: int) -> int:
        if not 0 <= environment < self.environments:
            raise ValueError(f"environment: got {environment}; allowed: 0 to {self.environments - 1}, of the batch {tuple(self.batch)}")
        return environment

    def playback(
        self, cls: type[Playback], index: int, scene: Scene, label: str, curves: Mapping[str, Any], loads: Mapping[str, Any]
    ) -> Playback:
        z, mech = self.pick(self.z, index), self.mechanism
        finite = torch.isfinite(z).all(-1).numpy()
        numbers = {name: np.where(finite.reshape(-1, *[1] * (v.ndim - 1)), v, np.nan) for name, v in self.numbers(index).items()}
        h = mech.timestep.detach().reshape(-1)
        step, frames = float(h[index % len(h)]), len(z)
        forces = numbers["impulses"] / (step * self.repeat) if "impulses" in numbers else None
        plots = {"energy [J]": numbers["kinetic"] + numbers["potential"], "kinetic energy [J]": numbers["kinetic"]}
        if len(mech.contacts):
            plots["smallest distance [m]"] = numbers["distances"].min(-1)
            if forces is not None:
                plots["contact force [N]"] = np.linalg.norm(forces.sum(1), axis=-1)
        if self.rollout is not None:
            plots["iterations"] = _after_start(self.pick(self.rollout.iterations, index, 1))
            plots["flagged"] = _after_start(self.pick(self.rollout.status != int(Status.SUCCESS), index, 1))
        for name, values in curves.items():
            plots[name] = np.asarray(values.detach() if isinstance(values, Tensor) else values, dtype=np.float64)
            if plots[name].shape != (frames,):
                raise ValueError(f"curve {name!r}: got shape {plots[name].shape}; allowed: ({frames},), a number for each frame")
        pose, _ = split_state(torch.where(torch.from_numpy(finite)[:, None], z, torch.nan))
        return cls(
            scene=scene,
            times=step * self.repeat * np.arange(frames, dtype=np.float64),
            positions=pose.x.numpy(),
            orientations=(pose.q / torch.linalg.vector_norm(pose.q, dim=-1, keepdim=True)).numpy(),
            label=label,
            contact_points=numbers["points"],
            contact_forces=forces,
            curves=plots,
            timestep=step,
            strings={name.removeprefix(STRING): points for name, points in numbers.items() if name.startswith(STRING)},
            loads=self.loads(loads, frames),
        )

    def loads(self, loads: Mapping[str, Any], frames: int) -> dict[str, Array]:
        """Loads of tendons at all frames; without one at the first frame, that of the first step."""
        names = list(self.mechanism.tendon_routes(self.pick(self.z, 0)[:1])) if loads else []
        checked = {}
        for name, values in loads.items():
            if name not in names:
                raise ValueError(f"loads: got the tendon {name!r}; allowed: names of spatial tendons, {names}")
            row = np.asarray(values.detach().cpu() if isinstance(values, Tensor) else values, dtype=np.float64)
            if row.shape not in ((frames,), (frames - 1,)):
                raise ValueError(
                    f"loads of {name!r}: got shape {row.shape}; allowed: ({frames},) of the frames, or ({frames - 1},) of the steps"
                )
            checked[name] = row if len(row) == frames else np.concatenate((row[:1], row)) if len(row) else np.zeros(frames)
        return checked

    def numbers(self, index: int) -> dict[str, Array]:
        """Energies, distances, points and impulses of one environment at its frames, which are in front."""
        if self.varied:  # the batch of the parameters belongs to that of the states
            everything = self.observed
            rows = {name: value.flatten(1, len(self.batch)) if self.batch else value for name, value in everything.items()}
            return {name: (value[:, index] if self.batch else value).numpy() for name, value in rows.items()}
        impulses = None if self.rollout is None else self.pick(self.rollout.impulses, index)
        return {name: value.numpy() for name, value in self._observe(self.pick(self.z, index), impulses).items()}

    @cached_property
    def observed(self) -> dict[str, Tensor]:
        """The same of all environments, (K, ..., ·)."""
        impulses = None if self.rollout is None else self.rollout.impulses.detach().cpu()
        return self._observe(self.z, impulses)

    @torch.no_grad()
    def _observe(self, z: Tensor, impulses: Tensor | None) -> dict[str, Tensor]:
        mech = self.mechanism
        frames = torch.where(torch.isfinite(z).all(-1, keepdim=True), z, neutral_state(z)).movedim(-2, 0)
        values = {
            "kinetic": mech.kinetic_energy(frames),
            "potential": mech.potential_energy(frames),
            "distances": mech.distances(frames),
            "points": mech.contact_points(frames),
            **{STRING + name: points for name, points in mech.tendon_routes(frames).items()},
        }
        if impulses is not None:
            # Near contacts have the places of the last step. Arrows of a trajectory start at those that are near in each frame.
            with terms_at(mech.backends, mech.options, frames[1:]):
                of_steps = mech.contact_impulses(frames[1:], impulses.double().movedim(-2, 0))
            values["impulses"] = torch.cat((torch.zeros_like(of_steps[:1]), of_steps))
        return {name: value.cpu().double() for name, value in values.items()}

    def pick(self, value: Tensor, index: int, trailing: int = 2) -> Tensor:
        """One environment of a value whose last `trailing` dimensions are not the batch's."""
        value = value.detach().cpu()
        return value.expand(*self.batch, *value.shape[value.ndim - trailing :]).reshape(-1, *value.shape[value.ndim - trailing :])[index]


def _after_start(values: Tensor) -> Array:
    """Values of the steps, behind a gap for the first frame, which no step led to."""
    return np.concatenate(([np.nan], values.double().numpy()))


def _varied(mechanism: Mechanism) -> bool:
    """Whether parameters differ by environment."""
    modules = [module for module in mechanism.modules() if isinstance(module, PhysicalModule)]
    return any(getattr(module, name).ndim > ndim for module in modules for name, ndim in module.fields.items() if name not in module.chosen)
