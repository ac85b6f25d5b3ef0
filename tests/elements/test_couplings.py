"""Linear couplings of joint coordinates: mimic joints, gears, racks, screws."""

from __future__ import annotations

import copy
import io
import itertools
import math
from typing import Any

import pytest
import torch
from torch import Tensor

import torchdojo as td

H = 0.01


def body(mass: float = 1.0) -> td.Body:
    return td.Body(mass=mass, inertia=(0.1, 0.12, 0.15))


def pendulum(place: float, **options: Any) -> td.Revolute:
    name = "ab"[int(place)]
    return td.Revolute(None, name, axis=(0, 1, 0), parent_anchor=(0, place, 0), child_anchor=(0, 0, 0.5), **options)


def pendulums(ratio: Any = -0.3, offset: Any = 0.2, coupled: bool = True, **options: Any) -> td.Mechanism:
    couplings = {"gear": td.JointCoupling("left", "right", ratio=ratio, offset=offset)} if coupled else {}
    bodies = {"a": body(), "b": body(2.0)}
    return td.Mechanism(bodies, {"left": pendulum(0), "right": pendulum(1)}, couplings=couplings, timestep=H, **options)


def rack() -> td.Mechanism:
    """A wheel on a cart's hinge drives a rack, both on one carriage that floats."""
    joints = {
        "wheel": td.Revolute("base", "a", axis=(0, 1, 1), parent_anchor=(0.3, 0, 0.1), child_anchor=(0, 0.1, 0), damper=0.1),
        "rack": td.Prismatic("base", "b", axis=(1, 0.5, 0), parent_anchor=(0, 0.2, 0), spring=3.0),
    }
    coupling = {"teeth": td.JointCoupling("wheel", "rack", ratio=0.4, offset=0.05)}
    return td.Mechanism({"base": body(), "a": body(), "b": body()}, joints, couplings=coupling, timestep=H)


def screw() -> td.Mechanism:
    joints = {"nut": td.Cylindrical(None, "a", axis=(1, 2, 2), child_anchor=(0.1, 0.2, 0.0), damper=0.05)}
    coupling = {"thread": td.JointCoupling("nut", "nut", ratio=0.15, leader_coordinate=1, follower_coordinate=0)}
    return td.Mechanism({"a": body()}, joints, couplings=coupling, timestep=H)


def universal() -> td.Mechanism:
    """A component of the rotation vector of an Orbital joint follows a hinge further down the chain."""
    joints = {
        "hip": td.Orbital(None, "a", axis=(0, 0, 1), child_anchor=(0, 0, 0.5)),
        "knee": td.Revolute("a", "b", axis=(0, 1, 0), parent_anchor=(0, 0, -0.5), child_anchor=(0, 0, 0.4), friction=0.05),
    }
    coupling = {"link": td.JointCoupling("knee", "hip", ratio=0.5, offset=-0.1, follower_coordinate=1)}
    return td.Mechanism({"a": body(), "b": body()}, joints, couplings=coupling, timestep=H)


MECHANISMS = {"gear": pendulums, "rack": rack, "screw": screw, "universal": universal}


def moving(mech: td.Mechanism) -> Tensor:
    """A state on the couplings with every coordinate away from zero and in motion."""
    q, qd = 0.4 * torch.randn(mech.num_coordinates), torch.randn(mech.num_coordinates)
    return mech.close_loops(mech.to_maximal(q, qd))


@pytest.mark.parametrize("name", MECHANISMS)
def test_gradients(name: str) -> None:
    """To the state, the input, ratio, offset, and the anchors, axes and orientations of both joints."""
    mech = MECHANISMS[name]()
    report = td.testing.check_gradients(mech, moving(mech), torch.randn(mech.num_inputs), tolerance=1e-6)
    (coupling,) = mech.couplings
    assert {f"couplings.{coupling}.ratio -> state", f"couplings.{coupling}.offset -> impulses"} <= set(report.errors)


@pytest.mark.parametrize("name", MECHANISMS)
def test_jacobians(name: str) -> None:
    mech = MECHANISMS[name]()
    z, u = moving(mech), torch.randn(mech.num_inputs)
    after = mech(z, u).detach()

    def tangent(delta: Tensor, u: Tensor) -> Tensor:
        return mech.difference(mech(mech.retract(z, delta), u), after)

    expected = torch.func.jacrev(tangent, argnums=(0, 1))(torch.zeros(12 * mech.num_bodies), u)
    torch.testing.assert_close(mech.jacobians(z, u), expected, rtol=1e-7, atol=1e-7)


def test_ratio_holds_and_energy_is_kept_over_500_steps() -> None:
    """Three environments: a gear with turns beyond π, one with another ratio, and the slow one of small swings."""
    mech = pendulums(ratio=torch.tensor([-0.3, 2.0, 0.5]), options=td.SolverOptions(residual_tol=1e-11))
    start = torch.tensor([[1.0], [0.5], [-0.8]])
    z = mech.initial_state((3,), left=dict(q=start, qd=torch.tensor([[9.0], [0.0], [0.0]])))
    path = mech.rollout(z, steps=500)
    assert (path.status == 0).all()
    states = path.z.transpose(0, 1)
    q = torch.stack([mech.to_minimal(state)[0] for state in states])  # (T + 1, 3, 2)
    assert q[:, 0, 0].max() > 3.0  # the first one goes around
    turns = torch.cumsum(torch.cat((torch.zeros(1, 3, 2), -torch.round(q.diff(dim=0) / (2 * torch.pi)))), dim=0)
    left, right = (q + 2 * torch.pi * turns).unbind(-1)
    ratio = mech.couplings["gear"].ratio
    assert (right - ratio * left - 0.2).abs().max() <= 1e-9
    energy = torch.stack([mech.kinetic_energy(a, b) + mech.potential_energy(a) for a, b in itertools.pairwise(states)])
    # It oscillates with h², as that of a pendulum without a coupling does, and does not drift (the test below compares the two).
    change = (energy - energy[0]).abs()
    scale = (energy.max(0).values - mech.potential_energy(mech.to_maximal(torch.zeros(2)))).abs()
    assert (change <= 2e-3 * scale).all()
    assert ((energy[-100:].mean(0) - energy[:100].mean(0)).abs() <= 1e-3 * scale).all()


def test_equal_pendulums_do_not_feel_a_ratio_of_one() -> None:
    """The coupling does no work and is not needed here: the same motion as without it, and no impulse."""
    free, coupled = (pendulums(ratio=1.0, offset=0.0, coupled=c, options=td.SolverOptions(residual_tol=1e-12)) for c in (False, True))
    for mech in (free, coupled):
        mech.bodies["b"].mass = 1.0
    z = coupled.initial_state(left=dict(q=2.0, qd=1.0))
    path, other = coupled.rollout(z, steps=30), free.rollout(z, steps=30)
    torch.testing.assert_close(path.z, other.z, rtol=0, atol=1e-9)
    assert path.impulses[..., coupled.impulse_layout["couplings.gear"]].abs().max() <= 1e-9


def test_impulses_act_along_both_coordinates_and_do_no_work() -> None:
    """Statics of a lever: λ/h is the torque that the follower needs, −ratio λ/h what the leader gets."""
    mech = pendulums(ratio=2.0, offset=0.0, gravity=(0, 0, 0))
    out = mech.step(mech.initial_state(), torch.tensor([0.6, -0.3]))  # balanced: u_leader + ratio u_follower = 0
    torch.testing.assert_close(out.impulses[mech.impulse_layout["couplings.gear"]] / H, torch.tensor([0.3]), rtol=0, atol=1e-8)
    assert (mech.to_minimal(out.z)[1].abs() <= 1e-8).all()
    unbalanced = mech.step(mech.initial_state(), torch.tensor([0.6, 0.0]))
    left, right = mech.to_minimal(unbalanced.z)[1]
    torch.testing.assert_close(right, 2 * left, rtol=0, atol=1e-7)
    inertia = torch.stack([0.12 + 0.25 * body.mass for body in mech.bodies.values()])
    torch.testing.assert_close(left, H * 0.6 / (inertia[0] + 4 * inertia[1]), rtol=1e-6, atol=0)


@pytest.mark.parametrize("ratio", [0.5, -0.3, 3.0, 1 / 7, math.sqrt(2)])
@pytest.mark.parametrize("leader", [-60.0, -9.0, 0.3, 2.0, 3.3, 40.0])
def test_angles_do_not_wrap(ratio: float, leader: float) -> None:
    mech = pendulums(ratio=ratio)
    z = mech.to_maximal(torch.tensor([leader, ratio * leader + 0.2]))
    assert mech.joint_errors(z)[-1].abs() <= 1e-12
    # off the coupling by what no motion leaves: the plain difference of the angles
    apart = mech.to_maximal(torch.tensor([0.1, 0.1 * ratio + 0.9]))
    torch.testing.assert_close(mech.joint_errors(apart)[-1], torch.tensor(0.7), rtol=0, atol=1e-12)


@pytest.mark.parametrize("turns", [0, 3, -200])
def test_a_rack_knows_the_turns_of_its_wheel(turns: int) -> None:
    mech = rack()
    q = torch.zeros(8)
    q[:2] = torch.tensor([0.5, 0.4 * (0.5 + 2 * torch.pi * turns) + 0.05])
    assert mech.tree_joints[:2] == ["wheel", "rack"]
    assert mech.joint_errors(mech.to_maximal(q))[-1].abs() <= 1e-12


def test_initial_states() -> None:
    mech = pendulums()
    q, qd = mech.to_minimal(mech.initial_state((2,), left=dict(q=torch.tensor([[0.4], [0.5]]), qd=1.0)))
    torch.testing.assert_close(q, torch.tensor([[0.4, 0.08], [0.5, 0.05]]), rtol=0, atol=1e-12)
    torch.testing.assert_close(qd, torch.tensor([[1.0, -0.3]] * 2), rtol=0, atol=1e-12)
    q, _ = mech.to_minimal(mech.initial_state(right=dict(q=0.5)))  # the leader follows where the follower is given
    torch.testing.assert_close(q, torch.tensor([-1.0, 0.5]), rtol=0, atol=1e-9)
    with pytest.raises(ValueError, match=r"cannot be closed at these joint coordinates.*coupling 'gear' by 0 m and 1\.3 rad stays open"):
        mech.initial_state(left=dict(q=0.0), right=dict(q=1.5))


def test_chains_of_couplings_in_any_order() -> None:
    bodies = {name: body() for name in "abc"}
    joints = {name: td.Revolute(None, name, axis=(1, 0, 0)) for name in "abc"}
    couplings = {"second": td.JointCoupling("b", "c", ratio=3.0), "first": td.JointCoupling("a", "b", ratio=2.0, offset=0.1)}
    mech = td.Mechanism(bodies, joints, couplings=couplings, timestep=H)
    q, _ = mech.to_minimal(mech.initial_state(a=dict(q=0.2)))
    torch.testing.assert_close(q, torch.tensor([0.2, 0.5, 1.5]), rtol=0, atol=1e-12)
    assert list(mech.impulse_layout) == ["joints.a", "joints.b", "joints.c", "couplings.second", "couplings.first"]


class MyRevolute(td.Revolute):
    """Written by a user: the kernel does not know it."""


def test_couplings_run_natively_unless_their_joints_are_written_by_a_user() -> None:
    mech = pendulums()
    states = {}
    for backend in ("auto", "native", "reference"):
        mech.options = td.SolverOptions(backend=backend)
        states[backend] = mech.step(mech.initial_state()).z
    assert torch.equal(states["auto"], states["native"])
    assert torch.allclose(states["native"], states["reference"], rtol=0, atol=1e-8)
    joints = {"left": MyRevolute(None, "a", axis=(0, 1, 0)), "right": pendulum(1)}
    mine = td.Mechanism({"a": body(), "b": body()}, joints, couplings={"gear": td.JointCoupling("left", "right")})
    auto = mine.step(mine.initial_state())  # the reference
    mine.options = td.SolverOptions(backend="native")
    with pytest.raises(RuntimeError, match=r"MyRevolute, is not a built-in .*; or use backend=\"auto\""):
        mine.step(mine.initial_state())
    mine.options = td.SolverOptions(backend="reference")
    assert torch.equal(mine.step(mine.initial_state()).z, auto.z)


def test_copies_pickles_and_state_dicts() -> None:
    mech = pendulums()
    z = mech.initial_state(left=dict(q=0.3))
    assert [key for key in mech.state_dict() if key.startswith("couplings")] == ["couplings.gear.ratio", "couplings.gear.offset"]
    buffer = io.BytesIO()
    torch.save(mech, buffer)
    buffer.seek(0)
    for other in (copy.deepcopy(mech), torch.load(buffer, weights_only=False)):
        assert torch.equal(other(z), mech(z))
        assert other.couplings["gear"].joints[1] is other.joints["right"]
        other.joints["right"].parent_anchor = (0.0, 1.0, 0.3)  # of the copy alone, and the coupling of the copy sees it
        assert other.couplings["gear"].follower_parent_anchor is other.joints["right"].parent_anchor
        assert float(mech.joints["right"].parent_anchor[2]) == 0.0


def test_parametrized_joints() -> None:
    class Shift(torch.nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x + torch.tensor([0.0, 0.0, 0.1])

    mech, plain = pendulums(), pendulums()
    plain.joints["left"].child_anchor = (0.0, 0.0, 0.6)
    torch.nn.utils.parametrize.register_parametrization(mech.joints["left"], "child_anchor", Shift())
    z = plain.initial_state(left=dict(q=0.3))
    torch.testing.assert_close(mech(z), plain(z), rtol=0, atol=1e-12)


BAD = {
    "leader": (lambda: td.JointCoupling("x", "right"), r"coupling 'c': its leader is joint 'x', which does not exist; joints are \['left'"),
    "coordinate": (
        lambda: td.JointCoupling("left", "right", follower_coordinate=1),
        r"its follower_coordinate is 1, but 'right', a Revolute, has 1 coordinate\(s\); allowed: \[0\]",
    ),
    "fixed": (lambda: td.JointCoupling("weld", "right"), r"'weld', a Fixed, has no coordinates; allowed: joints that can move"),
    "itself": (
        lambda: td.JointCoupling("left", "left"),
        r"'left' as leader and as follower; a coupling connects two different coordinates",
    ),
    "ratio": (lambda: td.JointCoupling("left", "right", ratio=math.nan), r"JointCoupling\.ratio: got nan; allowed: finite"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_couplings(case: str) -> None:
    make, message = BAD[case]
    bodies, joints = {"a": body(), "b": body(), "c": body()}, {"left": pendulum(0), "right": pendulum(1), "weld": td.Fixed("a", "c")}
    with pytest.raises(ValueError, match=message):
        td.Mechanism(bodies, joints, couplings={"c": make()})


def test_a_coupling_belongs_to_one_mechanism() -> None:
    mech = pendulums()
    with pytest.raises(ValueError, match=r"coupling 'c': it already couples joints of another mechanism"):
        td.Mechanism({"a": body(), "b": body()}, {"left": pendulum(0), "right": pendulum(1)}, couplings={"c": mech.couplings["gear"]})
    with pytest.raises(TypeError, match=r"couplings\['c'\]: got Fixed; allowed: Coupling"):
        td.Mechanism({"a": body()}, couplings={"c": td.Fixed(None, "a")})


def fingers(ratio: object, second: tuple[float, float], offset: float = 0.0, third: tuple[float, float] | None = None) -> td.Mechanism:
    """Fingers with limits, on one coupling or on a chain of two that is declared from its end."""
    names = {"first": (0.0, 0.548), "second": second} | ({} if third is None else {"third": third})
    bodies = {f"{name}_link": td.Body(0.1, (1e-4, 1e-4, 1e-4)) for name in names}
    joints = {n: td.Revolute(None, f"{n}_link", axis=(0, 0, 1), child_anchor=(-0.05, 0, 0), limits=pair) for n, pair in names.items()}
    couplings = {} if third is None else {"end": td.JointCoupling("second", "third")}
    return td.Mechanism(bodies, joints, couplings=couplings | {"mimic": td.JointCoupling("first", "second", ratio=ratio, offset=offset)})


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ((-1.0, (0.0, 0.548)), "mimic"),  # as in a file of the PR2: zero is all that both have
        ((1.0, (0.6, 0.9)), "mimic"),
        ((torch.tensor([1.0, -1.0]), (0.0, 0.548)), "mimic"),  # one environment of two
        ((1.0, (-4.5, 0.3), 0.1, (-0.5, 0.05)), "end"),  # a chain: the last link excludes what the first two allow
    ],
)
def test_ranges_without_room_are_refused(arguments: tuple, name: str) -> None:
    with pytest.raises(ValueError, match=rf"coupling '{name}': got limits .* allowed: ranges that .* Leave out the limits"):
        fingers(*arguments)


@pytest.mark.parametrize("arguments", [(-1.0, (-0.548, 0.0)), (2.0, (0.1, 0.2)), (1.0, (0.0, 0.548), 2 * torch.pi), (0.0, (-0.1, 0.1))])
def test_ranges_with_room_are_not(arguments: tuple) -> None:
    fingers(*arguments)
