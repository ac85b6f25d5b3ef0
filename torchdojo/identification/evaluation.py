"""Open-loop prediction: rollouts of whole recorded trajectories from their first sample, and their errors."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

import torch
from torch import Tensor

from torchdojo import quaternion as quat
from torchdojo.identification.parameters import ParametricMechanism
from torchdojo.identification.recordings import Recordings, wrapped
from torchdojo.mechanism import StepOutput
from torchdojo.solver.options import Status
from torchdojo.state.layout import ORIENTATION, POSITION, STATE_SIZE

__all__ = ["OpenLoop", "compare", "open_loop", "roll", "trajectory_means"]


class RaggedRollout(NamedTuple):
    """Rollouts of trajectories of different lengths.

    z (N, 13 nb): simulated states at the recorded samples. flagged, steps: counts. iterations (steps,).
    """

    z: Tensor
    flagged: int
    steps: int
    iterations: Tensor


class OpenLoop(NamedTuple):
    """Errors of open-loop rollouts.

    bodies: simulated states of the recorded bodies, with the positions of the recorded points, (N, b, 13).
    position, rotation: distance [m] and angle [rad], mean over recorded bodies, (N,); (0,) without recorded bodies.
    joint: mean distance of joint coordinates [rad, m], (N,); (0,) without them.
    z: simulated states, (N, 13 nb).
    offsets: first row of each trajectory, (n + 1,).
    flagged: number of failed steps.
    """

    bodies: Tensor
    position: Tensor
    rotation: Tensor
    joint: Tensor
    z: Tensor
    offsets: Tensor
    flagged: int

    @property
    def main(self) -> Tensor:
        """The error by which trajectories are ordered, (N,): of positions [m], or of joint coordinates where no body is recorded."""
        return self.position if self.position.numel() else self.joint

    def summary(self, width: float | None = None) -> dict[str, float]:
        """Means and medians over trajectories of the means over their samples after the first; positions in mm, and in % of `width`."""
        result = {"trajectories": float(len(self.offsets) - 1), "flagged_steps": float(self.flagged)}
        degrees = 180 / torch.pi
        units = [("position", "error_mm", 1e3), ("rotation", "error_degrees", degrees), ("joint", "error_degrees", degrees)]
        if width is not None:
            units.insert(1, ("position", "error_percent_of_width", 100 / width))
        for name, unit, factor in units:
            values: Tensor = getattr(self, name)
            if values.numel():
                means = trajectory_means(values, self.offsets)
                result[f"{name}_{unit}"] = factor * float(means.mean())
                result[f"{name}_{unit.replace('error', 'error_median')}"] = factor * float(means.median())
        return result


def open_loop(model: ParametricMechanism, recordings: Recordings, raw: Tensor | None = None) -> OpenLoop:
    """Roll every trajectory from its first sample to its last: pose and velocity, and the recorded inputs on the way."""
    with torch.no_grad():
        z = model.states(recordings.samples, recordings, raw)
        inputs = model.recorded_inputs(recordings)
        rollout = roll(model.stepper(raw), z, recordings.offsets, model.substeps(recordings), inputs)
        return compare(model, recordings, rollout, raw)


def compare(model: ParametricMechanism, recordings: Recordings, rollout: RaggedRollout, raw: Tensor | None = None) -> OpenLoop:
    """Errors of rollouts of recorded trajectories."""
    with torch.no_grad():
        bodies, (angle, _) = recordings.bodies(), recordings.joints()
        chosen, columns = model.observed(recordings)
        state = rollout.z.unflatten(-1, (-1, STATE_SIZE))[:, chosen]
        state = torch.cat((model.positions(state, raw), state[..., 3:]), dim=-1)
        position = torch.linalg.vector_norm(state[..., POSITION] - bodies[..., POSITION], dim=-1)
        turn = quat.multiply(quat.conjugate(bodies[..., ORIENTATION]), state[..., ORIENTATION])
        rotation = torch.linalg.vector_norm(quat.rotation_vector(turn), dim=-1)
        none = angle.new_zeros(0)
        position, rotation = (error.mean(-1) if len(chosen) else none for error in (position, rotation))
        joint = none
        if columns:
            joint = wrapped(model.call("to_minimal", rollout.z, raw=raw)[0][:, columns] - angle).abs().mean(-1)
    return OpenLoop(state, position, rotation, joint, rollout.z, recordings.offsets, rollout.flagged)


def roll(
    step: Callable[..., StepOutput],
    z: Tensor,
    offsets: Tensor,
    substeps: int = 1,
    u: Tensor | None = None,
    *,
    progress: Callable[[Iterable[int], int], Iterable[int]] | None = None,
) -> RaggedRollout:
    """Roll all trajectories as one batch, each from its first state to its last. Finished trajectories leave the batch.

    Args:
        step: `Mechanism.step`, or a function like it. z: (N, 13 nb), read in the rows offsets[:-1].
        u: (N, m), inputs that are held from each row to the next one; None: zero.
        progress: (times, their number) -> times, to show a bar.
    """
    lengths = offsets.diff()
    order = torch.argsort(lengths, descending=True, stable=True)  # running trajectories stay in front
    start, lengths = offsets[:-1][order], lengths[order]
    result = z.clone()
    state, warm = z[start], None
    flagged = 0
    iterations: list[Tensor] = []
    longest = int(lengths.max())
    times: Iterable[int] = range(1, longest)
    if progress is not None:
        times = progress(times, longest - 1)
    with torch.no_grad():
        for t in times:
            running = int((lengths > t).sum())
            state, warm = state[:running], None if warm is None else warm[:running]
            held = {} if u is None else {"u": u[start[:running] + t - 1]}
            for _ in range(substeps):
                out = step(state, warm_start=warm, **held)
                state, warm = out.z, out.solution
                flagged += int((out.status != int(Status.SUCCESS)).sum())
                iterations.append(out.iterations)
            result[start[:running] + t] = state
    return RaggedRollout(result, flagged, sum(len(i) for i in iterations), torch.cat(iterations))


def trajectory_means(values: Tensor, offsets: Tensor) -> Tensor:
    """Mean over the samples of each trajectory after its first, (n,)."""
    return torch.stack([values[a + 1 : b].mean() for a, b in zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True)])
