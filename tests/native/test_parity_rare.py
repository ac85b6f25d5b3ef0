"""The compiled kernel against the reference, as in test_parity.py: couplings of joints, torsional and rolling friction, laws of pairs."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from mechanisms import JOINT_NAMES, Sample, all_joints, close_to_limits, random_body, random_tree
from parity import LAWS, check, collision, dealt, error, exact, nan_state, outputs, relative, same_bits, thrown_box, trajectory

import torchdojo as td
from torchdojo import quaternion as quat
from torchdojo.elements import joints as joint_types
from torchdojo.native.program import unsupported

# -- couplings ---------------------------------------------------------------------------------------------------------------------------

Ends = tuple[tuple[str, int], tuple[str, int]]  # leader and follower: a joint and its coordinate


def coupled(sample: Sample, pairs: Sequence[Ends], ratios: Sequence[float]) -> Sample:
    """The same states, in which couplings of these coordinates hold: each environment has offsets of its own."""
    mech, z, u = sample
    q, _ = mech.to_minimal(z)
    places, start = {}, 0
    for name in mech.tree_joints:
        places[name] = start
        start += mech.joints[name].num_coordinates
    couplings = {}
    for number, ((leader, i), (follower, k)) in enumerate(pairs):
        ratio = ratios[number % len(ratios)]
        offset = q[:, places[follower] + k] - ratio * q[:, places[leader] + i]
        couplings[f"coupling{number}"] = td.JointCoupling(
            leader, follower, ratio=ratio, offset=offset, leader_coordinate=i, follower_coordinate=k
        )
    mechanism = td.Mechanism(
        dict(mech.bodies.items()),
        dict(mech.joints.items()),
        dict(mech.contacts.items()),
        couplings=couplings,
        timestep=mech.timestep,
        gravity=mech.gravity,
        options=exact(),
    )
    return Sample(mechanism, z, u)


def across_chains(seed: int) -> list[Ends]:
    """Every joint type as leader and as follower of another one; then two coordinates of one joint, where there are two left."""
    pick = random.Random(seed)
    sizes = {kind: sum(joint_types.JOINT_TYPES[kind]) for kind in JOINT_NAMES if sum(joint_types.JOINT_TYPES[kind])}
    kinds = list(sizes)
    pick.shuffle(kinds)
    pairs = []
    for kind, following in itertools.pairwise(kinds):
        names = (kind, f"{following}_world") if pick.random() < 0.5 else (f"{kind}_world", following)
        pairs.append(((names[0], pick.randrange(sizes[kind])), (names[1], pick.randrange(sizes[following]))))
    return pairs + [((kind, sizes[kind] - 1), (kind, 0)) for kind in kinds if sizes[kind] > 1]


@pytest.mark.slow
@pytest.mark.sanitize
def test_couplings_of_every_joint() -> None:
    mech, z, u = coupled(all_joints(True, False, True, 2), across_chains(1), (0.7, -1.3, 2.0))
    check(mech, z, u, torch.randn(2, 6 * mech.num_bodies))


@pytest.mark.slow
@pytest.mark.sanitize
def test_couplings_with_limits_friction_and_armature() -> None:
    mech, z, u = coupled(close_to_limits(2, friction=0.5, armature=0.1), across_chains(3), (0.7, -1.3))
    check(mech, z, u)


def coupled_tree(seed: int, bodies: int, contacts: int, roots: int, count: int) -> Sample:
    """Couplings of neighbors, of distant joints and of one joint; every coordinate follows at most one other."""
    sample = random_tree(seed, bodies, 3, contacts=contacts, roots=roots)
    mech = sample.mechanism
    pick = random.Random(seed)
    coordinates = [(name, k) for name in mech.tree_joints for k in range(mech.joints[name].num_coordinates)]
    places = pick.sample(range(1, len(coordinates)), count)
    pairs = [(coordinates[place - 1 if pick.random() < 0.5 else pick.randrange(place)], coordinates[place]) for place in places]
    return coupled(sample, pairs, (1.0, -1.0, 0.4, -2.5))


@pytest.mark.slow
@pytest.mark.sanitize
@pytest.mark.parametrize(
    ("seed", "bodies", "contacts", "roots", "count"), [(1, 6, 4, 1, 3), (2, 16, 8, 3, 8), (3, 30, 6, 1, 12), (4, 12, 0, 1, 6)]
)
def test_couplings_in_random_trees(seed: int, bodies: int, contacts: int, roots: int, count: int) -> None:
    check(*coupled_tree(seed, bodies, contacts, roots, count))


def parallel_arm(fingers: int, count: int) -> Sample:
    """Two parallel hinges in a row, coupled so that the hand behind them does not turn; the body between them does not enter that row.

    The fingers' hinges are coupled with each other, and the first of them with the arm's first."""
    names = ["upper", "hand", *(f"finger{i}" for i in range(fingers))]
    down, up = (0.0, 0.0, -0.2), (0.0, 0.0, 0.2)
    joints = {
        "shoulder": td.Revolute(None, "upper", axis=(0, 1, 0), child_anchor=up, damper=0.05),
        "wrist": td.Revolute("upper", "hand", axis=(0, 1, 0), parent_anchor=down, child_anchor=up),
    }
    couplings = {"level": td.JointCoupling("shoulder", "wrist", ratio=-1.0, offset=0.3)}
    for i in range(fingers):
        joints[f"hinge{i}"] = td.Revolute("hand", f"finger{i}", axis=(1, 0, 0.1 * i), parent_anchor=(0.1 * i, 0, -0.2), child_anchor=up)
        leader = f"hinge{i - 1}" if i else "shoulder"
        couplings[f"mimic{i}"] = td.JointCoupling(leader, f"hinge{i}", ratio=0.8, offset=0.1)
    mech = td.Mechanism({name: random_body() for name in names}, joints, couplings=couplings, options=exact())
    z = mech.initial_state((count,), shoulder=dict(q=torch.randn(count), qd=torch.randn(count)))
    return Sample(mech, z, torch.randn(count, mech.num_inputs))


@pytest.mark.sanitize
@pytest.mark.parametrize("fingers", [0, 1, 5])
def test_couplings_of_parallel_hinges(fingers: int) -> None:
    torch.manual_seed(fingers)
    check(*parallel_arm(fingers, 3))


def test_coupling_that_a_body_drops_out_of() -> None:
    """Three balls in a row: the coupling holds the sum of both distances, which is the distance of the outer balls; they touch."""
    touch = td.NonlinearContact("c", shape=td.Sphere(0.5), other="a", other_shape=td.Sphere(0.5), friction=0.5)
    joints = {"ab": td.Floating("a", "b"), "bc": td.Floating("b", "c")}
    coupling = td.JointCoupling("ab", "bc", ratio=-1.0, offset=1.001)
    torch.manual_seed(0)
    mech = td.Mechanism({name: random_body() for name in "abc"}, joints, {"touch": touch}, couplings={"sum": coupling}, options=exact())
    z = mech.initial_state((3,)).unflatten(-1, (-1, 13))
    z[..., 0] = torch.tensor((0.0, 0.4, 1.001))
    z[..., 3] = torch.randn(3, 3)
    check(mech, z.flatten(-2), torch.zeros(3, mech.num_inputs))


@pytest.mark.sanitize
def test_couplings_that_repeat_each_other() -> None:
    """a -> b -> c and a -> c: known to the kernel as a loop, whose redundant rows carry a little compliance."""
    torch.manual_seed(0)
    joints = {name: td.Revolute(None, name, axis=(0, 1, 0), child_anchor=(0, 0, 0.3)) for name in "abc"}
    ends = {"ab": ("a", "b", 2.0), "bc": ("b", "c", -0.5), "ac": ("a", "c", -1.0)}
    couplings = {name: td.JointCoupling(leader, follower, ratio=ratio) for name, (leader, follower, ratio) in ends.items()}
    mech = td.Mechanism({name: random_body() for name in "abc"}, joints, couplings=couplings, options=exact())
    z = mech.initial_state((3,), a=dict(q=torch.randn(3), qd=torch.randn(3)))
    check(mech, z, torch.randn(3, mech.num_inputs), redundant=True)


TURNING = {
    "two wheels": (("Revolute", 0), ("Revolute", 0), (0.5, -1.5, 1 / 3, 2.3)),
    "a screw": (("Cylindrical", 1), ("Cylindrical", 0), (0.15, -0.4)),
    "a winch": (("Prismatic", 0), ("Revolute", 0), (3.0, -8.0)),
}


@pytest.mark.sanitize
@pytest.mark.parametrize("kind", TURNING)
def test_couplings_of_turning_joints(kind: str) -> None:
    """Angles far beyond π, of which the state holds no turns: with those that the search finds, the coupling stays closed."""
    (leader, i), (follower, k), ratios = TURNING[kind]
    torch.manual_seed(0)
    for ratio in ratios:
        joints: dict[str, td.StandardJoint] = {"a": getattr(joint_types, leader)(None, "one", axis=(0, 1, 1), damper=0.1)}
        bodies = {"one": random_body()}
        if kind != "a screw":
            joints["b"] = getattr(joint_types, follower)(None, "two", axis=(1, 0, 0), armature=0.02)
            bodies["two"] = random_body()
        coupling = td.JointCoupling(
            "a", "a" if kind == "a screw" else "b", ratio=ratio, offset=0.4, leader_coordinate=i, follower_coordinate=k
        )
        mech = td.Mechanism(bodies, joints, couplings={"gear": coupling}, options=exact())
        count = 6
        q, qd = torch.zeros(count, mech.num_coordinates), torch.zeros(count, mech.num_coordinates)
        place, rates = torch.linspace(-25, 25, count), 2 * torch.randn(count)
        following = k if kind == "a screw" else mech.num_coordinates - 1
        q[:, i], qd[:, i] = place, rates
        q[:, following], qd[:, following] = ratio * place + 0.4, ratio * rates
        out = check(mech, mech.to_maximal(q, qd), torch.randn(count, mech.num_inputs))
        with torch.no_grad():
            assert float(mech.joint_errors(out.z).abs().max()) < 1e-9


@pytest.mark.slow
def test_rollouts_with_couplings() -> None:
    """One call of eight steps of a fast gear against as many steps of the reference, past the point where its angles wrap."""
    torch.manual_seed(3)
    joints = {
        "wheel": td.Revolute(None, "a", axis=(0, 1, 0), friction=0.02),
        "gear": td.Revolute(None, "b", axis=(0, 1, 0), parent_anchor=(0.3, 0, 0)),
        "rod": td.Prismatic("b", "c", axis=(1, 0, 0), damper=0.1),
    }
    couplings = {
        "teeth": td.JointCoupling("wheel", "gear", ratio=-0.5, offset=0.2),
        "cam": td.JointCoupling("gear", "rod", ratio=0.05, offset=0.1),
    }
    mech = td.Mechanism({name: random_body() for name in "abc"}, joints, couplings=couplings, timestep=0.02)
    z = mech.initial_state((5,), wheel=dict(q=torch.linspace(2.0, 3.0, 5), qd=12.0))
    results = []
    for backend in ("reference", "native"):
        mech.options = exact(1e-4, backend=backend)
        results.append(trajectory(mech, z, torch.randn(5, mech.num_inputs, generator=torch.Generator().manual_seed(0)), 8))
    (states, status, grads), (our_states, our_status, our_grads) = results
    assert status.eq(0).all() and our_status.eq(0).all()
    # The longest way is 12 rad/s · 0.16 s from 3 rad.
    assert float(states.unflatten(-1, (-1, 13))[:, -1, 0, 6].max()) < 0
    errors = [error(our_states, states), *(relative(a, b) for a, b in zip(our_grads, grads, strict=True))]
    assert max(errors) < 1e-9


# -- laws of contacts between shapes -----------------------------------------------------------------------------------------------------


def overlapping(sample: Sample) -> Sample:
    """Half of the environments 2 cm deeper, where they overlap."""
    z = sample.z.unflatten(-1, (-1, 13)).clone()
    z[len(z) // 2 :, 0, 2] -= 0.02
    return sample._replace(z=z.flatten(-2))


@pytest.mark.sanitize
@pytest.mark.parametrize(
    ("shape", "other", "fixed", "laws"),
    [(*pair, laws) for number, laws in ((1, LAWS[1]), (2, LAWS[3])) for pair in dealt(number, 4)],
    ids=str,
)
def test_overlap_and_compliance_between(shape: str, other: str, fixed: bool, laws: dict[str, float]) -> None:
    mech, z, u = overlapping(collision(shape, other, fixed, td.NonlinearContact, **laws))
    assert int((mech.distances(z)[:, 0] < 0).sum()) >= 2
    out = check(mech, z, u)
    assert int((out.impulses[:, 0] > 1e-2).sum()) >= 4


@pytest.mark.sanitize
@pytest.mark.parametrize("laws", [LAWS[1], LAWS[2], LAWS[4]], ids=str)
@pytest.mark.parametrize("model", [td.ImpactContact, td.LinearContact])
def test_laws_of_models_between(model: type[td.Contact], laws: dict[str, float]) -> None:
    check(*overlapping(collision("capsule", "sphere", False, model, **laws)))


# -- torsional and rolling friction ------------------------------------------------------------------------------------------------------

COUPLES: list[dict[str, float]] = [
    {"torsional_friction": 0.02},
    {"rolling_friction": 0.01},
    {"torsional_friction": 0.02, "rolling_friction": 0.01},
]


def ball(kappa: float, **given: Any) -> Sample:
    """At rest, sticking, slipping and in flight, in this order: a push about every axis, spins about every axis, a height of 1 m."""
    contact = td.NonlinearContact("ball", radius=0.1, **({"friction": 0.5} | given))
    mech = td.Mechanism({"ball": td.Body(1.0, (0.004, 0.0042, 0.0038))}, contacts={"skin": contact}, options=exact(kappa))
    z = mech.initial_state((8,)).unflatten(-1, (-1, 13))
    z[..., 2] = 0.1 + kappa / 0.0981
    z[4:6, :, 10:] = torch.tensor(((0.3, -0.2, 8.0), (6.0, 4.0, 0.5)))[:, None]
    z[6:, :, 2], z[6:, :, 3:6], z[6:, :, 10:] = 1.0, torch.randn(2, 1, 3), torch.randn(2, 1, 3)
    z[:, :, 6:10] = quat.normalize(torch.randn(8, 1, 4))
    return Sample(mech, z.flatten(-2), torch.zeros(8, 0))


@pytest.mark.sanitize
@pytest.mark.parametrize(("couples", "kappa"), [*((couples, 1e-6) for couples in COUPLES), (COUPLES[2], 1e-3), (COUPLES[2], 1e-4)], ids=str)
def test_couples_of_a_ball(couples: dict[str, float], kappa: float) -> None:
    torch.manual_seed(5)
    mech, z, u = ball(kappa, **couples)
    wrench = torch.zeros(8, 6)
    wrench[2], wrench[3] = torch.tensor((0, 0, 0, 0, 0, 0.1)), torch.tensor((0, 0, 0, 0.04, 0.04, 0))  # less than friction holds
    out = check(mech, z, u, wrench)
    if kappa > 1e-6:
        return  # what follows is that of the limit
    gamma = out.impulses[:, 0]
    assert float(gamma[:6].min()) > 0.09 and float(gamma[6:].max()) < 1e-3
    if "torsional_friction" in couples:
        used = (out.impulses[:, 2] - out.impulses[:, 3]).abs() / (0.02 * gamma)
        assert float(used[:2].max()) < 1e-3 and 0.1 < float(used[2]) < 0.9 and float(used[4]) > 0.99
    if "rolling_friction" in couples:
        used = out.impulses[:, -2:].norm(dim=-1) / (0.01 * gamma)
        assert float(used[:2].max()) < 1e-3 and 0.1 < float(used[3]) < 0.9 and float(used[5]) > 0.99


def test_couples_without_friction() -> None:
    """Coefficients of zero: cones of a height of 1e-12, whose slacks are known to rounding of 1e6 only."""
    torch.manual_seed(5)
    mech, z, u = ball(1e-6, torsional_friction=0.0, rolling_friction=0.0, friction=0.0)
    steps = []
    for backend in ("native", "reference"):
        mech.options = td.SolverOptions(backend=backend)
        with torch.no_grad():
            steps.append(mech.step(z, u))
    assert steps[0].status.eq(0).all() and steps[1].status.eq(0).all()
    assert error(steps[0].z, steps[1].z) < 1e-8


def box_with_couples(**couples: float) -> Sample:
    mech, z, u = thrown_box(9)
    contacts = {
        name: td.NonlinearContact("box", point=c.point, radius=c.radius, normal=(0.1, 0.0, 1.0), friction=0.3, **couples)
        for name, c in mech.contacts.items()
    }
    return Sample(td.Mechanism(dict(mech.bodies.items()), dict(mech.joints.items()), contacts, options=exact()), z, u)


@pytest.mark.sanitize
@pytest.mark.parametrize("couples", COUPLES, ids=str)
def test_couples_of_a_thrown_box(couples: dict[str, float]) -> None:
    check(*box_with_couples(**couples))


@pytest.mark.sanitize
@pytest.mark.parametrize(("shape", "other", "fixed"), dealt(3, 4))
def test_couples_between(shape: str, other: str, fixed: bool) -> None:
    out = check(*collision(shape, other, fixed, td.NonlinearContact, **COUPLES[2]))
    assert float((out.impulses[:, 2] - out.impulses[:, 3]).abs().max()) > 1e-3  # torsion
    assert float(out.impulses[:, -2:].norm(dim=-1).max()) > 1e-3  # rolling


@pytest.mark.parametrize("laws", [LAWS[0], LAWS[3], LAWS[4]], ids=str)
def test_couples_with_laws(laws: dict[str, float]) -> None:
    check(*overlapping(collision("sphere", "capsule", False, td.NonlinearContact, **COUPLES[2], **laws)))


@pytest.mark.slow
@pytest.mark.parametrize("options", [exact(1e-6, grad_kappa=1e-3), exact(1e-5, min_iterations=12), exact(1.0)], ids=str)
def test_options_with_couples_and_couplings(options: td.SolverOptions) -> None:
    mech, z, u = box_with_couples(**COUPLES[2])
    mech.options = options
    check(mech, z, u)
    mech, z, u = parallel_arm(2, 3)
    mech.options = options
    check(mech, z, u)


@pytest.mark.sanitize
@pytest.mark.parametrize("kind", ["couples", "couplings"])
def test_last_rungs_of_the_ladder(kind: str) -> None:
    """Too few iterations for Newton and the interior-point method: the continuation, which has its own count, finds the same solution."""
    mech, z, u = box_with_couples(**COUPLES[2]) if kind == "couples" else coupled_tree(1, 6, 4, 1, 3)
    steps = []
    for count in (8 if kind == "couples" else 5, 50):
        mech.options = exact(backend="native", max_iterations=count)
        with torch.no_grad():
            steps.append(mech.step(z, u))
    assert steps[0].status.eq(0).all() and int(steps[0].iterations.max()) > 40
    # Each side rounds in its own way, see `polished`.
    assert error(steps[0].z, steps[1].z) < 1e-9


@pytest.mark.slow
def test_rollouts_with_couples() -> None:
    """A spinning ball lands on a rolling one, in one call of ten steps."""
    torch.manual_seed(1)
    contacts = {
        "ground": td.NonlinearContact("low", radius=0.1, friction=0.6, **COUPLES[2]),
        "touch": td.NonlinearContact("high", shape=td.Sphere(0.1), other="low", other_shape=td.Sphere(0.1), **COUPLES[2]),
    }
    mech = td.Mechanism({"low": td.Body(1.0, (0.004,) * 3), "high": td.Body(0.5, (0.002,) * 3)}, contacts=contacts)
    z = mech.initial_state((8,)).unflatten(-1, (-1, 13))
    z[:, 0, 2], z[:, 1, 2] = 0.101, 0.305
    z[:, 1, :2] = 0.02 * torch.randn(8, 2)
    z[:, :, 3:5], z[:, :, 10:] = 0.2 * torch.randn(8, 2, 2), 3 * torch.randn(8, 2, 3)
    results = []
    for backend in ("reference", "native"):
        mech.options = exact(1e-4, backend=backend)
        results.append(trajectory(mech, z.flatten(-2), torch.zeros(8, 0), 10))
    (states, status, grads), (our_states, our_status, our_grads) = results
    assert status.eq(0).all() and our_status.eq(0).all()
    assert float(mech.distances(states[:, 1:]).amax(-1).min()) < 2e-3  # in touch: κ/γ is 1e-3
    errors = [error(our_states, states), *(relative(a, b) for a, b in zip(our_grads, grads, strict=True) if a.numel())]
    assert max(errors) < 1e-9


@pytest.mark.sanitize
@pytest.mark.parametrize("kind", ["couples", "couplings"])
def test_bad_environment_harms_no_other_ball_or_arm(kind: str) -> None:
    mech, z, u = ball(1e-6, **COUPLES[2]) if kind == "couples" else parallel_arm(2, 8)
    mech.options = td.SolverOptions(backend="native", max_halvings=1)
    others = torch.arange(8) != 5
    clean = outputs(mech, z, u, others)
    nan_state(z, u)
    spoiled = outputs(mech, z, u)
    assert same_bits(clean, [t[others] for t in spoiled])
    assert int(spoiled[2][5]) == td.Status.INVALID_INPUT


# -- nothing built in is left to the reference -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("file", "place"), [("panda.urdf", "zero"), ("panda.urdf", "within"), ("panda.xml", "zero")])
def test_shared_robots_with_couplings_run_natively(file: str, place: str, shared_path: Any) -> None:
    """Zero is outside the limits of a joint."""
    mech = td.load(shared_path("models", "franka_panda", file), floating_base=False, contacts=None)
    assert mech.couplings and unsupported(mech.backends.system) is None
    torch.manual_seed(0)
    n = mech.num_inputs
    limited = {name: torch.stack(joint.limits) for name, joint in mech.joints.items() if getattr(joint, "limits", None) is not None}
    start = {name: {"q": bounds.mean(0)} for name, bounds in limited.items() if bool((bounds[0] * bounds[1] > 0).any())}
    z, u = mech.initial_state((3,), **(start if place == "within" else {})), torch.randn(3, n)
    states = []
    for backend in ("native", "reference"):
        mech.options = exact(backend=backend)
        with torch.no_grad():
            states.append(mech.rollout(z, u[:, None].expand(-1, 2, -1)).z)
    assert error(*states) < 1e-10
