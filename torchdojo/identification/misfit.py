"""The misfit of rollouts to recordings, on the tangent space: its Jacobians by parameters, and robust losses.

A window of T + 1 samples starts a rollout at its first sample. The misfit compares the T states that follow with the other samples. Its
entries are, per recorded body, [position m, linear velocity m/s, rotation vector rad, angular velocity rad/s]; joint coordinates follow.
Each entry is divided by its scale, a standard deviation, so that the sum of squares is a log-likelihood. T = 1 is the fit of Howell et al.
(2025, eq. 55-57): triplets of configurations, one step each. Velocities are means over the time between two samples, as recorded ones are.

Jacobians come from the derivatives of single steps, z' = f(z, θ), on the tangent space. Reverse mode takes the components of z' as rows
of a batch, for all steps of all windows at once. The derivatives are chained forward,

    S₀ = ∂z₀/∂θ,      S_{t+1} = (∂f/∂z) S_t + ∂f/∂θ,      ∂r_t/∂θ = (∂r/∂z) S_t.

This chain costs a number of adjoints proportional to T. Reverse mode through whole windows costs T².
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import NamedTuple

import torch
from torch import Tensor, nn

from torchdojo import quaternion as quat
from torchdojo.gradients.request import Request
from torchdojo.identification.parameters import ParametricMechanism
from torchdojo.identification.readings import Readings
from torchdojo.identification.recordings import Recordings, wrapped
from torchdojo.native.cache import Parameters
from torchdojo.native.execution import velocity_sensitivity
from torchdojo.solver.options import Status
from torchdojo.state.layout import ANGULAR_VELOCITY, ORIENTATION, POSITION, STATE_SIZE, TANGENT_SIZE, VELOCITY

__all__ = ["LinearizedMisfit", "RobustLoss", "Scales", "WindowLoss", "WindowResidual"]

#: Steps that are differentiated together: enough to fill the kernel's lanes, few enough to stay in the cache.
CHUNK = 2048


@dataclass(frozen=True, kw_only=True)
class Scales:
    """Divisors of the misfit, by kind; None leaves the kind out.

    position [m], rotation [rad], velocity [m/s], angular_velocity [rad/s]; joint [rad or m], joint_velocity of joint coordinates.
    """

    position: float | None = 1e-3
    rotation: float | None = 1e-2
    velocity: float | None = None
    angular_velocity: float | None = None
    joint: float | None = 1e-2
    joint_velocity: float | None = None

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if value is not None and not value > 0:
                raise ValueError(f"Scales.{field.name}: got {value}; allowed: positive numbers, or None to leave it out")


@dataclass(frozen=True)
class RobustLoss:
    """ρ(s) of squared norms s (per window and sample, in units of the scales): ρ(s) ≈ s for small s.

    kind: "squared", ρ = s; "huber", ρ = 2δ√s − δ² beyond s = δ² (Huber 1964); "cauchy", ρ = δ² log(1 + s/δ²). threshold: δ.
    Gauss-Newton uses the weights ρ'(s) of iteratively reweighted least squares.
    """

    kind: str = "squared"
    threshold: float = 1.0

    def __post_init__(self) -> None:
        if self.kind not in ("squared", "huber", "cauchy"):
            raise ValueError(f"RobustLoss: got kind={self.kind!r}; allowed: 'squared', 'huber', 'cauchy'")
        if not self.threshold > 0:
            raise ValueError(f"RobustLoss: got threshold={self.threshold}; allowed: positive numbers")

    def __call__(self, squared: Tensor) -> Tensor:
        """ρ(s), of the shape of s."""
        edge = self.threshold**2
        if self.kind == "huber":
            return torch.where(squared <= edge, squared, 2 * self.threshold * squared.clamp_min(edge).sqrt() - edge)
        return edge * torch.log1p(squared / edge) if self.kind == "cauchy" else squared

    def weight(self, squared: Tensor) -> Tensor:
        """ρ'(s)."""
        edge = self.threshold**2
        if self.kind == "huber":
            return self.threshold / squared.clamp_min(edge).sqrt()
        return 1 / (1 + squared / edge) if self.kind == "cauchy" else torch.ones_like(squared)


class LinearizedMisfit(NamedTuple):
    """The misfit of windows and its derivatives.

    misfit: r (N, K, R).
    jacobian: ∂r/∂raw (N, K, R, P).
    by_start: derivative by changes of the first sample, where it is free, (N, K, R, D).
    solved: whether all steps up to the sample succeeded, (N, K).

    K is the number of samples T, or T + 1 with a free first sample.
    """

    misfit: Tensor
    jacobian: Tensor
    by_start: Tensor | None
    solved: Tensor


class WindowResidual:
    """The misfit of windows of recorded samples, as a function of the parameters of a mechanism.

    Args:
        model: the mechanism. recordings: the source of the windows, with their layout and dt. scales: divisors of the misfit.
        sensors: {name in `mech.sensors`: standard deviation}, of the recorded readings, which become entries of the misfit.
    """

    def __init__(
        self,
        model: ParametricMechanism,
        recordings: Recordings,
        scales: Scales | None = None,
        sensors: Mapping[str, float] | None = None,
    ) -> None:
        self.model, self.recordings, self.scales = model, recordings, scales or Scales()
        self.substeps = model.substeps(recordings)
        self._bodies, self._columns = model.observed(recordings)
        s = self.scales
        per_body = [scale for scale in (s.position, s.velocity, s.rotation, s.angular_velocity) for _ in range(3)]
        numbers = per_body * len(self._bodies) + [s.joint] * recordings.num_joints + [s.joint_velocity] * recordings.num_joints
        kept = [i for i, number in enumerate(numbers) if number is not None]
        self._readings = Readings(model, recordings, sensors, self.substeps) if sensors else None
        if not kept and self._readings is None:
            raise ValueError("Scales: every kind of misfit is left out; give at least one")
        # A free first sample is compared in its poses alone. Poses are measured, and recorded velocities follow from them.
        posed = ([1.0] * 3 + [0.0] * 3) * 2 * len(self._bodies) + [1.0] * recordings.num_joints + [0.0] * recordings.num_joints
        self._posed = torch.tensor([posed[i] for i in kept], dtype=torch.float64)
        self._memory: dict[str, Tensor] = {}
        self._kept = torch.tensor(kept, dtype=torch.long)
        self._scale = torch.tensor([numbers[i] for i in kept], dtype=torch.float64)

    @property
    def size(self) -> int:
        """R: entries of the misfit per sample."""
        return len(self._kept) + (0 if self._readings is None else len(self._readings.scale))

    def __call__(self, windows: Tensor, raw: Tensor | None = None) -> Tensor:
        """Misfit (N, T, R) of windows (N, T + 1, width), differentiable in `raw` and in all fields of the mechanism."""
        return self.evaluate(windows, raw)[0]

    def evaluate(self, windows: Tensor, raw: Tensor | None = None, start: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """(misfit (N, K, R), solved (N, K)). The misfit is zero behind a failed step.

        Args:
            start: (N, width), samples to start from in the place of the recorded first ones, which then have a misfit of their own.
        """
        first = windows[..., 0, :] if start is None else start
        begin = self.model.states(first, self.recordings, raw)
        u = self.model.held_inputs(self.recordings, windows[..., :-1, :])
        out = self.model.rollout(begin, (windows.shape[-2] - 1) * self.substeps, raw, u)
        misfit, solved = self._compare(self._observed(out.z), windows[..., 1:, :], raw), self._solved(out.status)
        if self._readings is not None:
            misfit = torch.cat((misfit, self._readings.compare(out.z, out.impulses, u, windows[..., 1:, :], raw)), dim=-1)
        misfit = torch.where(solved[..., None], misfit, 0.0)
        if start is None:
            return misfit, solved
        first_misfit = self._posed * self._compare(begin, windows[..., 0, :], raw)
        first_misfit = nn.functional.pad(first_misfit, (0, self.size - first_misfit.shape[-1]))  # no step leads to a first sample
        return torch.cat((first_misfit[..., None, :], misfit), dim=-2), torch.cat((torch.ones_like(solved[..., :1]), solved), dim=-1)

    def linearize(self, windows: Tensor, raw: Tensor, start: Tensor | None = None) -> LinearizedMisfit:
        """`evaluate` and its Jacobians by `raw` (P,), and by changes (D,) of `start` where that is given (`correct`)."""
        model, substeps = self.model, self.substeps
        raw = raw.detach()
        if start is None and not len(raw):  # nothing to differentiate by
            with torch.no_grad():
                misfit, solved = self.evaluate(windows, raw)
            return LinearizedMisfit(misfit, misfit.new_zeros(*misfit.shape, 0), None, solved)
        rows = raw.expand(len(windows), -1).clone().requires_grad_()
        change = raw.new_zeros(len(windows), 0 if start is None else self.start_size).requires_grad_()
        with torch.enable_grad():
            first = windows[:, 0] if start is None else self.correct(start, change)
            begin = model.states(first, self.recordings, rows)
            sensitivity = _rows(lambda z: model.mechanism.difference(z, z.detach()), begin, rows, change)
        with torch.no_grad():
            u = model.held_inputs(self.recordings, windows[:, :-1])
            out = model.rollout(begin.detach(), (windows.shape[1] - 1) * substeps, raw, u)
            dz, direct = self._step_jacobians(out.z[:, :-1], u, raw, change.shape[-1])
            path = self._buffer("path", len(windows), dz.shape[1] + 1, *sensitivity.shape[1:])
            path[:, 0] = sensitivity
            for t in range(dz.shape[1]):
                torch.add(dz[:, t] @ path[:, t], direct[:, t], out=path[:, t + 1])
        # The observed velocities are means over the substeps, and so are their derivatives.
        mean = path[:, 1:].unflatten(1, (-1, substeps)).mean(2).unflatten(2, (-1, 4, 3))
        last = path[:, substeps::substeps].unflatten(2, (-1, 4, 3))
        combined = torch.stack((last[:, :, :, 0], mean[:, :, :, 1], last[:, :, :, 2], mean[:, :, :, 3]), dim=3).flatten(2, 4)
        seen, samples, solved = self._observed(out.z), windows[:, 1:], self._solved(out.status)
        if start is not None:
            seen, samples = torch.cat((begin.detach()[:, None], seen), dim=1), windows
            combined = torch.cat((sensitivity[:, None], combined), dim=1)
            solved = torch.cat((torch.ones_like(solved[:, :1]), solved), dim=1)
        misfit, by_state = self._compare_jacobian(seen, samples, raw)
        direct = self._compare_directly(seen, samples, raw)
        if start is not None:
            misfit = torch.cat((self._posed * misfit[:, :1], misfit[:, 1:]), dim=1)
            by_state, direct = (torch.cat((self._posed[:, None] * J[:, :1], J[:, 1:]), dim=1) for J in (by_state, direct))
        keep = solved[..., None]
        jacobian = by_state @ combined
        if self._readings is not None:
            late, following = len(misfit[0]) - windows.shape[1] + 1, windows[:, 1:]
            with torch.no_grad():
                extra = self._readings.compare(out.z, out.impulses, u, following, raw)
            by_unknowns = self._readings.jacobian(out.z, u, following, raw, path, _rows)
            misfit = torch.cat((misfit, nn.functional.pad(extra, (0, 0, late, 0))), dim=-1)
            jacobian = torch.cat((jacobian, nn.functional.pad(by_unknowns, (0, 0, 0, 0, late, 0))), dim=-2)
            direct = nn.functional.pad(direct, (0, 0, 0, extra.shape[-1]))
        by_raw, by_start = torch.where(keep[..., None], jacobian, 0.0).split((len(raw), change.shape[-1]), dim=-1)
        by_raw = by_raw + torch.where(keep[..., None], direct, 0.0)
        return LinearizedMisfit(torch.where(keep, misfit, 0.0), by_raw, None if start is None else by_start, solved)

    @property
    def start_size(self) -> int:
        """D: numbers of a change of a sample, 12 per recorded body [dx, dv, rotation vector, dω], then joint coordinates and rates."""
        return TANGENT_SIZE * self.recordings.num_bodies + 2 * self.recordings.num_joints

    @property
    def start_units(self) -> Tensor:
        """Units (D,) of a change of a sample: the scales, and for velocities that are not compared, those of poses over dt."""
        s, dt = self.scales, self.recordings.dt
        position, rotation, joint = s.position or 1e-3, s.rotation or 1e-2, s.joint or 1e-2
        body = [(position, s.velocity or position / dt), (rotation, s.angular_velocity or rotation / dt)]
        joints = [joint] * self.recordings.num_joints + [s.joint_velocity or joint / dt] * self.recordings.num_joints
        numbers = [number for pair in body for number in pair for _ in range(3)] * self.recordings.num_bodies
        return torch.tensor([*numbers, *joints], dtype=torch.float64)

    def correct(self, samples: Tensor, correction: Tensor) -> Tensor:
        """Samples (..., width) changed by `correction` (..., D); quaternions stay unit."""
        count = TANGENT_SIZE * self.recordings.num_bodies
        x, v, q, omega = self.recordings.bodies(samples).split((3, 3, 4, 3), dim=-1)
        dx, dv, dphi, domega = correction[..., :count].unflatten(-1, (-1, TANGENT_SIZE)).split(3, dim=-1)
        bodies = torch.cat((x + dx, v + dv, quat.multiply(q, quat.exp(dphi)), omega + domega), dim=-1).flatten(-2)
        joints = torch.cat(self.recordings.joints(samples), dim=-1) + correction[..., count:]
        first = STATE_SIZE * self.recordings.num_bodies + joints.shape[-1]
        return torch.cat((bodies, joints, samples[..., first:].expand(*joints.shape[:-1], -1)), dim=-1)

    def _step_jacobians(self, z: Tensor, u: Tensor | None, raw: Tensor, more: int) -> tuple[Tensor, Tensor]:
        """∂f/∂z (N, K, 12 nb, 12 nb) and [∂f/∂raw, zeros] (N, K, 12 nb, P + more) of steps from z (N, K, 13 nb), on the tangent space.

        u: (N, K, m), or None. The next call overwrites both results.
        """
        native, flat, size = self._native_sensitivity(raw), z.flatten(0, 1), TANGENT_SIZE * self.model.mechanism.num_bodies
        held = z.new_zeros(len(flat), self.model.mechanism.num_inputs) if u is None else u.flatten(0, 1)
        by_state = self._buffer("by_state", len(flat), size, size + self.model.mechanism.num_inputs)
        by_raw = self._buffer("by_raw", len(flat), size, len(raw) + more)
        by_raw[..., len(raw) :] = 0.0
        for first in range(0, len(flat), CHUNK):
            some = slice(first, first + CHUNK)
            rest: slice | Tensor = slice(None)
            if native is not None:
                by_raw[some, :, : len(raw)], whole = native(flat[some], held[some], by_state[some])
                rest = (~whole).nonzero()[:, 0]  # steps that the solver split in two, or that failed
            if native is None or len(flat[some][rest]):
                targets = by_state[..., :size], by_raw[..., : len(raw)]
                for target, values in zip(targets, self._reverse(flat[some][rest], held[some][rest], raw), strict=True):
                    target[some][rest] = values
        return by_state[..., :size].unflatten(0, z.shape[:2]), by_raw.unflatten(0, z.shape[:2])

    def _buffer(self, name: str, *shape: int) -> Tensor:
        """A tensor of this shape with any contents, in memory that stays: the system clears new memory, which costs as much as its use."""
        size = math.prod(shape)
        if name not in self._memory or len(self._memory[name]) < size:
            self._memory[name] = torch.empty(size, dtype=torch.float64)
        return self._memory[name][:size].view(shape)

    def _reverse(self, z: Tensor, u: Tensor, raw: Tensor) -> tuple[Tensor, Tensor]:
        """∂f/∂z (M, 12 nb, 12 nb) and ∂f/∂raw (M, 12 nb, P) by reverse mode: any mechanism."""
        mech = self.model.mechanism
        with torch.enable_grad():
            delta = z.new_zeros(len(z), TANGENT_SIZE * mech.num_bodies).requires_grad_()
            rows = raw.expand(len(z), -1).clone().requires_grad_()
            after = self.model.step(mech.retract(z, delta), rows, u=u).z
            jacobian = _rows(lambda z: mech.difference(z, z.detach()), after, delta, rows)
        return jacobian[..., : delta.shape[-1]], jacobian[..., delta.shape[-1] :]

    def _native_sensitivity(self, raw: Tensor) -> Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]] | None:
        """`_reverse` by the kernel, which has derivatives of velocities by all parameters at once.

        The function of states z and inputs u writes ∂f/∂z beside ∂f/∂u into its third argument. It
        returns ∂f/∂raw, and the steps for which both hold.
        """
        mech = self.model.mechanism
        request = Request(mech.options)
        program = mech.backends.select(request).program
        if program is None or program.leaves_numbers or type(self.model).step is not ParametricMechanism.step:
            return None
        leaf = raw.clone().requires_grad_()
        with torch.enable_grad():
            stacked = self.model.call("stacked_parameters", raw=leaf)
            # `pack` expects a leading dimension for the batch.
            flat = [t.reshape(1, *t.shape[t.ndim - spec.ndim :]) for t, spec in zip(stacked, program.parameter_specs, strict=True)]
            packed = program.pack(flat)[0]
            chain = _rows(lambda v: v, packed, leaf)  # shape (num_parameters, P)
        parameters = Parameters(program, [t.detach() for t in stacked])
        h = mech.timestep

        def sensitivity(z: Tensor, u: Tensor, out: Tensor) -> tuple[Tensor, Tensor]:
            self.model.call("jacobians", z, u, raw=raw, out=out)
            after, whole, by_numbers = velocity_sensitivity(program, request, parameters, z, u, chain)
            velocity = by_numbers.unflatten(1, (-1, 2, 3))
            # x⁺ = x + h v⁺, and q⁺ = q ⊗ [s, u] with u = h ω⁺/2. A change du turns q⁺ by 2 (s du + (u·du) u/s − u × du), body frame.
            u = 0.5 * h * after.unflatten(-1, (-1, STATE_SIZE))[..., ANGULAR_VELOCITY]
            s = (1 - u.square().sum(-1)).sqrt()[..., None, None]
            turn = h * (s * torch.eye(3, dtype=z.dtype) + u[..., :, None] * u[..., None, :] / s - skew(u))
            dv, domega = velocity.unbind(2)
            by_raw = torch.stack((h * dv, dv, turn @ domega, domega), dim=2).flatten(1, 3)
            return by_raw, whole

        return sensitivity

    def _solved(self, status: Tensor) -> Tensor:
        failed = (status != int(Status.SUCCESS)).unflatten(-1, (-1, self.substeps)).any(-1)
        return failed.cumsum(-1) == 0

    def _observed(self, z: Tensor) -> Tensor:
        """States at the samples (N, T, 13 nb) from rollouts (N, …, 13 nb), with mean velocities since the sample before."""
        if self.substeps == 1:
            return z[..., 1:, :]
        steps = z[..., 1:, :].unflatten(-2, (-1, self.substeps)).unflatten(-1, (-1, STATE_SIZE))
        last, mean = steps[..., -1, :, :], steps.mean(-3)
        return torch.cat((last[..., POSITION], mean[..., VELOCITY], last[..., ORIENTATION], mean[..., ANGULAR_VELOCITY]), dim=-1).flatten(
            -2
        )

    def _compare(self, z: Tensor, samples: Tensor, raw: Tensor | None = None) -> Tensor:
        """Scaled misfit (..., R) of states z (..., 13 nb) to samples (..., width), with positions of centers of mass."""
        mech, recorded = self.model.mechanism, self._recorded(samples, raw)
        state = z.unflatten(-1, (-1, STATE_SIZE))[..., self._bodies, :]
        turn = quat.rotation_vector(quat.multiply(quat.conjugate(recorded[..., ORIENTATION]), state[..., ORIENTATION]))
        spin = arc_velocity(state[..., ANGULAR_VELOCITY], mech.timestep)
        shift, velocity = (state[..., part] - recorded[..., part] for part in (POSITION, VELOCITY))
        parts = (shift, velocity, turn, spin - recorded[..., ANGULAR_VELOCITY])
        misfit = torch.cat(parts, dim=-1).flatten(-2)
        if self._columns:
            angle, rate = self.recordings.joints(samples)
            q, qd = mech.to_minimal(z)
            misfit = torch.cat((misfit, wrapped(q[..., self._columns] - angle), qd[..., self._columns] - rate), dim=-1)
        return misfit[..., self._kept] / self._scale

    def _recorded(self, samples: Tensor, raw: Tensor | None) -> Tensor:
        """Recorded bodies (..., b, 13) of samples (..., width), moved to the centers of mass that the parameters say."""
        return self.model.centred(self.recordings.bodies(samples), self.recordings.dt, raw)

    def _compare_directly(self, z: Tensor, samples: Tensor, raw: Tensor) -> Tensor:
        """Derivative (N, K, R, P) of `_compare` by `raw` (P,) through the samples alone, at fixed states z (N, K, 13 nb)."""
        if self.model.recorded_points is None:
            return z.new_zeros(*z.shape[:-1], len(self._kept), len(raw))
        with torch.enable_grad():
            rows = raw.detach().expand(*z.shape[:-1], -1).clone().requires_grad_()
            return _rows(lambda r: r, self._compare(z.detach(), samples, rows), rows)

    def _compare_jacobian(self, z: Tensor, samples: Tensor, raw: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """`_compare` and its Jacobian (..., R, 12 nb) on the tangent space."""
        if self._columns or any(i % TANGENT_SIZE in (9, 10, 11) for i in self._kept.tolist()):
            with torch.enable_grad():
                tangent = z.new_zeros(*z.shape[:-1], TANGENT_SIZE * self.model.mechanism.num_bodies).requires_grad_()
                misfit = self._compare(self.model.mechanism.retract(z, tangent), samples, raw)
                return misfit.detach(), _rows(lambda r: r, misfit, tangent)
        # Poses and velocities of bodies alone are differences, but for the rotation vector φ of q_recorded⁻¹ q. A turn δ in the body frame
        # changes φ by J⁻¹δ, with the inverse right Jacobian J⁻¹ = 1 + ½[φ]× + (1/|φ|² − (1 + cos|φ|)/(2|φ| sin|φ|)) [φ]×².
        with torch.no_grad():
            misfit = self._compare(z, samples, raw)
            state, recorded = z.unflatten(-1, (-1, STATE_SIZE))[..., self._bodies, :], self._recorded(samples, raw)
            phi = quat.rotation_vector(quat.multiply(quat.conjugate(recorded[..., ORIENTATION]), state[..., ORIENTATION]))
            angle = torch.linalg.vector_norm(phi, dim=-1)[..., None, None]
            wide = angle.clamp(1e-3, torch.pi - 1e-9)
            factor = torch.where(angle < 1e-3, 1 / 12 + angle**2 / 720, 1 / wide**2 - (1 + wide.cos()) / (2 * wide * wide.sin()))
            cross = skew(phi)
            full = z.new_zeros(*state.shape[:-1], TANGENT_SIZE, len(self.model.mechanism.bodies), TANGENT_SIZE)
            for place, body in enumerate(self._bodies):
                block = full[..., place, :, body, :]
                block.diagonal(dim1=-2, dim2=-1).fill_(1.0)
                block[..., 6:9, 6:9] += 0.5 * cross[..., place, :, :] + (factor * cross @ cross)[..., place, :, :]
            jacobian = full.flatten(-2).flatten(-3, -2)
        return misfit, jacobian[..., self._kept, :] / self._scale[:, None]


class WindowLoss(nn.Module):
    """Mean robust loss over windows and samples, for optimizers of torch: ``loss(windows).backward()``.

    Args:
        model, recordings, scales: as in `WindowResidual`. robust: default the squared norm. Failed steps count nothing.
        free_start: whether the states at the starts of windows are unknowns, too, as in `LeastSquares`: the parameter `start` (N, D), a
            change of each sample of the recordings, in units of the scales. Calls then say with which samples their windows start:
            ``loss(dataset[index], first=dataset.starts[index])``.
    """

    start: nn.Parameter | None

    def __init__(
        self,
        model: ParametricMechanism,
        recordings: Recordings,
        scales: Scales | None = None,
        robust: RobustLoss | None = None,
        *,
        free_start: bool = False,
    ) -> None:
        super().__init__()
        self.model = model
        self.misfit = WindowResidual(model, recordings, scales)
        self.robust = robust or RobustLoss()
        shape = len(recordings.samples), self.misfit.start_size
        self.register_parameter("start", nn.Parameter(torch.zeros(shape, dtype=torch.float64)) if free_start else None)

    def forward(self, windows: Tensor, raw: Tensor | None = None, first: Tensor | None = None) -> Tensor:
        """Mean of ½ ρ(|r|²) over windows and samples, ().

        Args:
            windows: (N, T + 1, width). raw: (P,); None: the model's own. first: (N,), rows of the first samples in the recordings, with
                `free_start`.

        Raises:
            ValueError: `first` without free starts, or missing, or not that of the windows.
        """
        return self.evaluate(windows, raw, first)[0]

    def evaluate(self, windows: Tensor, raw: Tensor | None = None, first: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """The loss, (), and the part of the samples that it counts, (): samples behind a failed step do not count."""
        misfit, solved = self.misfit.evaluate(windows, raw, self.starts(windows, first))
        return 0.5 * self.robust(misfit.square().sum(-1)).sum() / solved.sum().clamp_min(1), solved.to(misfit.dtype).mean()

    def starts(self, windows: Tensor, first: Tensor | None) -> Tensor | None:
        """Samples (N, width) from which windows start, changed by `start`; None where they are the recorded ones.

        Raises:
            ValueError: as `forward`.
        """
        if self.start is None:
            if first is not None:
                raise ValueError("WindowLoss: got first= without free starts; make the loss with free_start=True, or leave first out")
            return None
        recorded = self.misfit.recordings.samples
        if first is None or first.shape != windows.shape[:1] or not torch.equal(recorded[first], windows[:, 0]):
            got = None if first is None else tuple(first.shape)
            raise ValueError(
                f"WindowLoss(free_start=True): got first of shape {got} for {len(windows)} windows; allowed: the rows of their first "
                "samples, (N,): loss(dataset[index], first=dataset.starts[index])"
            )
        return self.misfit.correct(windows[:, 0], self.misfit.start_units * self.start[first])


def _rows(function: Callable[[Tensor], Tensor], output: Tensor, *inputs: Tensor) -> Tensor:
    """Jacobian (*batch, m, n) of function(output) (*batch, m) by the inputs (*batch, n_i) of the output, row by row of the batch.

    Every entry of the batch depends on its own inputs alone, so one cotangent per component serves all entries.
    """
    value = function(output)
    m = value.shape[-1]
    if not value.requires_grad:
        return value.new_zeros(*value.shape, sum(i.shape[-1] for i in inputs))
    cotangents = torch.eye(m, dtype=value.dtype).reshape(m, *(1,) * (value.ndim - 1), m).expand(m, *value.shape)

    def pull(cotangent: Tensor) -> tuple[Tensor, ...]:
        gradients = torch.autograd.grad(value, inputs, cotangent, retain_graph=True, allow_unused=True)
        return tuple(torch.zeros_like(i) if g is None else g for g, i in zip(gradients, inputs, strict=True))

    return torch.cat(torch.vmap(pull)(cotangents), dim=-1).movedim(0, -2)


def skew(u: Tensor) -> Tensor:
    """[u]× (..., 3, 3), with [u]× a = u × a."""
    return torch.linalg.cross(u[..., None, :], torch.eye(3, dtype=u.dtype).expand(*u.shape, 3)).mT


def arc_velocity(omega: Tensor, timestep: Tensor) -> Tensor:
    """Inverse of `parameters.chord_velocity`: the ω for which q⁺ = q exp(hω)."""
    half = 0.5 * timestep * omega
    squared = (half * half).sum(-1, keepdim=True)
    small = squared < 1e-16
    sine = torch.where(small, torch.ones_like(squared), squared).sqrt()
    return omega * torch.where(small, 1 + squared / 6, sine.clamp_max(1.0).asin() / sine)


def batch_size(windows: Tensor, substeps: int, budget: int = 8 * CHUNK) -> int:
    """Number of windows with about `budget` steps together, to bound the memory of Jacobians."""
    return max(1, budget // ((windows.shape[1] - 1) * substeps))
