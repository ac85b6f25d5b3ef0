"""The content of a live view: a simulation that can be pushed, or playbacks. No browser is needed here."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from torchdojo.engine.rollout import Policy
from torchdojo.mechanism import Mechanism
from torchdojo.solver.options import Status
from torchdojo.state.layout import STATE_SIZE
from torchdojo.viewer.browser import rotate, same_scene
from torchdojo.viewer.playback import Playback
from torchdojo.viewer.stage import finite_frames, frames_at

__all__ = ["Replay", "Simulation", "Source"]

Array = NDArray[np.float64]


class Source(Protocol):
    """The content of a view: it is at `time`, and can go on or start again."""

    time: float

    def advance(self, seconds: float) -> float: ...

    def reset(self) -> None: ...

    def poses(self) -> list[tuple[Array, Array]]: ...

    def note(self) -> str: ...


class Simulation:
    """A mechanism that steps, one environment or a batch. Pushes act in the next step, pulls until they end."""

    def __init__(
        self, mechanism: Mechanism, z: Tensor | None = None, u: Tensor | Policy | None = None, ctrl: Tensor | Policy | None = None
    ) -> None:
        if u is not None and ctrl is not None:
            raise ValueError("live: got both u and ctrl; give one of them")
        if z is None:
            pose = "home" if "home" in mechanism.poses else None
            z = mechanism.initial_state(pose=pose, on="ground" if mechanism.contacts else None)
        size = STATE_SIZE * mechanism.num_bodies
        if z.shape[-1:] != (size,) or not z.numel():
            raise ValueError(f"live: got z of shape {tuple(z.shape)}; allowed for this mechanism: (..., {size})")
        self.mechanism = mechanism
        self._start = z.detach().reshape(-1, size).clone()
        self._name, self._law = ("u", u) if ctrl is None else ("ctrl", ctrl)
        self._timestep = float(mechanism.timestep.detach().reshape(-1)[0])
        self._lock = threading.Lock()
        self.pushes: list[tuple[int, int, Array, Array]] = []  # environment, body, point in the body [m], impulse [N s]
        self.pull: tuple[int, int, Array, Array, float] | None = None  # environment, body, point in the body, target, stiffness [N/m]
        self.reset()

    @property
    def environments(self) -> int:
        return len(self._start)

    @property
    def mass(self) -> float:
        """The mass of all bodies [kg]."""
        return sum(float(body.mass.detach().reshape(-1)[0]) for body in self.mechanism.named_bodies().values())

    def reset(self) -> None:
        with self._lock:
            self.z, self.time = self._start.clone(), 0.0
            self._solution: Tensor | None = None
            self.flagged, self.iterations = 0, 0.0
            self.pushes, self.pull = [], None

    def push(self, body: str, impulse: Array, *, environment: int = 0, point: Array | None = None) -> None:
        """Push a body with an impulse (3,) [N s] at a point (3,) of the world [m], in the next step; without one, at its center of mass."""
        index = self._body(body, environment)
        place = np.zeros(3) if point is None else self._in_body(environment, index, np.asarray(point, dtype=np.float64))
        with self._lock:
            self.pushes.append((environment, index, place, np.asarray(impulse, dtype=np.float64)))

    def hold(self, body: str, point: Array, target: Array, stiffness: float, *, environment: int = 0) -> None:
        """Pull a point (3,) of a body towards a target (3,), both in the world [m], until `release`."""
        index = self._body(body, environment)
        with self._lock:
            place = self.pull[2] if self.pull else self._in_body(environment, index, np.asarray(point, dtype=np.float64))
            self.pull = (environment, index, place, np.asarray(target, dtype=np.float64), stiffness)

    def release(self) -> None:
        with self._lock:
            self.pull = None

    @torch.no_grad()
    def step(self) -> None:
        """One step of all environments."""
        with self._lock:
            wrench = self._wrench()
            self.pushes = []
            law = self._law(self.z) if callable(self._law) else self._law
            out = self.mechanism.step(self.z, warm_start=self._solution, wrench=wrench, **{self._name: law})  # type: ignore[arg-type]
            self.z, self._solution = out.z, out.solution
            self.flagged += int((out.status != int(Status.SUCCESS)).sum())
            self.iterations = float(out.iterations.double().mean())
            self.time += self._timestep

    def advance(self, seconds: float) -> float:
        """Step as often as fits into these seconds, for a tenth of a second of work at most; returns the seconds simulated."""
        steps, started, done = int(seconds / self._timestep + 1e-9), time.perf_counter(), 0
        while done < steps and (done == 0 or time.perf_counter() - started < 0.1):
            self.step()
            done += 1
        # A machine that is too slow shows slow motion instead of falling behind more and more.
        return seconds if 0 < done < steps else done * self._timestep

    def poses(self) -> list[tuple[Array, Array]]:
        z = self.z.detach().double().reshape(self.environments, -1, STATE_SIZE).numpy()
        return [(z[..., :3], z[..., 6:10])]

    def note(self) -> str:
        return f"{self.iterations:.1f} iterations" + (f", **{self.flagged} steps failed**" if self.flagged else "")

    def _wrench(self) -> Tensor | None:
        forces = [(e, body, point, impulse / self._timestep) for e, body, point, impulse in self.pushes]
        if self.pull is not None:
            e, body, point, target, stiffness = self.pull
            forces.append((e, body, point, stiffness * (target - self._in_world(e, body, point))))
        if not forces:
            return None
        wrench = torch.zeros(self.environments, self.mechanism.num_bodies, 6, dtype=self.z.dtype)
        for e, body, point, force in forces:
            inverse = self._pose(e, body)[1] * (1.0, -1.0, -1.0, -1.0)
            total = np.concatenate((force, np.cross(point, rotate(inverse, force))))
            wrench[e, body] += torch.as_tensor(total, dtype=self.z.dtype)
        return wrench.flatten(1)

    def _body(self, name: str, environment: int) -> int:
        names = list(self.mechanism.bodies)
        if name not in names:
            raise ValueError(f"body: got {name!r}; allowed: {', '.join(names)}")
        if not 0 <= environment < self.environments:
            raise ValueError(f"environment: got {environment}; allowed: 0 to {self.environments - 1}")
        return names.index(name)

    def _pose(self, environment: int, body: int) -> tuple[Array, Array]:
        x, q = self.poses()[0]
        return x[environment, body], q[environment, body]

    def _in_body(self, environment: int, body: int, point: Array) -> Array:
        x, q = self._pose(environment, body)
        return rotate(q * (1.0, -1.0, -1.0, -1.0), point - x)

    def _in_world(self, environment: int, body: int, point: Array) -> Array:
        x, q = self._pose(environment, body)
        return x + rotate(q, point)


class Replay:
    """Playbacks, from their start to their end and again."""

    def __init__(self, playbacks: Sequence[Playback]):
        self._playbacks = playbacks
        self.groups = same_scene([playback.scene for playback in playbacks])
        self.start = min(playback.times[0] for playback in playbacks)
        self.end = max(playback.times[-1] for playback in playbacks)
        self.time = float(self.start)
        self._frames: list[int] = []

    def reset(self) -> None:
        self.time = float(self.start)

    def advance(self, seconds: float) -> float:
        self.time += seconds
        if self.time > self.end + 1.0:  # the last frame stands for a second
            self.time = float(self.start)
        return seconds

    def poses(self) -> list[tuple[Array, Array]]:
        self._frames = [int(frames_at(playback, np.array([self.time]))[0]) for playback in self._playbacks]
        groups = [[(self._playbacks[i], self._frames[i]) for i in group] for group in self.groups]
        return [(np.stack([p.positions[k] for p, k in group]), np.stack([p.orientations[k] for p, k in group])) for group in groups]

    def note(self) -> str:
        shown = zip(self._playbacks, self._frames, strict=True)
        gaps = [f"frame {k} of {p.label or 'the playback'}" for p, k in shown if not finite_frames(p)[k]]
        return f"**not finite: {', '.join(gaps)}**" if gaps else " / ".join(p.label for p in self._playbacks if p.label)
