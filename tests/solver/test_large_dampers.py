"""Very large dampers lock a joint: rounding above the absolute tolerance flags no step, and derivatives stay right."""

from __future__ import annotations

import dataclasses

import pytest
import torch

import torchdojo as td
from torchdojo.native import loader

CASES = {"pendulum": (1, (0,)), "link of a chain": (4, (2,)), "two links": (4, (0, 2))}  # number of links, which ones are damped


def chain(count: int, damped: tuple[int, ...], damper: float, kind: str = "Revolute") -> td.Mechanism:
    joints = {
        f"j{i}": getattr(td, kind)(
            f"b{i - 1}" if i else None,
            f"b{i}",
            axis=(0, 1, 0),
            parent_anchor=(0, 0, -0.5 if i else 0),
            child_anchor=(0, 0, 0.5),
            damper=damper if i in damped else 0.1,
        )
        for i in range(count)
    }
    return td.Mechanism({f"b{i}": td.Body(1.0, (0.1, 0.1, 0.01)) for i in range(count)}, joints, timestep=0.01)


@pytest.mark.skipif(not loader.available(), reason="no compiler for the native kernel")
@pytest.mark.parametrize("damper", [1e6, 1e9, 1e11])
@pytest.mark.parametrize("case", CASES)
def test_a_locked_joint(case: str, damper: float) -> None:
    """No step is flagged, damped joints creep by torque/d, kernel and reference agree, and Jacobians are those of differences."""
    count, damped = CASES[case]
    mech = chain(count, damped, damper)
    q = {f"j{i}": {"q": 0.3, "qd": 0.0 if i in damped else 1.0} for i in range(count)}
    path = mech.rollout(mech.initial_state(**q), steps=30)
    moved = (mech.to_minimal(path.z)[0] - 0.3).abs()
    assert not path.status.any() and int(path.iterations.max()) <= 4
    assert float(moved[:, list(damped)].max()) < 50 / damper  # torques of 30 N·m, 0.3 s
    others = [i for i in range(count) if i not in damped]
    assert not others or float(moved[-1, others].min()) > 0.05
    z, u = path.z[3], torch.linspace(-5, 5, count) + 1
    outs, jacobians = [], []
    for backend in ("native", "reference"):
        mech.options = dataclasses.replace(mech.options, backend=backend)
        outs.append(mech.step(z, u))
        jacobians.append(torch.cat(mech.jacobians(z, u), dim=-1))
    assert outs[0].status == outs[1].status == 0
    # Rounding of the first iteration, damper ε, is above the tolerance in one of them and below in the other.
    assert abs(int(outs[0].iterations - outs[1].iterations)) <= (damper > 1e6)
    # Both solve for velocities whose difference the damper multiplies: rounding of this is damper ε beside moments of inertia of 0.1.
    rounding = 1e-12 + 1e-15 * damper
    assert float((outs[0].z - outs[1].z).abs().max()) < rounding
    assert float((jacobians[0] - jacobians[1]).abs().max()) < rounding * float(jacobians[1].abs().max())
    mech.options = td.SolverOptions(backend="native")
    step = 0.1  # a step is nearly linear in its inputs, and rounding is amplified least
    moves = step * torch.cat((torch.eye(count), -torch.eye(count)))
    plus, minus = mech.difference(mech.step(z, u + moves).z, outs[0].z).chunk(2)
    numeric, analytic = (plus - minus).mT / (2 * step), jacobians[0][:, -count:]
    assert float((analytic - numeric).abs().max()) < 1e-6 * max(float(numeric.abs().max()), 0.01)


@pytest.mark.parametrize("kind", ["Prismatic", "Spherical", "Cylindrical", "Planar"])
def test_other_joints(kind: str) -> None:
    """Translations and several rotations. A tolerance of rounding alone would swallow what such a small torque does to the next link."""
    mech = chain(3, (1,), 1e11, kind)
    z = mech.initial_state()
    mech.gravity = torch.zeros(3)
    u = torch.zeros(mech.num_inputs)
    first = mech.input_layout["j2"].start
    u[first] = 1e-3
    out = mech.step(z, u)
    free = chain(3, (1,), 1e6, kind)
    free.gravity = torch.zeros(3)
    wanted = free.step(z, u)
    assert out.status == 0 == wanted.status
    rates, expected = mech.to_minimal(out.z)[1], free.to_minimal(wanted.z)[1]
    assert float(rates[first]) == pytest.approx(float(expected[first]), rel=1e-4) and abs(float(expected[first])) > 1e-6


def arm_on_a_base(damper: float, closed: bool) -> td.Mechanism:
    """An arm that touches the ground, on a base that dampers and a pressed contact hold; a spring to the world may close a loop."""
    joints: dict[str, td.Joint] = {
        "slide": td.FixedOrientation(None, "base", parent_anchor=(1, 0.5, 0), child_anchor=(-0.2, 0.1, -0.5), damper=damper),
        "shoulder": td.Revolute("base", "arm", axis=(0, 1, 0), parent_anchor=(0.3, 0, -0.3), child_anchor=(-0.2, 0, 0), damper=0.3),
    }
    if closed:
        joints["spring"] = td.Floating(None, "arm", parent_anchor=(1.5, 0.4, 0.0), spring=(4, 4, 4, 0, 0, 0), damper=4.0)
    bodies = {"base": td.Body(5.0, (0.2, 0.3, 0.4)), "arm": td.Body(1.0, (0.02, 0.02, 0.004))}
    contacts = {"tip": td.NonlinearContact("arm", point=(0.2, 0, 0)), "wheel": td.NonlinearContact("base", point=(0.3, 0.2, -0.5))}
    return td.Mechanism(bodies, joints, contacts, options=td.SolverOptions(kappa=1e-4))


@pytest.mark.skipif(not loader.available(), reason="no compiler for the native kernel")
@pytest.mark.parametrize(
    ("damper", "closed"),
    [pytest.param(1e3, True, marks=pytest.mark.slow), pytest.param(1e7, True, marks=pytest.mark.slow), (1e11, True), (1e11, False)],
)
@pytest.mark.filterwarnings("ignore:contact 'tip' starts")
def test_gradients(damper: float, closed: bool) -> None:
    """The base starts on the ground, so its wheel presses with √(damper κ), and rows of its joint resist with 1e8 kg.

    The regularization of joint rows is 1e-10 of that, and one refinement leaves 1e-3 of the gradient.
    """
    mech = arm_on_a_base(damper, closed)
    path = mech.rollout(mech.initial_state(shoulder={"q": 0.9}), steps=60)
    assert not path.status.any() and float(mech.distances(path.z[-1]).max()) < 5e-3
    for backend in ("native", "reference"):
        mech.options = dataclasses.replace(mech.options, backend=backend)
        td.testing.check_gradients(mech, path.z[-1], parameters=False, directions=1, tolerance=1e-6)
