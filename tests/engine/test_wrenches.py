"""Rollouts with a wrench for each period, and with one as a function of the state."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import torchdojo as td
from torchdojo.native import loader

NATIVE = pytest.mark.skipif(not loader.available(), reason="no compiler")
BACKENDS = ["reference", pytest.param("native", marks=NATIVE)]
STEPS = 5
# Two solutions of the same step differ by what the solver leaves.
TOLERANCE = 1e-9


def pushed_box(backend: str) -> tuple[td.Mechanism, Tensor]:
    """A box on the ground, and states (2, 13) in which it slides."""
    mech = td.models.box(timestep=0.02)
    mech.options = td.SolverOptions(kappa=1e-4, residual_tol=1e-12, central_path_tol=1e-9, backend=backend)
    z = td.models.initial_state("box", mech).expand(2, -1).clone()
    z[:, 2] = 0.25
    z[:, 3:6] = torch.tensor([[1.0, 0.5, 0.0], [-0.4, 0.2, 0.1]])
    return mech, z


def drag(z: Tensor) -> Tensor:
    """Against the velocity and the angular velocity."""
    return torch.cat((-2.0 * z[..., 3:6], -0.05 * z[..., 10:13]), -1)


@pytest.mark.parametrize(
    ("kind", "backend"),
    [
        *(pytest.param(kind, "native", marks=NATIVE) for kind in ("periods", "function")),
        ("function", "reference"),
        pytest.param("periods", "reference", marks=pytest.mark.slow),
    ],
)
def test_as_a_loop_over_steps(backend: str, kind: str) -> None:
    mech, z = pushed_box(backend)
    wrenches = torch.randn(2, STEPS, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    given = {"wrenches": wrenches} if kind == "periods" else {"wrench": drag}
    out = mech.rollout(z, steps=STEPS, repeat=2, **given)
    state, warm = z, None
    for t in range(STEPS):
        wrench = wrenches[:, t] if kind == "periods" else drag(state)
        step = mech.step(state, wrench=wrench, warm_start=warm, repeat=2)
        state, warm = step.z, step.solution
        torch.testing.assert_close(out.z[:, t + 1], state, atol=TOLERANCE, rtol=0)
    assert not out.status.any() and out.z.shape == (2, STEPS + 1, 13)
    again = mech.rollout(z, steps=STEPS, repeat=2, checkpoint=4, **given)
    assert torch.equal(again.z, out.z) and torch.equal(again.solution, out.solution)


@pytest.mark.parametrize("backend", BACKENDS)
def test_equal_wrenches_are_one_that_is_held(backend: str) -> None:
    mech, z = pushed_box(backend)
    wrench = torch.tensor([1.0, -2.0, 0.5, 0.1, 0.0, -0.1], dtype=torch.float64)
    held = mech.rollout(z, steps=STEPS, wrench=wrench)
    each = mech.rollout(z, steps=STEPS, wrenches=wrench.expand(STEPS, 6))
    function = mech.rollout(z, lambda z: torch.zeros(2, 0, dtype=z.dtype), steps=STEPS, wrench=lambda z: wrench)
    torch.testing.assert_close(each.z, held.z, atol=TOLERANCE, rtol=0)
    torch.testing.assert_close(function.z, held.z, atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("backend", [pytest.param("reference", marks=pytest.mark.slow), BACKENDS[1]])
@pytest.mark.parametrize("checkpoint", [False, 4])
def test_gradients(backend: str, checkpoint: bool | int) -> None:
    """Gradients by the wrenches and by the coefficient of a drag, against central differences."""
    mech, z = pushed_box(backend)
    generator = torch.Generator().manual_seed(1)
    wrenches = torch.randn(2, STEPS, 6, generator=generator, dtype=torch.float64)
    weight, along = torch.randn(13, generator=generator, dtype=torch.float64), torch.randn(2, STEPS, 6, generator=generator).double()

    def pushed(s: Tensor) -> Tensor:
        return (mech.rollout(z, steps=STEPS, wrenches=wrenches + s * along, checkpoint=checkpoint).z[:, -1] @ weight).sum()

    def dragged(s: Tensor) -> Tensor:
        return (mech.rollout(z, steps=STEPS, wrench=lambda z: (1 + s) * drag(z), checkpoint=checkpoint).z[:, -1] @ weight).sum()

    for function in (pushed, dragged):
        s = torch.zeros((), dtype=torch.float64, requires_grad=True)
        (slope,) = torch.autograd.grad(function(s), s)
        with torch.no_grad():
            step = torch.tensor(1e-5, dtype=torch.float64)
            difference = (function(step) - function(-step)) / (2 * step)
        assert abs(float(slope - difference)) < 1e-6 * max(1.0, abs(float(difference)))


def test_drag_takes_energy() -> None:
    """A body that flies without gravity loses energy in each step, and a free one keeps it."""
    mech = td.Mechanism({"a": td.Body(2.0, (0.1, 0.2, 0.3))}, timestep=0.01, gravity=(0.0, 0.0, 0.0))
    z = torch.zeros(13, dtype=torch.float64)
    z[3:6], z[6], z[10:13] = torch.tensor((1.0, -2.0, 0.5)), 1.0, torch.tensor((0.5, 2.0, -1.0))
    energy = mech.kinetic_energy(mech.rollout(z, steps=50, wrench=drag).z)
    assert bool((energy.diff() < 0).all()) and float(energy[-1]) < 0.5 * float(energy[0])


def test_bad_wrenches() -> None:
    mech, z = pushed_box("reference")
    with pytest.raises(ValueError, match=r"got both wrench= and wrenches="):
        mech.rollout(z, steps=3, wrench=torch.zeros(6), wrenches=torch.zeros(3, 6))
    with pytest.raises(ValueError, match=r"wrenches: got \(2, 6\); allowed: \(\.\.\., 3, 6\), one for each period"):
        mech.rollout(z, steps=3, wrenches=torch.zeros(2, 6))
    with pytest.raises(ValueError, match=r"wrench"):
        mech.rollout(z, steps=3, wrench=lambda z: z[..., :5])
    with pytest.raises(ValueError, match=r"budget"):
        mech.rollout(z, steps=3, wrench=drag, budget=100)
    with pytest.warns(UserWarning, match=r"wrench: got \(3, 6\), which is held over the 3 periods of as many rollouts.*wrenches="):
        assert mech.rollout(z[0], steps=3, wrench=torch.zeros(3, 6)).z.shape == (3, 4, 13)
