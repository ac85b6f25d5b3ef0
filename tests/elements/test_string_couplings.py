"""Couplings of the lengths of strings: they hold, keep momentum and energy, have gradients, and are elements like others."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor

import torchdojo as td

BACKENDS = ("reference", "native")
SITES = {
    "hook": td.Site(None, (0.3, 0.0, 0.6)),
    "arm": td.Site("arm", (0.05, 0.0, -0.1)),
    "left": td.Site("left", (0.1, 0.0, 0.05)),
    "right": td.Site("right", (-0.1, 0.02, 0.0)),
    "wall": td.Site(None, (1.5, 0.3, 0.9)),
}
POST = td.Wrap(td.Site(None, (0.25, 0.0, 0.45)), 0.05)  # in the world, before a site of the world
BODY = {"mass": 1.0, "inertia": (0.02, 0.03, 0.04)}


def scene(coupling: td.StringCoupling | None, timestep: float = 0.01, gravity: float = -9.81, backend: str = "native") -> td.Mechanism:
    """A pendulum and two bodies that fly."""
    joints = {"hinge": td.Revolute(None, "arm", axis=(0, 1, 0), child_anchor=(0, 0, 0.2))}
    mech = td.Mechanism(
        {name: td.Body(**BODY) for name in ("arm", "left", "right")},
        joints,
        couplings={} if coupling is None else {"string": coupling},
        timestep=timestep,
        gravity=(0.0, 0.0, gravity),
        options=td.SolverOptions(backend=backend, residual_tol=1e-12),
    )
    return mech


def coupling(**law: Any) -> td.StringCoupling:
    """An antagonist: what the string of the pendulum gives, the one between the bodies takes, along a curve. `placed` is on it."""
    law = {"ratio": -0.7, "leader_length": 0.8, "curve": (0.2, -0.1), "offset": 0.0, **law}
    made = td.StringCoupling(["hook", POST, "arm"], ["left", "right", "wall"], sites=SITES, **law)
    if not float(made.offset):
        mech = scene(None)
        made.offset = float(made.constraint(*mech.element_poses(placed(mech), made)))
    return made


def placed(mech: td.Mechanism) -> Tensor:
    """A moving state; of a mechanism with a coupling, with velocities that keep its lengths."""
    left = {"q": (0.6, 0.0, 0.5, 0.1, 0.2, 0.0), "qd": (0.3, 0.5, 0.2, 1.0, -2.0, 0.5)}
    right = {"q": (1.1, 0.1, 0.6, 0.0, 0.3, 0.1), "qd": (-0.2, 0.1, 0.4, 0.5, 1.0, -1.0)}
    z = scene(None).initial_state(world_to_left=left, world_to_right=right, hinge={"q": 0.9, "qd": 1.0})
    return mech.close_loops(z) if mech.couplings else z


@pytest.mark.parametrize("backend", BACKENDS)
def test_it_holds_at_the_next_configuration(backend: str) -> None:
    """500 steps, 20 of the reference; the tolerance is that of residuals, over the largest slope."""
    mech = scene(coupling(), backend=backend)
    z = placed(mech)
    path = mech.rollout(z, steps=500 if backend == "native" else 20)
    assert not path.status.any() and float(mech.joint_errors(path.z)[..., -1].abs().max()) < 1e-11
    assert float(path.impulses[..., mech.impulse_layout["couplings.string"]].abs().max()) > 1e-3
    free = scene(None).rollout(z, steps=20).z
    assert float((free[-1] - path.z[20]).abs().max()) > 0.02


def test_momentum_is_kept() -> None:
    """Two bodies that fly, tied to each other by a string of constant length: linear and angular momentum, 200 steps."""
    string = td.StringCoupling([td.Site("left", (0.1, 0, 0)), td.Site("right", (-0.1, 0, 0))], offset=0.5)
    mech = td.Mechanism(
        {name: td.Body(**BODY) for name in ("left", "right")}, couplings={"string": string}, gravity=(0, 0, 0), timestep=0.01
    )
    mech.options = td.SolverOptions(residual_tol=1e-13)
    z = mech.initial_state(
        world_to_left={"q": (0, 0, 0, 0, 0, 0), "qd": (0, 0.5, 0.2, 1.0, -2.0, 0.5)}, world_to_right={"q": (0.7, 0, 0, 0, 0, 0)}
    )
    path = mech.rollout(z, steps=200).z
    momentum = mech.momentum(path)
    torch.testing.assert_close(momentum, momentum[:1].expand_as(momentum), rtol=0, atol=1e-9)


def test_it_does_no_work_to_the_order_of_the_step() -> None:
    """0.3 s with gravity: energy changes by less than 1 %, and by half at half the step, as the integrator is of first order."""
    swings = []
    for timestep in (2e-3, 1e-3):
        mech = scene(coupling(), timestep)
        path = mech.rollout(placed(mech), steps=round(0.3 / timestep)).z
        energy = mech.kinetic_energy(path) + mech.potential_energy(path)
        swings.append(float((energy - energy[0]).abs().max()))
    assert swings[0] < 0.01 * float(energy.abs().max()) and swings[1] < 0.6 * swings[0], swings


def test_power_of_the_impulse_is_that_of_both_lengths() -> None:
    """λ g·V⁺ over all bodies is λ (ẏ − p′ ẋ), which vanishes with the step, since y − p(x) is zero before and after."""
    rates = []
    for timestep in (2e-3, 1e-3):
        mech = scene(coupling(), timestep)
        z = placed(mech)
        after = mech.step(z).z
        string = mech.couplings["string"]
        (follower, leader), state = string.strings(*mech.element_poses(z, string)), after.unflatten(-1, (-1, 13))
        twists = [None if name is None else state[list(mech.bodies).index(name)] for name in string.body_names]

        def rate(path: Any, twists: list[Any] = twists) -> Tensor:
            return sum((f * t[3:6]).sum() + (m * t[10:]).sum() for (f, m), t in zip(path.pulls, twists, strict=True) if t is not None)

        x = (leader.length - string.leader_length)[None]
        rates.append(float((rate(follower) - string.slope(x)[0] * rate(leader)).abs()))
    assert rates[1] < 0.6 * rates[0] and rates[0] < 0.02, rates


@pytest.mark.parametrize("backend", ["native", pytest.param("reference", marks=pytest.mark.slow)])
@pytest.mark.parametrize("law", [{}, {"compliance": 0.01, "damping": 2.0}, {"active": 0.0}])
def test_gradients_agree_with_differences_of_steps(backend: str, law: dict[str, float]) -> None:
    mech = scene(coupling(**law), backend=backend)
    report = td.testing.check_gradients(mech, placed(mech), directions=3, tolerance=1e-6)
    names = {name.partition(" -> ")[0].removeprefix("couplings.string.") for name in report.errors}
    assert names >= {"ratio", "offset", "leader_length", "curve", "points", "radii", "orientations"}


@pytest.mark.slow
@pytest.mark.parametrize("backend", BACKENDS)
def test_it_is_an_element_like_others(backend: str) -> None:
    joints = {"hinge": td.Revolute(None, "arm", axis=(0, 1, 0), child_anchor=(0, 0, 0.2))}
    z = placed(scene(coupling()))
    report = td.testing.check_element(coupling(), joints=joints, z=torch.stack([z, z, z]))
    assert report.momentum is not None and report.kernel is not None and report.gradients is not None
    for check in report:
        assert check is None or check.value <= check.allowed


def test_without_a_leader_a_string_has_one_length() -> None:
    string = td.StringCoupling(["hook", "arm"], sites=SITES, offset=0.8)
    mech = td.Mechanism({"arm": td.Body(**BODY)}, couplings={"string": string})
    z = mech.close_loops(scene(None).initial_state(hinge={"q": 0.3, "qd": 1.0})[:13])
    path = mech.rollout(z, steps=100)
    assert not path.status.any() and float(mech.joint_errors(path.z).abs().max()) < 1e-9
    point = mech.body_points(path.z, "arm", SITES["arm"].position[None])[..., 0, :]
    length = torch.linalg.vector_norm(point - SITES["hook"].position, dim=-1)
    torch.testing.assert_close(length, torch.full_like(length, 0.8), rtol=0, atol=1e-9)


def test_switches_and_softness_have_their_limits() -> None:
    """Off: the mechanism without it. A compliance of 1e-9 of the one of the bodies: nearly the rigid one. Environments differ."""
    rigid, without = scene(coupling()), scene(None)
    z = placed(rigid)
    switched = scene(coupling(active=torch.tensor([1.0, 0.0], dtype=torch.float64)))
    both = switched.rollout(z.expand(2, -1), steps=20).z
    torch.testing.assert_close(both[0], rigid.rollout(z, steps=20).z, rtol=0, atol=1e-9)
    torch.testing.assert_close(both[1], without.rollout(z, steps=20).z, rtol=0, atol=1e-9)
    soft = scene(coupling(compliance=1e-9))
    torch.testing.assert_close(soft.rollout(z, steps=20).z, both[0], rtol=0, atol=1e-5)
    yielding = scene(coupling(compliance=0.01))
    stretched = yielding.rollout(z, steps=50).z
    assert bool((yielding.potential_energy(stretched) - without.potential_energy(stretched)).min() >= -1e-12)
    assert float(yielding.joint_errors(stretched)[..., -1].abs().max()) > 1e-3


@pytest.mark.slow
def test_scenes_copies_and_poses() -> None:
    """A scene renames the bodies; copies step alike; what would open it is refused."""
    mech = scene(coupling())
    z = placed(mech)
    pair = td.combine(one=mech, two=copy.deepcopy(mech))
    assert pair.couplings["two/string"].body_names == (None, "two/arm", "two/left", "two/right")
    wanted = mech.step(z).z
    torch.testing.assert_close(pair.step(torch.cat((z, z))).z, torch.cat((wanted, wanted)), rtol=0, atol=1e-10)
    for other in (copy.deepcopy(mech), pickle.loads(pickle.dumps(mech))):
        torch.testing.assert_close(other.step(z).z, wanted, rtol=0, atol=1e-12)
    assert mech.couplings["string"] is not coupling() and "sites" in repr(mech.couplings["string"])
    with pytest.raises(ValueError, match="coupling 'string'"):
        mech.inverse_kinematics(td.PoseTarget("arm", position=(0.1, 0.0, -0.2)))
    with pytest.raises(ValueError, match="coupling 'string' by"):
        scene(coupling(offset=-3.0)).initial_state()


def test_world_surfaces_take_batches() -> None:
    """A site and a surface of the world have no batch dimensions, the states have."""
    tendon = td.SpatialTendon(["hook", POST, "arm"], sites=SITES)
    mech = td.Mechanism({"arm": td.Body(**BODY)}, tendons={"string": tendon})
    z = mech.initial_state(world_to_arm={"q": (0.2, 0.0, 0.1, 0, 0, 0)})
    torch.testing.assert_close(mech.tendon_lengths(z.expand(3, -1)), mech.tendon_lengths(z).expand(3, 1), rtol=0, atol=1e-15)


def test_refused_strings() -> None:
    with pytest.raises(ValueError, match="a branch of 1 site"):
        td.StringCoupling(["hook"], sites=SITES)
    with pytest.raises(ValueError, match="got the site 'nose'"):
        td.StringCoupling(["hook", "nose"], sites=SITES)
    with pytest.raises(ValueError, match="without a compliance"):
        coupling(damping=1.0)
    with pytest.raises(ValueError, match="active"):
        coupling(active=0.5)
    with pytest.raises(ValueError, match="compliance"):
        coupling(compliance=-1.0)
    with pytest.raises(ValueError, match="points: got shape"):
        coupling().points = torch.zeros(2, 3, dtype=torch.float64)
    with pytest.raises(ValueError, match="radii"):
        coupling().radii = torch.tensor([-0.1], dtype=torch.float64)
    with pytest.raises(ValueError, match="bodies are"):
        td.Mechanism({"arm": td.Body(**BODY)}, couplings={"string": coupling()})
