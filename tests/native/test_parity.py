"""The compiled kernel against the reference in PyTorch: two implementations of one step, equal to rounding."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from mechanisms import Sample, all_joints, close_to_limits, four_bar, random_tree
from parity import LAWS, PAIRS, ULP, check, collision, dealt, error, exact, nan_state, outputs, relative, same_bits, thrown_box, trajectory
from torch import Tensor

import torchdojo as td
from conftest import SHARED
from golden import load_case
from torchdojo import quaternion as quat

# -- joints ------------------------------------------------------------------------------------------------------------------------------


# Every pair of values of two of the three.
@pytest.mark.sanitize
@pytest.mark.parametrize(
    ("spring", "damper", "actuated"), [(False, False, True), (False, True, False), (True, False, False), (True, True, True)]
)
def test_every_joint(spring: bool, damper: bool, actuated: bool) -> None:
    mech, z, u = all_joints(spring, damper, actuated, 3)
    mech.options = exact()
    check(mech, z, u, torch.randn(3, 6 * mech.num_bodies))


@pytest.mark.slow
@pytest.mark.parametrize("given", [{"friction": 2.0}, {"armature": 0.3}], ids=str)
def test_friction_and_armature_of_every_joint(given: dict[str, float]) -> None:
    mech, z, u = all_joints(False, False, True, 3, **given)
    mech.options = exact()
    check(mech, z, u, torch.randn(3, 6 * mech.num_bodies))


@pytest.mark.slow
@pytest.mark.sanitize
@pytest.mark.parametrize(("given", "kappa"), [({}, 1e-6), ({"friction": 0.5, "armature": 0.1}, 1e-4)], ids=str)
def test_limits_of_every_joint(given: dict[str, float], kappa: float) -> None:
    mech, z, u = close_to_limits(3, **given)
    mech.options = exact(kappa)
    out = check(mech, z, u)
    limits = [key for key in mech.impulse_layout if key.startswith("limits.")]
    pressed = torch.cat([out.impulses[:, mech.impulse_layout[key]] for key in limits], dim=-1) > 1e-2
    assert len(limits) == 30 and int(pressed.sum()) > 10


# -- random mechanisms -------------------------------------------------------------------------------------------------------------------


@pytest.mark.sanitize
@pytest.mark.parametrize(
    ("seed", "bodies", "contacts", "roots"), [(1, 5, 6, 1), (2, 16, 12, 3), pytest.param(3, 40, 10, 1, marks=pytest.mark.slow)]
)
def test_random_trees(seed: int, bodies: int, contacts: int, roots: int) -> None:
    mech, z, u = random_tree(seed, bodies, 3, contacts=contacts, roots=roots)
    mech.options = exact()
    check(mech, z, u)


FREE = ("Spherical", "Orbital", "FreeRevolute", "Floating", "CylindricalFree", "PlanarOrbital")  # mobile enough to close loops of


@pytest.mark.sanitize
@pytest.mark.parametrize(
    ("seed", "loops"),
    [
        (10, ("Spherical", "PlanarFree")),
        (11, ("CylindricalFree", "FreeRevolute", "Orbital")),
        (12, ("PlanarFree",) * 4),
        (13, ("Floating", "PlanarOrbital")),
    ],
)
def test_random_loops(seed: int, loops: tuple[str, ...]) -> None:
    mech, z, u = random_tree(seed, 6, 3, contacts=4, kinds=FREE, roots=2, loops=loops)
    mech.options = exact()
    check(mech, z, u)


@pytest.mark.sanitize
def test_four_bar() -> None:
    mech, z, u = four_bar(3)
    mech.options = exact()
    check(mech, z, u)


# -- golden cases ------------------------------------------------------------------------------------------------------------------------

FOLDER = SHARED / "golden"


# The half-cheetah's inertias violate the triangle inequality, so that `Body` refuses them.
GOLDEN = sorted(path.stem for path in FOLDER.glob("*.npz") if not path.stem.startswith("halfcheetah"))


@pytest.mark.parametrize("name", GOLDEN)
def test_golden_cases(name: str) -> None:
    case = load_case(FOLDER, name, original=False)
    z, u = case.arrays["z"][:2], (case.arrays["u"] @ case.input_map.T)[:2]
    case.mechanism.options = exact()
    check(case.mechanism, z, u)


# -- batches ----------------------------------------------------------------------------------------------------------------------------


@pytest.mark.sanitize
@pytest.mark.parametrize("count", [1, 3, 8, 9, 70])
def test_batches(count: int) -> None:
    check(*thrown_box(count))


def test_batch_dimensions_broadcast() -> None:
    """No batch, several dimensions, and inputs with fewer of them than the state."""
    mech, z, u = thrown_box(6)
    for state, push in ((z[0], u[0]), (z.reshape(2, 3, 13), u.reshape(2, 3, 6)), (z.reshape(2, 3, 13), u[0]), (z[1], u)):
        out = {}
        for backend in ("reference", "native"):
            mech.options = exact(backend=backend)
            leaves = dict(z=state.clone().requires_grad_(), u=push.clone().requires_grad_())
            step = mech.step(**leaves)
            grads = torch.autograd.grad(step.z.sum(), list(leaves.values()))
            out[backend] = (step, grads, mech.jacobians(state, push))
        (step, grads, jacobians), (wanted, their_grads, their_jacobians) = out["native"], out["reference"]
        assert [t.shape for t in step] == [t.shape for t in wanted] and torch.equal(step.status, wanted.status)
        pairs = zip((*step[:2], *grads, *jacobians), (*wanted[:2], *their_grads, *their_jacobians), strict=True)
        # Each at its own solution, so 1e-6 (see `check`) for derivatives, of size up to 100 here.
        assert all(torch.allclose(a, b, rtol=1e-6, atol=1e-6) for a, b in pairs)


PER_ENVIRONMENT = {
    "mass": lambda mech, n: setattr(mech.bodies["box"], "mass", 0.5 + torch.rand(n)),
    "inertia": lambda mech, n: setattr(mech.bodies["box"], "inertia", (0.04 + 0.02 * torch.rand(n, 3)).diag_embed()),
    "friction": lambda mech, n: setattr(mech.contacts["corner3"], "friction", torch.rand(n)),
    "point": lambda mech, n: setattr(mech.contacts["corner2"], "point", mech.contacts["corner2"].point + 0.01 * torch.rand(n, 3)),
    "normal": lambda mech, n: setattr(mech.contacts["corner1"], "normal", torch.tensor((0.0, 0.0, 1.0)) + 0.1 * torch.randn(n, 3)),
    "anchor": lambda mech, n: setattr(mech.joints["base"], "child_anchor", 0.1 * torch.randn(n, 3)),
    "damper": lambda mech, n: setattr(mech.joints["base"], "damper", torch.rand(n, 6)),
    "spring": lambda mech, n: setattr(mech.joints["base"], "spring", torch.rand(n, 6)),
    "timestep": lambda mech, n: setattr(mech, "timestep", 0.005 + 0.01 * torch.rand(n)),
    "gravity": lambda mech, n: setattr(mech, "gravity", torch.tensor((0.0, 0.0, -9.81)) + torch.randn(n, 3)),
}


@pytest.mark.sanitize
@pytest.mark.parametrize("which", [*PER_ENVIRONMENT, "all"])
def test_parameters_of_each_environment(which: str) -> None:
    mech, z, u = thrown_box(12)
    for name, change in PER_ENVIRONMENT.items():
        if which in (name, "all"):
            change(mech, 12)
    check(mech, z, u)


# -- options -----------------------------------------------------------------------------------------------------------------------------


OPTIONS = {
    "1e-3": exact(1e-3),
    "1e-8": exact(1e-8),
    "grad_kappa": exact(1e-6, grad_kappa=1e-3),
    "grad_kappa near": exact(1e-5, grad_kappa=1e-4),
    "min_iterations": exact(1e-5, min_iterations=12),
    "1e-2": exact(1e-2),
    "1": exact(1.0),
}


@pytest.mark.sanitize
@pytest.mark.parametrize("name", OPTIONS)
def test_options(name: str) -> None:
    mech, z, u = thrown_box(8)
    mech.options = OPTIONS[name]
    check(mech, z, u)


@pytest.mark.parametrize("name", ["1e-8", "grad_kappa", "1"])
def test_options_of_a_tree(name: str) -> None:
    mech, z, u = random_tree(1, 5, 3, contacts=6)
    mech.options = OPTIONS[name]
    check(mech, z, u)


@pytest.mark.sanitize
@pytest.mark.parametrize("laws", LAWS, ids=str)
@pytest.mark.parametrize("model", [td.ImpactContact, td.NonlinearContact, td.LinearContact])
def test_laws_of_contacts(model: type[td.Contact], laws: dict[str, float]) -> None:
    """Flight, impact, sliding and rest of a box, some of it overlapping the ground."""
    mech, z, u = thrown_box(16)
    friction = {} if model is td.ImpactContact else {"friction": 0.3}
    contacts = {
        name: model("box", point=c.point, radius=c.radius, normal=(0.1, 0.0, 1.0), **friction, **laws) for name, c in mech.contacts.items()
    }
    mech = td.Mechanism(dict(mech.bodies.items()), dict(mech.joints.items()), contacts, options=exact())
    z = z.unflatten(-1, (-1, 13)).clone()
    z[8:, 0, 2] -= 0.03
    check(mech, z.flatten(-2), u)


@pytest.mark.sanitize
@pytest.mark.parametrize(("facets", "kappa"), [(4, 1e-6), (6, 1e-3), (10, 1e-6)])
def test_pyramids(facets: int, kappa: float) -> None:
    mech, z, u = thrown_box(9)
    contacts = {
        name: td.LinearContact("box", point=c.point, radius=c.radius, friction=0.3, facets=facets) for name, c in mech.contacts.items()
    }
    mech = td.Mechanism(dict(mech.bodies.items()), dict(mech.joints.items()), contacts, options=exact(kappa))
    check(mech, z, u)


# All pairs without a law; every other law has its share of them here and in test_parity_rare.py.
@pytest.mark.sanitize
@pytest.mark.parametrize(
    ("shape", "other", "fixed", "laws"),
    [*((*pair, {}) for pair in PAIRS), *((*pair, {"restitution": 0.7}) for pair in dealt(0, 4))],
    ids=str,
)
def test_contacts_between(shape: str, other: str, fixed: bool, laws: dict[str, float]) -> None:
    out = check(*collision(shape, other, fixed, td.NonlinearContact, **laws))
    assert int((out.impulses[:, 0] > 1e-2).sum()) >= 4


@pytest.mark.sanitize
@pytest.mark.parametrize("model", [td.ImpactContact, td.LinearContact])
@pytest.mark.parametrize(("shape", "other"), [("sphere", "box"), ("box", "capsule"), ("capsule", "capsule"), ("box", "box")])
def test_models_of_contacts_between(shape: str, other: str, model: type[td.Contact]) -> None:
    """One model bounces where the other one does not."""
    bounces = (model is td.ImpactContact) == (shape == "box")
    check(*collision(shape, other, False, model, **({"restitution": 0.7} if bounces else {})))


def test_wrench_with_contact() -> None:
    mech, z, u = thrown_box(8)
    check(mech, z, u, torch.randn(8, 6))


# -- rollouts ---------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["box", "tree"])
def test_rollouts(kind: str) -> None:
    """One call of six steps against six steps of the reference, through impacts, and the gradient of the end by the beginning."""
    mech, z, u = thrown_box(8) if kind == "box" else random_tree(1, 5, 3, contacts=6)
    next(iter(mech.bodies.values())).mass.requires_grad_()
    # A larger kappa than elsewhere: six steps multiply what separates two solutions (see `check`) by the chaos of six impacts.
    results = []
    for backend in ("reference", "native"):
        mech.options = exact(1e-4, backend=backend)
        results.append(trajectory(mech, z, u, 6))
    (states, status, grads), (our_states, our_status, our_grads) = results
    assert status.eq(0).all() and our_status.eq(0).all()
    assert float(mech.distances(states[:, 1:]).min()) < 1e-3
    errors = [error(our_states, states), *(relative(a, b) for a, b in zip(our_grads, grads, strict=True))]
    assert max(errors) < 1e-9


# -- isolation --------------------------------------------------------------------------------------------------------------------------


def infinite_input(z: Tensor, u: Tensor) -> None:
    u[5, 2] = torch.inf


def absurd_velocity(z: Tensor, u: Tensor) -> None:
    z[5, 3:6] = 1e30


def fast_spin(z: Tensor, u: Tensor) -> None:
    z[5, 10] = 1e5


@pytest.mark.sanitize
@pytest.mark.parametrize("spoil", [nan_state, infinite_input, absurd_velocity, fast_spin])
@pytest.mark.parametrize("kind", ["box", "quadruped"])
def test_bad_environment_harms_no_other(spoil: Any, kind: str) -> None:
    if kind == "box":
        mech, z, u = thrown_box(16)
    else:
        mech = td.models.quadruped()
        z = td.models.initial_state("quadruped", mech, (16,))
        u = torch.randn(16, mech.num_inputs)
    mech.options = td.SolverOptions(backend="native", max_halvings=1)
    others = torch.arange(16) != 5
    clean = outputs(mech, z, u, others)
    spoil(z, u)
    spoiled = outputs(mech, z, u)
    assert same_bits(clean, [t[others] for t in spoiled])
    next_state, _, status, *_, grad_z, grad_u, jac_z, jac_u = (t[5] for t in spoiled)
    if spoil is absurd_velocity and int(status) == 0:
        # A box may just fly off that fast.
        assert torch.isfinite(next_state).all()
        return
    assert int(status) == (td.Status.MAX_ITERATIONS if spoil is absurd_velocity else td.Status.INVALID_INPUT)
    assert torch.equal(torch.nan_to_num(next_state), torch.nan_to_num(z[5]))
    assert not any(bool(t.any()) for t in (grad_z, grad_u, jac_z, jac_u))


def test_crooked_quaternion_is_refused() -> None:
    mech, z, u = thrown_box(16)
    mech.options = td.SolverOptions(backend="native")
    z[5, 6] = 1.1
    with pytest.raises(ValueError, match="environment 5 has a quaternion"):
        mech.step(z, u)


@pytest.mark.sanitize
def test_results_do_not_depend_on_the_batch() -> None:
    """Bit for bit: neither on the place in the batch, nor on its size (of two or more), nor on threads."""
    mech, z, u = thrown_box(40)
    mech.options = td.SolverOptions(backend="native")
    everything = outputs(mech, z, u)
    for rows in (torch.arange(40).flip(0), torch.randperm(40), torch.arange(7), torch.tensor((39, 2)), torch.arange(3, 30, 2)):
        assert same_bits([t[rows] for t in everything], outputs(mech, z[rows], u[rows]))
    threads = torch.get_num_threads()
    try:
        for count in (2, 3, 5):
            torch.set_num_threads(count)
            assert same_bits(everything, outputs(mech, z, u))
    finally:
        torch.set_num_threads(threads)
    # One environment alone goes through other instructions (no vectors), so only to rounding.
    alone = outputs(mech, z[:1], u[:1])
    assert all(torch.allclose(a[:1].double(), b.double(), rtol=1e-8, atol=1e-8) for a, b in zip(everything[:2], alone[:2], strict=True))


# -- where steps fail --------------------------------------------------------------------------------------------------------------------


def thrown_quadrupeds(count: int) -> Sample:
    """In random orientations, onto their backs and legs: long steps that need every rung of the solver's ladder."""
    mech = td.models.quadruped()
    mech.timestep = 0.05
    z = td.models.initial_state("quadruped", mech, (count,)).unflatten(-1, (-1, 13))
    turn = quat.normalize(torch.randn(count, 1, 4))
    middle = z[..., :3].mean(-2, keepdim=True)
    z[..., :3] = quat.rotate(turn, z[..., :3] - middle)
    z[..., 2] -= z[..., 2].amin(-1, keepdim=True) - 0.05
    z[..., 6:10] = quat.multiply(turn, z[..., 6:10])
    spin = 3 * torch.randn(count, 1, 3)
    z[..., 3:6] = torch.randn(count, 1, 3) - torch.tensor((0.0, 0.0, 3.0)) + quat.cross(spin, z[..., :3])
    z[..., 10:13] = quat.inverse_rotate(z[..., 6:10], spin)
    return Sample(mech, z.flatten(-2), torch.zeros(count, mech.num_inputs))


def compare_ladders(hardest: int, count: int) -> None:
    """`count` of 300 throws, in the order of the iterations they take: those that are split into two steps or more come first."""
    mech, z, u = thrown_quadrupeds(300)
    mech.options = exact(max_halvings=2, backend="native")
    with torch.no_grad():
        chosen = mech.step(z, u).iterations.argsort(descending=True)[hardest : hardest + count]
    z, u = z[chosen].requires_grad_(), u[chosen].requires_grad_()
    results = []
    for backend in ("reference", "native"):
        mech.options = exact(max_halvings=2, backend=backend)
        out = mech.step(z, u)
        gradients = torch.autograd.grad((out.z * torch.linspace(-1, 1, z.shape[-1])).sum(), (z, u))
        results.append((td.StepOutput(*(value.detach() for value in out)), *gradients))
    (wanted, *their_gradients), (path, *gradients) = results
    assert torch.equal(path.status, wanted.status) and wanted.status.eq(0).all()
    if not hardest:
        assert int(path.substeps.max()) > 1
    # Such a step may have several solutions. Rounding, amplified by a hundred iterations far from all of them, decides between them; both
    # sides reach the same solution in 299 of 300 throws.
    same = (path.substeps == wanted.substeps) & ((path.z - wanted.z).abs().amax(-1) < 1e-6)
    assert int(same.sum()) >= 0.9 * len(same)
    # Where it was another one, the kernel itself finds both from inputs that differ in their last bits.
    mech.options = exact(max_halvings=2, backend="native")
    with torch.no_grad():
        for other in z[~same]:
            copies = other * (1 + 4 * ULP * torch.randn(16, len(other)))
            ends = mech.step(copies, u.new_zeros(16, u.shape[-1])).z
            assert float((ends - ends[0]).abs().amax()) > 1e-6
    # At two solutions, neither of them polished, so only to what `check` says about that: 1e-6, and, over several steps, a little more.
    assert error(path.z[same], wanted.z[same]) < 1e-8
    assert all(relative(ours[same], theirs[same]) < 1e-5 for ours, theirs in zip(gradients, their_gradients, strict=True))


def test_long_steps_of_thrown_quadrupeds() -> None:
    compare_ladders(80, 6)


@pytest.mark.slow
def test_hardest_steps_of_thrown_quadrupeds() -> None:
    compare_ladders(0, 40)
