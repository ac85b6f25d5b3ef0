"""Robots of tiny weight: start products in proportion to the weight let them fall and rest; ordinary robots start as ever."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import Tensor

import torchdojo as td
from torchdojo.native import loader
from torchdojo.solver.interior_point import CONTINUATION_LEVELS, DESCENT_LEVEL, START_LEVEL
from torchdojo.solver.start_level import LEAST_WEIGHT, start_level
from torchdojo.testing.conditioning import step_problem

SCALES = {"gram": (0.1, 1e-3), "ten milligrams": (2e-2, 1e-5)}  # of lengths and masses
needs_kernel = pytest.mark.skipif(not loader.available(), reason="no compiler for the native kernel")


def legged(length: float = 1.0, mass: float = 1.0, backend: str = "native") -> td.Mechanism:
    """A box of 1 kg with four hinged legs of 50 g, eight contacts, and lengths and masses times `length` and `mass`.

    Everything else scales with them, so that motions are similar. Times scale with √length, impulses times gaps with mass × length^1.5.
    """
    torque = mass * length
    bodies = {"trunk": td.Body(mass, tuple(mass * length**2 * i for i in (6e-3, 8e-3, 1.2e-2)))}
    hinges, contacts = {}, {}
    for i, (x, y) in enumerate([(1, 1), (1, -1), (-1, 1), (-1, -1)]):
        corner = (0.15 * length * x, 0.1 * length * y, -0.05 * length)
        contacts[f"c{i}"] = td.NonlinearContact("trunk", point=corner, friction=0.6, radius=0.02 * length)
        bodies[f"leg{i}"] = td.Body(0.05 * mass, tuple(0.05 * mass * length**2 * m for m in (2e-3, 2e-3, 2e-4)))
        hinges[f"h{i}"] = td.Revolute(
            "trunk",
            f"leg{i}",
            axis=(0, 1, 0),
            parent_anchor=corner,
            child_anchor=(0, 0, 0.07 * length),
            spring=2.0 * torque,
            damper=0.1 * torque * length**0.5,
            limits=(-1.5, 1.5),
        )
        contacts[f"f{i}"] = td.NonlinearContact(f"leg{i}", point=(0, 0, -0.07 * length), friction=0.6, radius=0.02 * length)
    # The tolerance is 1e-5 of the impulse of the weight. From absolute start products, 2 of 100
    # cold starts of the robot of 10 mg fail within these iterations.
    options = td.SolverOptions(
        kappa=1e-6 * mass * length**1.5, residual_tol=1e-6 * mass * length**0.5, max_total_iterations=300, backend=backend
    )
    return td.Mechanism(bodies, hinges, contacts, timestep=0.01 * length**0.5, options=options)


def falling(mech: td.Mechanism, length: float) -> Tensor:
    """0.3 lengths above the coordinate zero, turning."""
    z = mech.initial_state().unflatten(0, (-1, 13)).clone()
    z[:, 2] += 0.3 * length
    z[0, 10:] = torch.tensor([1.0, 2.0, 0.5], dtype=z.dtype) / length**0.5
    return z.flatten()


def jacobian_error(mech: td.Mechanism, z: Tensor, length: float, mass: float, step: float = 1e-9) -> float:
    """Largest difference of the Jacobian from central differences, in units of this size, relative to the largest entry.

    The differences err in proportion to step²: by up to 4e-6 at 1e-9, 4e-4 at 1e-8.
    """
    units = torch.tensor([length, length**0.5, 1.0, length**-0.5], dtype=z.dtype).repeat_interleave(3).repeat(mech.num_bodies)
    steps = step * torch.cat((units, units.new_full((mech.num_inputs,), mass * length)))
    base = mech.step(z)
    assert base.status == 0
    analytic = torch.cat(mech.jacobians(z, z.new_zeros(mech.num_inputs)), dim=-1) * steps / units[:, None]
    moves = torch.cat((torch.diag(steps), -torch.diag(steps)))
    moved = mech.retract(z.expand(len(moves), -1), moves[:, : len(units)])
    plus, minus = mech.difference(mech.step(moved, moves[:, len(units) :]).z, base.z.expand(len(moves), -1)).chunk(2)
    numeric = 0.5 * (plus - minus).mT / units[:, None]
    return float((analytic - numeric).abs().max() / numeric.abs().max())


@needs_kernel
@pytest.mark.filterwarnings("ignore:initial_state")
@pytest.mark.parametrize("scale", SCALES)
def test_a_tiny_robot_falls_and_rests(scale: str) -> None:
    """No step is flagged, from warm and from cold starts; kernel and reference take the same iterations; gradients are right."""
    length, mass = SCALES[scale]
    mech = legged(length, mass)
    z, warm, states, starts = falling(mech, length), None, [], []
    for _ in range(100):
        out = mech.step(z, warm_start=warm)
        assert out.status == 0
        states.append(z), starts.append(out.solution)
        z, warm = out.z, out.solution
    assert float(mech.distances(z).min()) > -1e-3 * length
    assert float(z.unflatten(0, (-1, 13))[:, 3:6].abs().max()) < 0.1 * length**0.5  # falls reach 2.4 √length m/s
    many = torch.stack(states)
    assert not mech.step(many).status.any()  # cold starts

    some = torch.arange(1, 100, 3)  # falling, landing and resting
    before = torch.stack(starts)[some - 1]
    outs = []
    for backend in ("native", "reference"):
        mech.options = dataclasses.replace(mech.options, backend=backend)
        outs.append(mech.step(many[some], warm_start=before))
    assert torch.equal(outs[0].iterations, outs[1].iterations) and not outs[1].status.any()
    assert float((outs[0].z - outs[1].z).abs().max()) < 1e-8 * length  # rounding, relative to gaps and masses of this size
    mech.options = dataclasses.replace(mech.options, backend="native", central_path_tol=1e-6, min_iterations=8, max_halvings=0)
    for k in (0, 30, 99):
        assert jacobian_error(mech, states[k], length, mass) < 1e-5


@pytest.mark.filterwarnings("ignore:initial_state")
@pytest.mark.parametrize("level", [START_LEVEL, DESCENT_LEVEL, *CONTINUATION_LEVELS])
def test_levels(level: float) -> None:
    """Levels of ordinary robots keep every bit. Others scale with the weight of each environment, down to kappa; no weight changes none."""
    kappa = 1e-6

    def levels(mech: td.Mechanism) -> Tensor:
        return start_level(step_problem(mech, mech.initial_state()), level, kappa)

    h = 0.01
    for mass, gravity in ((LEAST_WEIGHT / (9.81 * h) * (1 + 1e-12), -9.81), (1.0, -9.81), (1e3, -9.81), (1.0, 0.0), (1e-9, 0.0)):
        assert levels(td.models.box(mass=mass, gravity=(0, 0, gravity), timestep=h)).tolist() == [level]
    light = levels(td.models.box(mass=1e-3, timestep=h))
    assert light.item() == pytest.approx(level * 1e-3 * 9.81 * h / LEAST_WEIGHT, rel=1e-12)
    assert levels(td.models.box(mass=1e-12, timestep=h)).tolist() == [kappa]
