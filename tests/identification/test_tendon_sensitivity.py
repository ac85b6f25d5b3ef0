"""Derivatives of steps by the numbers of tendons: those of the kernel are those of reverse mode."""

from __future__ import annotations

import pytest
import torch

import torchdojo as td
from torchdojo.identification import Parameter, ParametricMechanism, WindowResidual, record_rollouts
from torchdojo.identification.recordings import recordings_of
from torchdojo.native import loader

native = pytest.mark.skipif(not loader.available(), reason="no compiler for the native kernel")
H = 0.005
TOLERANCE = 1e-8  # relative to the largest number: both differentiate one solution, at residuals of 1e-10, which stiff limits magnify
PLACES = {
    "base": td.Site(None, (0.05, 0.0, 0.02)),
    "middle": td.Site("low", (0.03, 0.01, -0.02)),
    "end": td.Site("high", (0.03, 0.0, -0.05)),
}
LAWS = {"stiffness": 300.0, "damping": 2.0, "rest": 0.12}
PARAMETERS = {
    "moment arms": Parameter("arms", (0.03, -0.02), "tendons.sum.coefficients"),
    "axis of a joint": Parameter("axis", (0.1, 1.0, 0.0), "joints.tip.axis"),
    "springs": Parameter("k", 300.0, "tendons.*.stiffness"),
    "dampers": Parameter("d", 2.0, "tendons.*.damping"),
    "rest": Parameter("rest", 0.12, ("tendons.*.rest_lower", "tendons.*.rest_upper")),
    "limits": Parameter("limits", 4e3, "tendons.*.limit_stiffness"),
    "friction": Parameter("friction", 0.3, "tendons.*.friction"),
    "points": Parameter("points", ((0.05, 0.0, 0.02), (0.03, 0.01, -0.02), (0.03, 0.0, -0.05)), "tendons.string.points"),
    "radius": Parameter("radius", (0.02,), "tendons.string.radii"),
    "mass": Parameter("mass", 0.2, "bodies.high.mass"),
}


def finger(**laws: float) -> td.Mechanism:
    """Two hinges, pulled by a sum of their angles and by a string around the first."""
    around = td.Wrap(td.Site("low", (0.0, 0.0, 0.09), (0.7071067811865476, 0.7071067811865476, 0.0, 0.0)), 0.02, "cylinder")
    more = {"limits": (0.13, 0.16), "limit_stiffness": 4e3, "friction": 0.3, **LAWS, **laws}
    return td.Mechanism(
        {"low": td.Body(0.3, (2e-3, 2e-3, 1e-3)), "high": td.Body(0.2, (1e-3, 1e-3, 5e-4))},
        {
            "knuckle": td.Revolute(None, "low", axis=(0, 1, 0), child_anchor=(0, 0, 0.1)),
            "tip": td.Revolute("low", "high", axis=(0.1, 1, 0), parent_anchor=(0, 0, -0.1), child_anchor=(0, 0, 0.08)),
        },
        tendons={
            "sum": td.FixedTendon({"knuckle": 0.03, "tip": -0.02}, offset=0.13, **more),
            "string": td.SpatialTendon(["base", around, "middle", "end"], sites=PLACES, **more),
        },
        timestep=H,
        options=td.SolverOptions(residual_tol=1e-12),
    )


def residual(mech: td.Mechanism, *parameters: Parameter, steps: int = 6) -> WindowResidual:
    model = ParametricMechanism(mech, parameters)
    generator = torch.Generator().manual_seed(1)
    q, qd = (scale * torch.randn(8, 2, generator=generator, dtype=torch.float64) for scale in (0.6, 2.0))
    return WindowResidual(model, recordings_of(record_rollouts(model, mech.to_maximal(q, qd), steps)))


@native
@pytest.mark.parametrize("name", PARAMETERS)
def test_the_kernel_has_the_derivatives_of_reverse_mode(name: str) -> None:
    problem = residual(finger(), PARAMETERS[name])
    raw, mech = problem.model.raw.detach(), problem.model.mechanism
    native = problem._native_sensitivity(raw)
    assert native is not None
    generator = torch.Generator().manual_seed(2)
    q, qd, u = (scale * torch.randn(16, 2, generator=generator, dtype=torch.float64) for scale in (0.6, 2.0, 0.1))
    z = mech.to_maximal(q, qd)
    by_state = torch.empty(16, 24, 26, dtype=torch.float64)
    by_raw, whole = native(z, u, by_state)
    exact_state, exact_raw = problem._reverse(z, u, raw)
    assert bool(whole.all()) and float(exact_raw.abs().max()) > 0
    for ours, exact in ((by_raw, exact_raw), (by_state[..., :24], exact_state)):
        torch.testing.assert_close(ours, exact, rtol=0, atol=TOLERANCE * float(exact.abs().max()))


@native
def test_armatures_of_sums_are_left_to_reverse_mode() -> None:
    """The kernel has no gradients of the rate before the step by numbers of joints."""
    heavy = finger()
    heavy.tendons["sum"] = td.FixedTendon({"knuckle": 0.03, "tip": -0.02}, armature=0.5)
    problem = residual(heavy, PARAMETERS["mass"])
    assert problem._native_sensitivity(problem.model.raw.detach()) is None
