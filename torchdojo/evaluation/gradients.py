"""The experiments of `torchdojo evaluate gradients`: one function each, in the order in which they run.

They repeat figure 4 of Dojo (Howell et al. 2025). A force from 0 to 20 N displaces a box at rest on the floor, up against its weight or
sideways against friction. The box does not move until the force is large enough, so the point-wise gradient is zero there and does not
see the other side. Smoothed gradients see it: ours at larger κ, and randomized smoothing (Suh et al. 2022; first order, 500 samples).
"""

from __future__ import annotations

import itertools
import math
from typing import Any

import torch
from torch import Tensor

from torchdojo.elements.bodies import Body
from torchdojo.elements.contacts import NonlinearContact
from torchdojo.elements.joints import Floating
from torchdojo.evaluation.experiment import Experiment, Line, Measurement, Outcome, Plot, Setting
from torchdojo.mechanism import Mechanism
from torchdojo.solver.options import RandomizedSmoothing, SolverOptions

__all__ = ["EXPERIMENTS"]

MASS, HALF, FRICTION, GRAVITY, TIMESTEP = 1.0, 0.25, 0.5, 9.81, 0.1
SLOPE = TIMESTEP**2 / MASS  # displacement per force of a box that moves [m/N]
KAPPAS = (1e-1, 1e-2, 1e-3, 1e-4, 1e-5)
DEVIATIONS = (0.3, 1.0, 3.0)  # [N]: covariances of 0.1, 1 and 9 N²
SAMPLES = 500
OVERSHOOT = 1e-3  # largest relative overshoot of smoothed gradients
FAR = 3.0  # distance [N] from the switching force beyond which gradients at the smallest κ must be the point-wise gradients


def _box() -> tuple[Mechanism, Tensor]:
    """A cube of 0.5 m and 1 kg, and its state at rest on four corners."""
    corners = itertools.product((-HALF, HALF), repeat=2)
    points = {f"corner{i}": NonlinearContact("box", point=(x, y, -HALF), friction=FRICTION) for i, (x, y) in enumerate(corners)}
    inertia = (MASS * HALF**2 * 2 / 3,) * 3
    mech = Mechanism({"box": Body(MASS, inertia)}, {"base": Floating(None, "box")}, points, timestep=TIMESTEP, gravity=(0, 0, -GRAVITY))
    mech = mech.to(torch.float64)
    mech.options = SolverOptions(kappa=1e-6)
    z = mech.initial_state(box=dict(position=(0.0, 0.0, HALF)))
    return mech, mech.rollout(z, steps=10).z[-1]


def _displacement(setting: Setting, axis: int, switch: float, what: str) -> Outcome:
    """Compare gradients of the displacement along `axis` by the force with the closed form: SLOPE above `switch`."""
    mech, z = _box()
    force = torch.linspace(0.0, 20.0, 41 if setting.quick else 161, dtype=torch.float64)
    u = force.new_zeros(len(force), mech.num_inputs)
    u[:, axis] = force
    start = z.expand(len(force), -1)

    def gradient(grad_kappa: float | None = None, **options: Any) -> Tensor:
        mech.options = SolverOptions(kappa=1e-6, **options)
        return mech.jacobians(start, u, grad_kappa=grad_kappa)[1][:, axis, axis] / SLOPE

    moves = (force > switch).to(force.dtype)
    exact = gradient(gradient_mode="exact")
    rows = [Measurement("exact_error", "exact: largest error, relative to a moving box", _largest(exact - moves), at_most=1e-6)]
    lines = {"point-wise (exact)": exact}
    for kappa in KAPPAS:
        smoothed, name = gradient(kappa), f"kappa_{kappa:.0e}".replace("-", "m")
        lines[f"κ = {kappa:g}"] = smoothed
        beyond = max(float(smoothed.max()) - 1, -float(smoothed.min()))
        away = _largest((smoothed - moves)[(force - switch).abs() > FAR])
        rows += [
            Measurement(f"{name}_at_rest", f"κ = {kappa:g}: gradient at no force, relative to a moving box", float(smoothed[0])),
            Measurement(f"{name}_beyond", "overshoot beyond the range of point-wise gradients", beyond, at_most=OVERSHOOT),
            Measurement(
                f"{name}_away", f"largest difference to the point-wise gradient, {FAR:g} N and more from the switch", away,
                at_most=1e-2 if kappa == min(KAPPAS) else None,
            ),
        ]  # fmt: skip
    pushed = [0.0] * mech.num_inputs
    for deviation in DEVIATIONS:
        pushed[axis] = deviation
        smoothing = RandomizedSmoothing(samples=SAMPLES, input_deviation=tuple(pushed), mode="exact")
        smoothed = gradient(gradient_mode="randomized", randomized=smoothing)
        wanted = 0.5 * torch.erfc((switch - force) / (deviation * math.sqrt(2)))
        lines[f"randomized, σ² = {deviation**2:.2g} N²"] = smoothed
        name = f"randomized_{deviation:g}_N".replace(".", "_")
        rows += [
            Measurement(f"{name}_at_rest", f"randomized, σ = {deviation:g} N: gradient at no force", float(smoothed[0])),
            # The mean of 500 zeros and ones is off by at most 4.5 of its standard deviations, each at most 0.5/√500.
            Measurement(f"{name}_error", "largest error against the mean of all samples", _largest(smoothed - wanted), at_most=0.1),
        ]
    curves = {label: Line(force.numpy(), (SLOPE * values).numpy()) for label, values in lines.items()}
    plot = Plot("gradient", f"Box at rest, {what}, one step of {TIMESTEP:g} s", "force [N]", "d displacement / d force [m/N]", curves)
    notes = [f"the box begins to move at {switch:.3g} N; a moving one is displaced by {SLOPE:g} m/N"]
    return Outcome(rows, [plot], notes=notes)


def _largest(difference: Tensor) -> float:
    return float(difference.abs().max())


def impact(setting: Setting) -> Outcome:
    """The force lifts the box."""
    return _displacement(setting, 2, MASS * GRAVITY, "lifted against its weight")


def friction(setting: Setting) -> Outcome:
    """The force pushes the box sideways."""
    return _displacement(setting, 0, FRICTION * MASS * GRAVITY, "pushed against friction")


EXPERIMENTS = (
    Experiment("impact", "A box lifted off the floor: smoothed gradients see across the switch", impact),
    Experiment("friction", "A box pushed against friction: smoothed gradients see across the switch", friction),
)
