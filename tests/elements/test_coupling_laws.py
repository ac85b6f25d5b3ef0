"""Couplings that are no line between two coordinates: curves, locks and sums."""

from __future__ import annotations

import copy
import itertools
import pickle
from collections.abc import Callable

import pytest
import torch

import torchdojo as td

H = 0.01
CURVE = (0.6, -0.4, 0.2)


def body(mass: float = 1.0) -> td.Body:
    return td.Body(mass=mass, inertia=(0.1, 0.12, 0.15))


def arms(couplings: dict[str, td.Coupling], **options: object) -> td.Mechanism:
    """Two hinges, a slide and a cylinder, each on the world."""
    kinds = {"left": td.Revolute, "right": td.Revolute, "slide": td.Prismatic, "screw": td.Cylindrical}
    joints = {
        name: kind(None, name, axis=(0, 1, 0), parent_anchor=(0, place, 0), child_anchor=(0, 0, 0.5))
        for place, (name, kind) in enumerate(kinds.items())
    }
    return td.Mechanism({name: body() for name in kinds}, joints, couplings=couplings, timestep=H, **options)


def curve_at(x: torch.Tensor, ratio: float = 0.8, offset: float = 0.1) -> torch.Tensor:
    return offset + ratio * x + CURVE[0] * x**2 + CURVE[1] * x**3 + CURVE[2] * x**4


def test_a_curve_holds_and_energy_does_not_drift() -> None:
    cam = td.JointCoupling("left", "right", ratio=0.8, offset=0.1, curve=CURVE)
    mech = arms({"cam": cam}, options=td.SolverOptions(residual_tol=1e-11))
    path = mech.rollout(mech.initial_state((2,), left={"q": torch.tensor([[0.6], [0.9]])}), steps=300)
    assert not path.status.any()
    q = mech.to_minimal(path.z)[0]
    assert float((q[..., 1] - curve_at(q[..., 0])).abs().max()) < 1e-9
    states = path.z.transpose(0, 1)
    energy = torch.stack([mech.kinetic_energy(a, b) + mech.potential_energy(a) for a, b in itertools.pairwise(states)])
    swing = energy.amax(0) - torch.stack([mech.potential_energy(state) for state in states]).amin(0)
    assert bool(((energy - energy[0]).abs().amax(0) < 0.02 * swing).all())


def test_initial_states_follow() -> None:
    mech = arms({"cam": td.JointCoupling("left", "right", ratio=0.8, offset=0.1, curve=CURVE), "lock": td.JointLock("slide", 0.3)})
    q, qd = mech.to_minimal(mech.initial_state(left={"q": 0.5, "qd": 2.0}))
    torch.testing.assert_close(q[:3], torch.tensor([0.5, float(curve_at(torch.tensor(0.5))), 0.3]), rtol=0, atol=1e-12)
    slope = 0.8 + 2 * CURVE[0] * 0.5 + 3 * CURVE[1] * 0.25 + 4 * CURVE[2] * 0.125
    # Rates are those of the step that leads here: of first order in h.
    torch.testing.assert_close(qd[:3], torch.tensor([2.0, 2.0 * slope, 0.0]), rtol=0, atol=0.02)


@pytest.mark.parametrize("turns", [0, 3, -7])
def test_turns_of_curves_and_locks(turns: int) -> None:
    """Angles beyond ±2π, of which the state holds no turns."""
    cam = td.JointCoupling("left", "slide", ratio=0.1, curve=(0.001,))
    mech = arms({"cam": cam, "lock": td.JointLock("right", 0.4)})
    angle = 0.3 + 2 * torch.pi * turns
    z = mech.to_maximal(torch.tensor([0.3, 0.4 + 2 * torch.pi * turns, 0.1 * angle + 0.001 * angle**2, 0.0, 0.0]))
    assert float(mech.joint_errors(z)[-2:].abs().max()) < 1e-12


def test_sums_hold_what_they_say() -> None:
    both = td.SumCoupling({"left": 0.5, "right": 0.5}, {"slide": 2.0, ("screw", 1): 0.4}, ratio=0.7, offset=0.1, curve=(0.2,))
    mech = arms({"mean": both})
    z = mech.close_loops(mech.to_maximal(torch.tensor([0.4, -0.2, 0.1, 0.2, 0.3]), torch.ones(5)))
    path = mech.rollout(z, steps=50)
    left, right, slide, _, turn = mech.to_minimal(path.z)[0].unbind(-1)
    mean = 0.5 * left + 0.5 * right
    assert float((2.0 * slide + 0.4 * turn - 0.1 - 0.7 * mean - 0.2 * mean**2).abs().max()) < 1e-8
    assert float((mean[-1] - mean[0]).abs()) > 0.05


def test_a_line_as_a_sum_is_the_coupling() -> None:
    line, summed = arms({"c": td.JointCoupling("left", "slide", ratio=0.3)}), arms({"c": td.SumCoupling({"left": 0.6}, {"slide": 2.0})})
    z = line.initial_state(left={"q": 0.4, "qd": 1.0})
    torch.testing.assert_close(line.rollout(z, steps=20).z, summed.rollout(z, steps=20).z, rtol=0, atol=1e-8)


MAKE: dict[str, Callable[[], td.Coupling]] = {
    "curve": lambda: td.JointCoupling("left", "slide", ratio=0.3, curve=CURVE),
    "lock": lambda: td.JointLock("screw", 0.2, coordinate=1, active=1.0),
    "sum": lambda: td.SumCoupling({"left": 0.6}, {"slide": 2.0, ("screw", 1): 0.3}, curve=(0.4,)),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", MAKE)
def test_elements_stand_every_use(kind: str) -> None:
    """Batches, transforms, copies, float32, gradients: `td.testing.check_element`."""
    mech = arms({})
    td.testing.check_element(MAKE[kind](), joints=dict(mech.joints.items()))


@pytest.mark.parametrize("kind", MAKE)
def test_copies_pickles_and_scenes(kind: str) -> None:
    mech = arms({"c": MAKE[kind]()})
    z = mech.close_loops(mech.to_maximal(0.2 * torch.ones(5)))
    for other in (copy.deepcopy(mech), pickle.loads(pickle.dumps(mech))):
        assert torch.equal(other(z), mech(z)) and repr(other) == repr(mech)
    pair = td.combine({"one": mech, "two": copy.deepcopy(mech)})
    assert list(pair.couplings) == ["one/c", "two/c"]
    torch.testing.assert_close(pair(torch.cat((z, z))), torch.cat((mech(z), mech(z))), rtol=0, atol=1e-9)


BAD: dict[str, tuple[Callable[[], object], str]] = {
    "no joint": (
        lambda: arms({"c": td.JointLock("x")}),
        r"coupling 'c': its follower is joint 'x', which does not exist; joints are",
    ),
    "no coordinate": (
        lambda: arms({"c": td.JointLock("left", coordinate=2)}),
        r"its follower_coordinate is 2, but 'left', a Revolute",
    ),
    "leader of a sum": (lambda: arms({"c": td.SumCoupling({"x": 1.0}, {"left": 1.0})}), r"its leader is joint 'x', which does not exist"),
    "no followers": (lambda: td.SumCoupling({"left": 1.0}, {}), r"SumCoupling: got no followers; allowed: .* at least one follower"),
    "twice": (lambda: td.SumCoupling({"left": 1.0}, {"left": 2.0}), r"SumCoupling: got the coordinates \[\('left', 0\)\] twice; allowed"),
    "long curve": (lambda: td.JointCoupling("a", "b", curve=(1, 2, 3, 4)), r"curve: got shape \(4,\); allowed: \(\.\.\., 3\), the coeff"),
    "curve later": (
        lambda: setattr(td.JointCoupling("a", "b"), "curve", (1.0,)),
        r"curve: got \(1\.0,\) for a coupling built without",
    ),
    "coefficients": (
        lambda: setattr(td.SumCoupling({}, {"a": 1.0}), "coefficients", (1.0, 2.0)),
        r"got shape \(2,\); allowed: \(",
    ),
    "not a number": (lambda: td.JointLock("left", float("nan")), r"JointLock\.offset: got nan; allowed: finite numbers"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_couplings(case: str) -> None:
    make, message = BAD[case]
    with pytest.raises(ValueError, match=message):
        make()


def fingers(coupling: td.Coupling, second: tuple[float, float]) -> td.Mechanism:
    limits = {"first": (0.0, 1.0), "second": second}
    joints = {name: td.Revolute(None, name, child_anchor=(-0.05, 0, 0), limits=pair) for name, pair in limits.items()}
    return td.Mechanism({name: td.Body(0.1, (1e-4, 1e-4, 1e-4)) for name in limits}, joints, couplings={"c": coupling})


def test_ranges_of_curves_and_locks() -> None:
    square = {"ratio": 0.0, "curve": (1.0,)}
    fingers(td.JointCoupling("first", "second", **square), (0.5, 2.0))
    with pytest.raises(ValueError, match=r"coupling 'c': got limits .*; its leader 'first' carries it through \[0\.0, 1\.0\]"):
        fingers(td.JointCoupling("first", "second", **square), (1.5, 2.0))
    fingers(td.JointCoupling("first", "second", **square, active=0.0), (1.5, 2.0))  # may be off
    fingers(td.JointLock("second", 0.7), (0.5, 2.0))
    with pytest.raises(ValueError, match=r"got limits \[0\.5, 2\.0\] of 'second', which it holds at 0\.5; allowed: ranges that"):
        fingers(td.JointLock("second", 0.5), (0.5, 2.0))
