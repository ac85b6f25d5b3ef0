"""Rollouts under feedback and with a budget, in the kernel, against a loop over steps in Python."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
import torch
from torch import Tensor

import torchdojo as td
from torchdojo.native import loader

pytestmark = pytest.mark.skipif(not loader.available(), reason="no compiler for the native kernel")

OPTIONS = td.SolverOptions(kappa=1e-4, residual_tol=1e-12, central_path_tol=1e-8, min_iterations=3)
STEPS = 12


def loop(mech: td.Mechanism, z: Tensor, nominal: Any, inputs: Tensor, rule: dict[str, Any], driven: bool, repeat: int) -> Any:
    """States, inputs and status of a rollout in Python."""
    states, applied, status, warm = [z], [], [], None
    lower, upper = rule["bounds"]
    for t in range(inputs.shape[-2]):
        if isinstance(nominal, tuple):
            error = mech.difference_minimal(*mech.to_minimal(z), nominal[0][..., t, :], nominal[1][..., t, :])
        else:
            error = mech.difference(z, nominal[..., t, :])
        u = inputs[..., t, :] + rule["scale"][..., None] * rule["feedforward"][..., t, :]
        u = (u + (rule["gain"][..., t, :, :] @ error[..., None])[..., 0]).clamp(lower, upper)
        out = mech.step(z, **{"ctrl" if driven else "u": u}, repeat=repeat, warm_start=warm)
        z, warm = out.z, out.solution
        states.append(z), applied.append(u), status.append(out.status)
    return torch.stack(states, -2), torch.stack(applied, -2), torch.stack(status, -1)


@pytest.mark.parametrize("minimal", [False, True])
def test_candidates_against_a_loop(minimal: bool) -> None:
    """Two problems of a quadruped on its feet, with two gains and three step sizes each."""
    torch.manual_seed(0)
    mech = td.models.quadruped(timestep=0.02, contact_body=False)
    mech.options = OPTIONS
    start = mech.rollout(td.models.initial_state("quadruped", mech), steps=30).z[-1]
    z = mech.rollout(start, 0.5 * torch.randn(2, 1, mech.num_inputs)).z[:, -1]
    inputs, nu = 0.3 * torch.randn(2, STEPS, mech.num_inputs), mech.num_inputs
    path = mech.rollout(z, inputs)
    size = 2 * mech.num_coordinates if minimal else 12 * mech.num_bodies
    nominal: Any = tuple(value[:, None, None] for value in mech.to_minimal(path.z)) if minimal else path.z[:, None, None]
    # With gains of 0.3, a change of 1e-15 at the start would be one of 3e-7 after these steps; with 0.1, one of 3e-12.
    rule = {
        "gain": (0.1 if minimal else 0.05) * torch.randn(2, 2, 1, STEPS, nu, size),
        "feedforward": torch.randn(2, 2, 1, STEPS, nu),
        "scale": torch.tensor((1.0, 0.5, 0.0)),
        "bounds": (-1.5, 1.5),
    }
    states, applied, status = loop(mech, z[:, None, None].expand(2, 2, 3, -1), nominal, inputs[:, None, None], rule, False, 1)
    out = mech.rollout_feedback(z[:, None, None], nominal, inputs[:, None, None], **rule, keep_solutions=True)
    assert out.z.shape == states.shape == (2, 2, 3, STEPS + 1, z.shape[-1]) and int(status.max()) == 0 == int(out.status.max())
    assert float((out.z - states).abs().max()) < 1e-10 and float((out.u - applied).abs().max()) < 1e-10
    assert bool((applied.abs() == 1.5).any()) and bool((applied.abs() < 1.5).any())
    assert float(mech.distances(out.z[..., -1, :]).min()) < 1e-3 and out.solution.shape[-2] == STEPS
    # Iterations that start from the nominal steps end where others do, and are fewer. Far from them a step with friction may have
    # several solutions, and which of them is found depends on the start.
    kept = mech.rollout(z, inputs, keep_solutions=True).solution[:, None, None]
    mech.options, calm = dataclasses.replace(OPTIONS, min_iterations=0), rule | {"gain": None, "feedforward": 0.1 * rule["feedforward"]}
    there, usual = (mech.rollout_feedback(z[:, None, None], nominal, inputs[:, None, None], **calm, solution=w) for w in (kept, None))
    assert float((there.z - usual.z).abs().max()) < 1e-9 and int(there.status.max()) == 0
    assert int(there.iterations.sum()) < int(usual.iterations.sum())
    mech.options = OPTIONS
    one = mech.rollout_feedback(z[0], path.z[0], inputs[0], feedforward=rule["feedforward"][0, 0, 0])
    assert one.status.shape == (STEPS,) and one.z.shape == path.z[0].shape
    # A step size of zero and no gain follow the nominal trajectory.
    rule |= {"gain": None, "scale": 0.0, "bounds": None}
    same = mech.rollout_feedback(z, None, inputs, feedforward=rule["feedforward"][:, 0, 0], scale=0.0)
    assert torch.equal(same.z, path.z) and torch.equal(same.u, inputs)


def chain() -> td.Mechanism:
    """Joints with one to six coordinates and servos on some, of which one turns on and on."""
    bodies = {name: td.Body(mass=1.0, inertia=(0.1, 0.2, 0.15)) for name in "abcd"}
    joints = {
        "wheel": td.Revolute(None, "a", axis=(0, 1, 0)),
        "slide": td.Prismatic("a", "b", axis=(0, 0.6, 0.8), child_anchor=(0.1, 0, 0), spring=5.0),
        "ball": td.Spherical("b", "c", parent_anchor=(0.1, 0, 0.2), orientation_offset=(0.8, 0.6, 0, 0)),
        "two": td.Orbital("c", "d", axis=(0, 0, 1), child_anchor=(0, 0.1, 0)),
    }
    mech = td.Mechanism(bodies, joints, timestep=0.05, gravity=(0, 0, 0), options=OPTIONS)
    servo = dict(gain=5.0, bias=(0.0, -5.0, -0.5))
    td.actuate(mech, {"wheel": td.Actuator("wheel", gain=1.0), "slide": td.Actuator("slide", **servo)}, servos="explicit")
    return mech


@pytest.mark.parametrize("repeat", [1, 3])
def test_controls_and_representations(repeat: int) -> None:
    torch.manual_seed(1)
    mech = chain()
    n = mech.num_coordinates
    q, qd = 0.3 * torch.randn(3, n), torch.randn(3, n)
    places = mech.coordinate_places()
    q[:, places["wheel"]], qd[:, places["wheel"]] = 6.0, 4.0  # beyond 2π soon, where the coordinate jumps by 4π
    q[:, places["ball"]], qd[:, places["ball"]] = torch.tensor((0.0, 2.9, 0.5)), torch.tensor((0.0, 4.0, 0.0))  # beyond π
    z, ctrl = mech.to_maximal(q, qd), 0.1 * torch.randn(STEPS, 2)
    path = mech.rollout_minimal(q, qd, ctrl=ctrl, repeat=repeat)
    assert int(path.status.max()) == 0
    nominal = (path.q[:1] + 0.05, path.qd[:1])
    rule = {"gain": 0.1 * torch.randn(STEPS, 2, 2 * n), "feedforward": torch.randn(STEPS, 2), "scale": torch.tensor(0.5), "bounds": (-9, 9)}
    states, applied, _ = loop(mech, z, nominal, ctrl, rule, True, repeat)
    out = mech.rollout_feedback(z, nominal, ctrl=ctrl, **rule, repeat=repeat)
    assert float((out.z - states).abs().max()) < 1e-10 and float((out.u - applied).abs().max()) < 1e-10
    assert float((path.q[:, 1:] - path.q[:, :-1]).abs().max()) > 4  # some coordinate has jumped, and no input has
    assert float(out.u.abs().max()) < 5
    mech.options = dataclasses.replace(OPTIONS, backend="reference")
    rule |= {"gain": rule["gain"][:2], "feedforward": rule["feedforward"][:2]}
    slow = mech.rollout_feedback(z, tuple(value[:, :2] for value in nominal), ctrl=ctrl[:2], **rule, repeat=repeat)
    assert float((out.z[:, :3] - slow.z).abs().max()) < 1e-9 and float((out.u[:, :2] - slow.u).abs().max()) < 1e-9


def test_differences_of_coordinates() -> None:
    torch.manual_seed(2)
    mech = chain()
    q, qd, delta = 0.5 * torch.randn(4, mech.num_coordinates), torch.randn(4, mech.num_coordinates), 0.3 * torch.randn(4, 14)
    moved = mech.retract_minimal(q, qd, delta)
    assert torch.allclose(mech.difference_minimal(*moved, q, qd), delta, atol=1e-13)
    through = mech.to_minimal(mech.to_maximal(*moved))
    assert torch.allclose(mech.difference_minimal(*through, q, qd), delta, atol=1e-10)
    ball = mech.coordinate_places()["ball"]
    turned = q.clone()
    turned[:, ball] *= 1 - 2 * math.pi / q[:, ball].norm(dim=-1, keepdim=True)  # the same rotations
    turned[:, mech.coordinate_places()["wheel"]] += 4 * math.pi
    assert float(mech.difference_minimal(turned, qd, q, qd).abs().max()) < 1e-12


def test_an_environment_beyond_its_budget_is_given_up() -> None:
    mech = td.models.quadruped(timestep=0.02, contact_body=False)
    z = mech.rollout(td.models.initial_state("quadruped", mech), steps=30).z[-1]
    torch.manual_seed(3)
    u = torch.randn(8, 20, mech.num_inputs)
    u[3, 10:] *= 300.0
    free, bound = mech.rollout(z, u), mech.rollout(z, u, budget=30)
    calm = [i for i in range(8) if int(free.iterations[i].max()) < 30 and int(free.substeps[i].max()) == 1]
    assert len(calm) >= 3 and 3 not in calm
    assert torch.equal(free.z[calm], bound.z[calm]) and int(bound.status[calm].max()) == 0
    failed = bound.status[3] != 0
    first = int(failed.nonzero()[0])
    assert first >= 10 and bool(failed[first:].all()) and not bool(bound.iterations[3, first + 1 :].any())
    assert bool((bound.z[3, first:] == bound.z[3, first]).all()) and int(bound.iterations.max()) <= 30
    again = mech.rollout_feedback(z, None, u, budget=30)
    assert torch.equal(again.z, bound.z) and torch.equal(again.status, bound.status)
    periods = mech.rollout(z, u[:, ::2], repeat=2, budget=30)
    worst = periods.status[3]
    assert bool((worst[int((worst != 0).nonzero()[0]) :] != 0).all())
    with pytest.raises(ValueError, match="budget: got 0"):
        mech.rollout(z, u, budget=0)
    with pytest.raises(ValueError, match="one call"):
        mech.rollout(z, lambda z: z.new_zeros(mech.num_inputs), steps=2, budget=5)


def test_what_does_not_fit_is_said() -> None:
    mech = td.models.pendulum()
    z, u = mech.initial_state(), torch.zeros(5, 1)
    gain = torch.zeros(5, 1, 12)
    for options, message in (
        ({"gain": gain}, "gain: got one without a nominal"),
        ({"nominal": z.expand(4, -1), "gain": gain}, r"nominal: got shape \(4, 13\)"),
        ({"nominal": z.expand(5, -1), "gain": gain[..., :2]}, r"gain: got shape \(5, 1, 2\); allowed for nominal states"),
        ({"feedforward": torch.zeros(4, 1)}, "feedforward: got shape"),
        ({"bounds": (1.0, -1.0)}, "bounds: got lower ones above"),
        ({"bounds": 1.0}, "bounds: got"),
        ({"solution": torch.zeros(4, 3)}, r"solution: got shape \(4, 3\); allowed: \(..., 5, "),
        ({"scale": torch.ones(3), "z": z.expand(2, -1)}, "do not broadcast"),
    ):
        given = {"nominal": None, "z": z} | options
        with pytest.raises((ValueError, TypeError), match=message):
            mech.rollout_feedback(given.pop("z"), given.pop("nominal"), u, **given)
    broken = mech.rollout_feedback(z, None, u, feedforward=torch.full((5, 1), math.nan))
    assert broken.status.tolist() == [2] * 5 and bool(broken.z.isfinite().all())


def test_contacts_carry_the_weight() -> None:
    mech = td.models.box()
    path = mech.rollout(mech.place(td.models.initial_state("box", mech)), steps=150, repeat=2)
    forces = mech.contact_forces(path.z[-1], path.impulses[-1], repeat=2)
    assert list(forces) == list(mech.contacts)
    assert float((torch.stack(list(forces.values())).sum(0) + mech.bodies["box"].mass * mech.gravity).abs().max()) < 1e-3
