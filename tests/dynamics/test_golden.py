"""Parity with the original engine, step by step (../shared/golden/README.md says what the numbers are and how far they can be trusted)."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

import torchdojo as td
from conftest import shared_path
from golden import GoldenCase, OriginalJoint, load_case
from torchdojo import quaternion as quat
from torchdojo.elements.element import Motion, orthonormal_complement

# The laws of several rotations that the original has run on the reference, which says so.
pytestmark = pytest.mark.filterwarnings("ignore:SolverOptions.*the reference takes the steps")

FOLDER = shared_path("golden")
DESCRIPTIONS: dict[str, dict[str, Any]] = {p.stem: json.loads(p.read_text()) for p in sorted(FOLDER.glob("*.json")) if p.stem != "index"}

# The tolerances of this solver: well below those of the comparison, so that the latter measures the equations, not the iteration.
EXACT = dict(residual_tol=1e-11, central_path_tol=1e-8)


def missing_feature(description: dict[str, Any]) -> str | None:
    """Feature that the engine lacks, or that test_joint_mechanics compares (joint limits), or None."""
    if any(joint["impulse_layout"][part][0] for joint in description["joints"] for part in ("translational", "rotational")):
        return "joint limits"
    return None


SUPPORTED = [name for name, description in DESCRIPTIONS.items() if missing_feature(description) is None]
HALF_LEVER = [name for name in SUPPORTED if name.endswith("_trainput")]
PARITY = [name for name in SUPPORTED if name not in HALF_LEVER]
FREE = [name for name in PARITY if not DESCRIPTIONS[name]["contacts"]]
CONTACT = [name for name in PARITY if DESCRIPTIONS[name]["contacts"]]
TREES = [name for name in SUPPORTED if not name.startswith("fourbar")]
SNAKES = [name for name in SUPPORTED if name.startswith("snake3_")]


@cache
def case_of(name: str) -> GoldenCase:
    return load_case(FOLDER, name)


def inputs(case: GoldenCase) -> Tensor:
    return case.arrays["u"] @ case.input_map.T


@cache
def steps(name: str, kappa_exponent: int = 6) -> td.StepOutput:
    """One step from every recorded state, in one call."""
    case = case_of(name)
    case.mechanism.options = td.SolverOptions(kappa=10.0**-kappa_exponent, **EXACT)
    with torch.no_grad():
        return case.mechanism.step(case.arrays["z"], inputs(case))


def worst(difference: Tensor) -> float:
    return float(difference.abs().max())


def flagged(out: td.StepOutput) -> list[int]:
    return out.status.nonzero().flatten().tolist()


def test_tables_hold_what_they_should() -> None:
    """Every case is either compared or left out for a stated reason."""
    assert len(DESCRIPTIONS) == 58
    left_out = {name: missing_feature(d) for name, d in DESCRIPTIONS.items() if name not in SUPPORTED}
    assert set(left_out.values()) <= {"joint limits"}
    assert len(FREE) >= 24 and len(CONTACT) >= 15 and len(HALF_LEVER) == 11


# -- states and impulses --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FREE)
def test_state_without_contact(name: str) -> None:
    out = steps(name)
    assert flagged(out) == []
    # A residual of 1e-11 N·s over inertias of 1e-3 kg·m² is an error of 1e-8 rad/s.
    assert worst(out.z - case_of(name).arrays["z_next"]) <= 1e-8


@pytest.mark.parametrize("kappa_exponent", [3, 4, 6])
@pytest.mark.parametrize("name", CONTACT)
def test_state_and_impulses_with_contact(name: str, kappa_exponent: int) -> None:
    case, out = case_of(name), steps(name, kappa_exponent)
    suffix = f"_k{kappa_exponent}"
    golden = {key.removesuffix(suffix): value for key, value in case.arrays.items() if key.endswith(suffix) and key[0] not in "AB"}
    assert flagged(out) == []
    # Both engines satisfy products of κ >= 1e-6 to 1e-8 of it.
    assert worst(out.z - golden["z_next"]) <= 1e-6
    assert worst(case.mechanism.distances(out.z) - golden["contact_phi_next"]) <= 1e-6

    # Theirs: (γ, β₁ β₂ β₃) and (φ, η₁ η₂ η₃) per contact, tangential parts on their tangents. Compared as scalars and world vectors.
    sizes = case.description["contact_impulse_sizes"]
    blocks = zip(case.description["contacts"], golden["contact_gamma"].split(sizes, -1), golden["contact_s"].split(sizes, -1), strict=True)
    for entry, their_impulse, their_slack in blocks:
        contact = case.mechanism.contacts[entry["name"]]
        here = case.mechanism.layout.impulses[f"contacts.{entry['name']}"]
        size = here.stop - here.start
        ours, tangents = orthonormal_complement(contact.normal), torch.tensor(entry["tangents"])
        for mine, theirs in ((out.solution[:, here], their_impulse), (out.solution[:, here.stop : here.stop + size], their_slack)):
            assert mine.shape == theirs.shape
            split = min(2, size)
            assert worst(mine[:, :split] - theirs[:, :split]) <= 1e-6
            if size == 4:
                assert worst(mine[:, 2:] @ ours - theirs[:, 2:] @ tangents) <= 1e-6
            if size == 6:  # a pyramid: one number per direction, each of theirs is one of ours
                theirs_in_world = torch.tensor(entry["friction_parameterization"]) @ tangents
                same = (contact.directions(contact.normal) @ theirs_in_world.T > 0.5).to(mine)
                assert torch.equal(same.sum(0), torch.ones(4)) and torch.equal(same.sum(1), torch.ones(4))
                assert worst(mine[:, 2:] @ same - theirs[:, 2:]) <= 1e-6
    _compare_multipliers(case, out, golden["joint_impulses"])


# Two of its five joints hold the same directions: the multipliers are not unique.
@pytest.mark.parametrize("name", [name for name in FREE if not name.startswith("fourbar")])
def test_joint_multipliers_without_contact(name: str) -> None:
    _compare_multipliers(case_of(name), steps(name), case_of(name).arrays["joint_impulses"])


def _compare_multipliers(case: GoldenCase, out: td.StepOutput, golden: Tensor) -> None:
    """The impulse vectors Cᵀλ are equal with no factor.

    Both engines use the rows of vec(q_off⁻¹ q_a⁻¹ q_b) as they are. So λ of a rotation is conjugate to half-angles, twice a torque impulse
    at p = 1. For a translation, our λ is in the joint frame, and Dojo's is in the parent's frame.
    """
    start = 0
    for entry in case.description["joints"]:
        (_, _, translational), (_, _, rotational) = entry["impulse_layout"]["translational"], entry["impulse_layout"]["rotational"]
        count = translational + rotational
        ours, theirs = case.joint_maps[entry["name"]]
        mine = out.impulses[:, case.mechanism.impulse_layout[f"joints.{entry['name']}"]] @ ours
        offset = case.mechanism.joints[entry["name"]].orientation_offset
        mine = torch.cat((quat.rotate(offset, mine[:, :3]), mine[:, 3:]), -1)
        # As for the states; multipliers are masses of up to 10 kg times their errors.
        assert worst(mine - golden[:, start : start + count] @ theirs) <= 1e-6
        start += count
    assert start == golden.shape[-1]


# -- Jacobians ------------------------------------------------------------------------------------------------------------------


class OriginalInputs(td.StandardJoint):
    """Adds the defect of the original: a joint's translational input has half of its lever torque on both bodies."""

    def residual(
        self, motions: tuple[Motion, ...], impulse: Tensor, slack: Tensor, u: Tensor, timestep: Tensor
    ) -> tuple[list[tuple[Tensor, Tensor]], Tensor]:
        ((f_a, t_a), (f_b, t_b)), rows = super().residual(motions, impulse, slack, u, timestep)
        parent, child = (motion.pose for motion in motions)
        frame = quat.multiply(parent.q, self.orientation_offset)
        force = quat.rotate(frame, self.expanded(timestep * u)[0])
        child_lever = quat.rotate(child.q, self.child_anchor)
        parent_lever = child.x + child_lever - parent.x
        t_a = t_a + 0.5 * quat.inverse_rotate(parent.q, quat.cross(parent_lever, force))
        t_b = t_b - 0.5 * quat.inverse_rotate(child.q, quat.cross(child_lever, force))
        return [(f_a, t_a), (f_b, t_b)], rows


def with_original_inputs(mechanism: td.Mechanism) -> td.Mechanism:
    joints = []
    for name, joint in mechanism.joints.items():
        if joint.parent is not None and joint.free_translations:
            joint.__class__ = type(f"Original{type(joint).__name__}", (OriginalInputs, type(joint)), {"__module__": __name__})
        joints.append((name, joint))
    return td.Mechanism(
        list(mechanism.bodies.items()),
        joints,
        list(mechanism.contacts.items()),
        timestep=mechanism.timestep,
        gravity=mechanism.gravity,
        options=mechanism.options,
    )


JACOBIANS = [
    pytest.param(name, exponent, id=f"{name}-k{exponent}" if DESCRIPTIONS[name]["contacts"] else name)
    for name in PARITY
    if not name.startswith("fourbar")  # redundant constraints: the step from a state off the manifold is not unique
    for exponent in ((3, 4, 6) if DESCRIPTIONS[name]["contacts"] else (6,))
]


def golden_jacobians(case: GoldenCase, kappa_exponent: int) -> tuple[Tensor, Tensor, Tensor]:
    """Records, A and B in our attitude convention. Their δφ is the half-angle vector, half of our rotation vector."""
    suffix = f"_k{kappa_exponent}" if case.description["contacts"] else ""
    scale = torch.ones(case.mechanism.num_bodies, 12)
    scale[:, 6:9] = 2
    scale = scale.flatten()
    A = scale[:, None] * case.arrays[f"A_ift{suffix}"] / scale
    # Their B is per unit of their input, ours = input_map @ theirs, and the map is orthogonal.
    return case.arrays["jac_index"].long(), A, scale[:, None] * case.arrays[f"B_ift{suffix}"] @ case.input_map.T


def jacobian_tolerance(golden: Tensor) -> Tensor:
    """The README estimates the error of A_ift as below 1e-6 for norms up to 900: 1e-6, relative where the norm exceeds one."""
    return 1e-6 * torch.linalg.matrix_norm(golden, torch.inf).clamp_min(1)[:, None, None]


@pytest.mark.parametrize(("name", "kappa_exponent"), JACOBIANS)
def test_jacobians(name: str, kappa_exponent: int) -> None:
    """A and B, without what the half lever of the original touches: the next test has that."""
    case = case_of(name)
    index, A, B = golden_jacobians(case, kappa_exponent)
    case.mechanism.options = td.SolverOptions(kappa=10.0**-kappa_exponent, **EXACT)
    jac_z, jac_u = case.mechanism.jacobians(case.arrays["z"][index], inputs(case)[index])
    compared = torch.ones(case.mechanism.num_inputs, dtype=torch.bool)
    for joint_name, place in case.mechanism.input_layout.items():
        joint = case.mechanism.joints[joint_name]
        if joint.parent is not None:
            compared[place.start : place.start + joint.free_translations] = False
    assert ((jac_u - B).abs() <= jacobian_tolerance(A))[:, :, compared].all()
    if not inputs(case)[:, ~compared].any():
        assert ((jac_z - A).abs() <= jacobian_tolerance(A)).all()


@pytest.mark.parametrize(("name", "kappa_exponent"), JACOBIANS)
def test_jacobians_with_half_lever(name: str, kappa_exponent: int) -> None:
    """Every entry of A and B, with the defect of the original added by joints that a user could have written."""
    case = load_case(FOLDER, name)
    index, A, B = golden_jacobians(case, kappa_exponent)
    case.mechanism.options = td.SolverOptions(kappa=10.0**-kappa_exponent, **EXACT)
    mechanism = with_original_inputs(case.mechanism)
    jac_z, jac_u = mechanism.jacobians(case.arrays["z"][index], inputs(case)[index])
    assert ((jac_z - A).abs() <= jacobian_tolerance(A)).all()
    assert ((jac_u - B).abs() <= jacobian_tolerance(A)).all()


# -- coordinates, energy, momentum ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", TREES)
def test_minimal_coordinates(name: str) -> None:
    """x_min holds per joint [Δx, Δθ, Δv, Δω] on the original's axes. Several rotations are compared as rotations: the original does not
    reduce angles above π to the shorter turn."""
    case = case_of(name)
    q, qd = case.mechanism.to_minimal(case.arrays["z"])
    mine, theirs = 0, 0
    for entry in case.description["joints"]:
        joint = case.mechanism.joints[entry["name"]]
        count = joint.num_coordinates
        golden_q, golden_qd = case.arrays["x_min"][:, theirs : theirs + 2 * count].tensor_split(2, -1)
        their_axes = torch.block_diag(
            *(torch.tensor(entry[f"free_{part}_axes"]).reshape(-1, 3) for part in ("translational", "rotational"))
        )
        our_axes = torch.block_diag(joint.free_translational_axes, joint.free_rotational_axes)
        here, rate = q[:, mine : mine + count] @ our_axes, qd[:, mine : mine + count] @ our_axes
        # Rounding of coordinates of order 1, divided by h for the rates.
        assert torch.allclose(here[:, :3], (golden_q @ their_axes)[:, :3], rtol=0, atol=1e-12)
        turn, their_turn = (quat.rotation_matrix(quat.exp(v[:, 3:])) for v in (here, golden_q @ their_axes))
        # The original loses digits where a turn is nearly complete: 6e-11 at 2.8e-4 rad before it, in cartpole_random_h05.
        if joint.free_rotations == 1:
            assert torch.allclose(here[:, 3:], (golden_q @ their_axes)[:, 3:], rtol=0, atol=1e-10)
        assert torch.allclose(turn, their_turn, rtol=0, atol=1e-10)
        golden_rate = golden_qd @ their_axes
        if joint.free_rotations == 3 and not isinstance(joint, OriginalJoint):  # theirs has the axes of the child
            golden_rate = torch.cat((golden_rate[:, :3], (their_turn @ golden_rate[:, 3:, None]).squeeze(-1)), dim=-1)
        assert torch.allclose(rate, golden_rate, rtol=0, atol=1e-11)
        mine, theirs = mine + count, theirs + 2 * count
    assert (mine, theirs) == (q.shape[-1], case.arrays["x_min"].shape[-1])


#: Cases with a hinge beyond π: records there, and the largest angle [rad].
BEYOND_PI = {"cartpole_limits": (54, 4.377), "cartpole_random_h05": (75, 6.2829)}


@pytest.mark.parametrize("name", BEYOND_PI)
def test_angles_beyond_pi(name: str) -> None:
    """The pole's angle and the step from there are those of the original: `test_state_without_contact` and `test_golden_cartpole` compare
    the states."""
    case = case_of(name)
    q, qd = case.mechanism.to_minimal(case.arrays["z"])
    angle, rate = case.arrays["x_min"][:, 2], case.arrays["x_min"][:, 3]
    sign = torch.sign(q[0, 1] * angle[0])  # the bases of both engines
    count, largest = BEYOND_PI[name]
    assert int((q[:, 1].abs() > torch.pi).sum()) == count and float(q[:, 1].abs().max()) == pytest.approx(largest, abs=1e-3)
    assert worst(sign * q[:, 1] - angle) <= 1e-10 and worst(sign * qd[:, 1] - rate) <= 1e-11
    assert worst(case.mechanism.to_maximal(q, qd) - case.arrays["z"]) <= 1e-9  # the sign of the quaternion, too


@pytest.mark.parametrize("name", FREE)
def test_energy_and_momentum(name: str) -> None:
    """The original takes p = m v⁺ − ½ (all impulses of the step); ours is the mean of what arrives and what leaves. They agree, because the
    step balances both with the same impulses: gravity, inputs, springs, dampers and joints."""
    case, out = case_of(name), steps(name)
    z, mechanism = case.arrays["z"], case.mechanism
    # As precise as the states (1e-8), times momenta and levers of order 1 to 10.
    assert worst(mechanism.kinetic_energy(z, out.z) - case.arrays["kinetic_energy"]) <= 1e-8
    assert worst(mechanism.momentum(z, out.z) - case.arrays["momentum"]) <= 1e-8
    # A function of the given state alone: rounding of some 100 J.
    assert worst(mechanism.potential_energy(z) - case.arrays["potential_energy"]) <= 1e-12


@pytest.mark.parametrize("name", HALF_LEVER)
def test_states_with_half_lever(name: str) -> None:
    """The `_trainput` cases are the original's equations with its defect, and with no other difference."""
    case = load_case(FOLDER, name)
    case.mechanism.options = td.SolverOptions(**EXACT)
    out = with_original_inputs(case.mechanism).step(case.arrays["z"], inputs(case))
    assert flagged(out) == []
    # As in `test_state_without_contact`.
    assert worst(out.z - case.arrays["z_next"]) <= 1e-8


@pytest.mark.parametrize("name", SNAKES)
def test_only_external_impulses_change_momentum(name: str) -> None:
    """Over the step the momentum changes by the impulse of gravity and of the base's inputs.

    Springs, dampers, constraints and the inputs of inner joints, `_trainput` included, do not change it.
    """
    case = case_of(name)
    mechanism, z, u, h = case.mechanism, case.arrays["z"], inputs(case), case.description["timestep"]
    out = steps(name)
    base = next(joint for joint in mechanism.joints.values() if joint.parent is None)
    place = mechanism.input_layout[next(k for k, joint in mechanism.joints.items() if joint is base)]
    force, torque = h * u[:, place.start : place.start + 3], h * u[:, place.start + 3 : place.stop]
    states = z.unflatten(-1, (-1, 13))
    masses = torch.stack([body.mass for body in mechanism.bodies.values()])
    center = (masses[:, None] * states[..., :3]).sum(-2) / masses.sum()
    child = states[:, list(mechanism.bodies).index(base.child)]
    point = child[:, :3] + quat.rotate(child[:, 6:10], base.child_anchor)
    linear = force + h * masses.sum() * mechanism.gravity
    expected = torch.cat((linear, torque + quat.cross(point - center, force)), -1)
    # Sum over 3 bodies of residuals of 1e-11, with levers of 1 m.
    assert worst(mechanism.momentum(out.z) - mechanism.momentum(z) - expected) <= 1e-10
