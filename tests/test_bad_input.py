"""Bad input: the right exception, whose message says what was received and what to do; and bad environments that leave the others alone."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import torchdojo as td


def body(**values: Any) -> td.Body:
    return td.Body(**{"mass": 1.0, "inertia": (0.1, 0.1, 0.1), **values})


def mechanism(**options: Any) -> td.Mechanism:
    """Two bodies, one joint, one contact: 26 state entries, 1 input, 12 + 5 + 8 unknowns."""
    return td.Mechanism(
        {"base": body(), "arm": body()},
        {"hinge": td.Revolute("base", "arm", axis=(0, 1, 0), child_anchor=(0, 0, 0.5))},
        {"tip": td.NonlinearContact("base", radius=0.1)},
        options=td.SolverOptions(kappa=1e-4, **options),
    )


def state(*batch: int) -> Tensor:
    return mechanism().initial_state(batch, base=dict(position=(0, 0, 0.1005), velocity=(0.3, 0, -0.2)), hinge=dict(q=0.3, qd=0.5))


def changed(z: Tensor, place: int, value: float) -> Tensor:
    z = z.clone()
    z[..., place] = value
    return z


Call = Callable[[], Any]
# name -> (call, exception, what the message must match: received and remedy)
STEPPING: dict[str, tuple[Call, type[Exception], str]] = {
    "z_too_short": (lambda: mechanism()(state()[:13]), ValueError, r"z: got shape \(13,\); allowed: \(\.\.\., 26\).*2 bodies"),
    "z_scalar": (lambda: mechanism()(torch.tensor(1.0)), ValueError, r"z: got shape \(\); allowed: \(\.\.\., 26\)"),
    "z_numpy": (lambda: mechanism()(state().numpy()), TypeError, r"z: got ndarray; allowed: a tensor.*torch\.as_tensor"),
    "z_list": (lambda: mechanism()([0.0] * 26), TypeError, r"z: got list; allowed: a tensor of shape"),
    "z_half": (lambda: mechanism()(state().half()), TypeError, r"z: got torch\.float16; allowed: torch\.float64 or torch\.float32"),
    "u_bfloat16": (lambda: mechanism().step(state().float(), torch.zeros(1).bfloat16()), TypeError, r"u: got torch\.bfloat16.*u\.double"),
    "q_integer": (lambda: mechanism().to_maximal(torch.zeros(7, dtype=torch.int64)), TypeError, r"q: got torch\.int64.*q\.double"),
    "z_device": (lambda: mechanism()(state().to("meta")), TypeError, r"z: on meta, the mechanism on cpu; move one"),
    "u_shape": (lambda: mechanism()(state(), torch.zeros(3)), ValueError, r"u: got shape \(3,\); allowed: \(\.\.\., 1\)"),
    "u_integer": (lambda: mechanism()(state(), torch.zeros(1, dtype=torch.int64)), TypeError, r"u: got torch\.int64"),
    "u_number": (lambda: mechanism()(state(), 0.5), TypeError, r"u: got float; allowed: a tensor"),
    "wrench_shape": (lambda: mechanism()(state(), wrench=torch.zeros(6)), ValueError, r"wrench: got shape \(6,\); allowed: \(\.\.\., 12\)"),
    "warm_start_shape": (
        lambda: mechanism().step(state(), warm_start=torch.zeros(7)),
        ValueError,
        r"warm_start: got shape \(7,\); allowed",
    ),
    "batches_do_not_fit": (lambda: mechanism()(state(3), torch.zeros(4, 1)), (RuntimeError, ValueError), r"shape|broadcast"),
    "z_nan": (lambda: mechanism()(changed(state(2), 0, math.nan)), ValueError, r"environment 0 of 2 is invalid.*not finite"),
    "u_nan": (lambda: mechanism()(state(), torch.tensor([math.inf])), ValueError, r"environment 0 of 1 is invalid.*not finite"),
    "too_fast": (lambda: mechanism()(changed(state(), 10, 4600.0)), ValueError, r"environment 0 of 1 is invalid.*√2/h"),
    "not_unit": (lambda: mechanism()(changed(state(), 6, 1.1)), ValueError, r"environment 0.*norm differs from 1 by 0\.1.*divide.*norm"),
    "not_unit_step": (lambda: mechanism().step(changed(state(3), 19, 1e-3)), ValueError, r"quaternion.*norm.*unit quaternions wxyz"),
    "raise_invalid": (lambda: mechanism(on_failure="raise").step(changed(state(), 0, math.nan)), ValueError, r"invalid.*not finite"),
    "rollout_steps": (lambda: mechanism().rollout(state()), ValueError, r"steps: got None; give a whole number"),
    "rollout_part_of_a_step": (
        lambda: mechanism().rollout(state(), steps=2.5),
        ValueError,
        r"steps: got 2\.5; give a whole number",
    ),
    "rollout_zero_steps": (
        lambda: mechanism().rollout(state(), steps=0),
        ValueError,
        r"steps: got 0; give a whole number",
    ),
    "rollout_length": (lambda: mechanism().rollout(state(), torch.zeros(5, 1), steps=4), ValueError, r"u: got shape \(5, 1\) with steps=4"),
    "rollout_number": (lambda: mechanism().rollout(state(), 10), TypeError, r"u: got 10; allowed: a tensor .*rollout\(z, steps=10\)"),
    "batch_text": (
        lambda: mechanism().initial_state("five"),
        TypeError,
        r"batch_shape: got 'five'; allowed: whole numbers, such as \(64,\)",
    ),
    "batch_fraction": (lambda: mechanism().initial_state(0.5), TypeError, r"batch_shape: got 0\.5; .*given by name, hinge=dict\(q=0\.3\)"),
    "body_number": (lambda: mechanism().initial_state(base=0.3), TypeError, r"'base' got 0\.3; .*base={'position': \(0, 0, 1\)}"),
    "joint_text": (lambda: mechanism().initial_state(hinge="up"), TypeError, r"'hinge' got 'up'; allowed: hinge={'q': ..., 'qd': ...}"),
    "options_frozen": (
        lambda: setattr(mechanism().options, "kappa", 1e-3),
        AttributeError,
        r"SolverOptions\.kappa: .*mech\.options = dataclasses\.replace\(mech\.options, kappa=0\.001\)",
    ),
    "body_state_name": (lambda: mechanism().body_state(state(), "leg"), ValueError, r"body_state: got 'leg'; bodies are \['base', 'arm'\]"),
    "distances_shape": (lambda: mechanism().distances(state()[:3]), ValueError, r"z: got shape \(3,\); allowed: \(\.\.\., 26\)"),
    "energy_shape": (lambda: mechanism().kinetic_energy(state()[:3]), ValueError, r"z: got shape \(3,\)"),
    "momentum_shape": (lambda: mechanism().momentum(state(), state()[:3]), ValueError, r"z_next: got shape \(3,\)"),
    "jacobians_shape": (lambda: mechanism().jacobians(state()[:3]), ValueError, r"z: got shape \(3,\); allowed"),
    "jacobians_out_kind": (lambda: mechanism().jacobians(state(), out=1.0), TypeError, r"out: got float; allowed: .*shape \(24, 25\)"),
    "jacobians_out_shape": (
        lambda: mechanism().jacobians(state(3), out=torch.empty(24, 25)),
        ValueError,
        r"out: got shape \(24, 25\), .*allowed: \(3, 24, 25\), torch.float64 on cpu, contiguous",
    ),
    "jacobians_out_dtype": (
        lambda: mechanism().jacobians(state(), out=torch.empty(24, 25, dtype=torch.float32)),
        ValueError,
        r"out: .*torch.float32.*allowed: .*torch.empty\(\(24, 25\), dtype=torch.float64\)",
    ),
    "jacobians_out_strided": (lambda: mechanism().jacobians(state(), out=torch.empty(25, 24).mT), ValueError, r"out: .*not contiguous"),
    "to_minimal_shape": (lambda: mechanism().to_minimal(state()[:3]), ValueError, r"z: got shape \(3,\); allowed"),
    "to_maximal_shape": (lambda: mechanism().to_maximal(torch.zeros(2)), ValueError, r"q: got shape \(2,\); allowed: \(\.\.\., 7\)"),
    "body_points_name": (lambda: mechanism().body_points(state(), "leg", torch.zeros(1, 3)), ValueError, r"got 'leg'; bodies are \["),
    "body_points_shape": (
        lambda: mechanism().body_points(state(), next(iter(mechanism().bodies)), torch.zeros(3)),
        ValueError,
        r"got points of shape \(3,\); allowed: \(\.\.\., k, 3\)",
    ),
    "retract_shape": (
        lambda: mechanism().retract(state(), torch.zeros(12)),
        ValueError,
        r"delta: got shape \(12,\); allowed: \(\.\.\., 24\)",
    ),
    "difference_shape": (lambda: mechanism().difference(state(), state()[:13]), ValueError, r"reference: got shape \(13,\); allowed"),
    "step_in_half": (lambda: mechanism().to(torch.float16).step(state().half()), TypeError, r"float16.*torch\.float64"),
}

TRIANGLE = (1.0, 1.0, 2.5)
MODULES: dict[str, tuple[Call, type[Exception], str]] = {
    "zero_mass": (lambda: body(mass=0.0), ValueError, r"Body\.mass: got 0\.0; allowed: positive"),
    "negative_mass": (lambda: setattr(body(), "mass", -2.0), ValueError, r"Body\.mass: got -2\.0; allowed: positive"),
    "one_negative_of_a_batch": (lambda: body(mass=torch.tensor([1.0, -1.0])), ValueError, r"Body\.mass: got \[1\.0, -1\.0\]"),
    "nan_mass": (lambda: body(mass=math.nan), ValueError, r"Body\.mass: got nan; allowed: finite"),
    "text_mass": (lambda: body(mass="heavy"), TypeError, r"Body\.mass: got 'heavy'; give a number"),
    "integer_mass": (lambda: body(mass=torch.tensor(1)), TypeError, r"Body\.mass: got a tensor of dtype torch\.int64.*double\(\)"),
    "indefinite": (lambda: body(inertia=(1.0, 1.0, -1.0)), ValueError, r"Body\.inertia: got .*-1\.0.*positive definite"),
    "triangle": (lambda: body(inertia=TRIANGLE), ValueError, r"Body\.inertia: got .*2\.5.*at most the sum"),
    "asymmetric": (
        lambda: body(inertia=((1.0, 0.1, 0), (0, 1, 0), (0, 0, 1))),
        ValueError,
        r"Body\.inertia: got .*symmetric.*\(I \+ I\.mT\) / 2",
    ),
    "inertia_shape": (lambda: body(inertia=(1.0, 1.0)), ValueError, r"Body\.inertia: got shape \(2,\); allowed: \(3,\)"),
    "no_inertia": (lambda: td.Body(mass=1.0), ValueError, r"Body: got no inertia and 0 shapes; give inertia"),
    "zero_axis": (
        lambda: td.Revolute(None, "a", axis=(0, 0, 0)),
        ValueError,
        r"Revolute\.axis: got \[0\.0, 0\.0, 0\.0\]; allowed: .*positive length",
    ),
    "axis_shape": (lambda: td.Revolute(None, "a", axis=(0, 1)), ValueError, r"Revolute\.axis: got shape \(2,\); allowed: \(\.\.\., 3\)"),
    "crooked_offset": (
        lambda: td.Fixed(None, "a", orientation_offset=(1, 1, 0, 0)),
        ValueError,
        r"orientation_offset: got .*unit.*divide by the norm",
    ),
    "negative_damper": (lambda: td.Revolute(None, "a", damper=-0.1), ValueError, r"Revolute\.damper: got \[-0\.1\]; allowed: values >= 0"),
    "negative_spring": (lambda: td.Revolute(None, "a", spring=-1.0), ValueError, r"Revolute\.spring: got \[-1\.0\]; allowed: values >= 0"),
    "damper_count": (
        lambda: td.Orbital(None, "a", damper=(1, 2, 3)),
        ValueError,
        r"Orbital\.damper: got shape \(3,\); allowed: \(\.\.\., 2\), one per free",
    ),
    "limits_count": (
        lambda: td.Revolute(None, "a", limits=((0, 0), (1, 1))),
        ValueError,
        r"Revolute\.lower: got shape \(2,\).*one per free coordinate of a Revolute",
    ),
    "limits_order": (lambda: td.Revolute(None, "a", limits=(1, -1)), ValueError, r"Revolute\.limits: got \[1\.0\]; allowed: .*-1\.0"),
    "child_is_world": (lambda: td.Fixed("a", "world"), ValueError, r"Fixed: got child='world'; the child is a body name"),
    "parent_is_child": (lambda: td.Fixed("a", "a"), ValueError, r"Fixed: got 'a' as parent and as child; .*different"),
    "negative_friction": (
        lambda: td.NonlinearContact("a", friction=-0.5),
        ValueError,
        r"NonlinearContact\.friction: got -0\.5; allowed: values >= 0",
    ),
    "negative_radius": (lambda: td.ImpactContact("a", radius=-0.5), ValueError, r"ImpactContact\.radius: got -0\.5; allowed: values >= 0"),
    "zero_normal": (
        lambda: td.ImpactContact("a", normal=(0, 0, 0)),
        ValueError,
        r"ImpactContact\.normal: got \[0\.0, 0\.0, 0\.0\]; allowed",
    ),
    "point_shape": (
        lambda: td.ImpactContact("a", point=(1, 2, 3, 4)),
        ValueError,
        r"ImpactContact\.point: got shape \(4,\); allowed: \(\.\.\., 3\)",
    ),
}

ONE = {"a": body}
BUILDING: dict[str, tuple[Call, type[Exception], str]] = {
    "no_bodies": (lambda: td.Mechanism({}), ValueError, r"got no bodies; give at least one"),
    "unknown_child": (
        lambda: td.Mechanism({"a": body()}, {"j": td.Fixed(None, "b")}),
        ValueError,
        r"joint 'j'.*body 'b'; bodies are \['a'\]",
    ),
    "unknown_parent": (
        lambda: td.Mechanism({"a": body()}, {"j": td.Fixed("c", "a")}),
        ValueError,
        r"joint 'j'.*body 'c'; bodies are \['a'\].*None",
    ),
    "unknown_contact": (
        lambda: td.Mechanism({"a": body()}, (), {"c": td.ImpactContact("b")}),
        ValueError,
        r"contact 'c'.*body 'b'; bodies",
    ),
    "duplicate_body": (
        lambda: td.Mechanism([("a", body()), ("a", body())]),
        ValueError,
        r"bodies: the name 'a' is given twice; names must differ",
    ),
    "duplicate_joint": (
        lambda: td.Mechanism({"a": body()}, [("j", td.Fixed(None, "a")), ("j", td.Fixed(None, "a"))]),
        ValueError,
        r"joints: the name 'j' is given twice",
    ),
    "same_module": (lambda: td.Mechanism(dict.fromkeys("ab", body())), ValueError, r"bodies: 'b' is the same object.*one module for each"),
    "dotted_name": (lambda: td.Mechanism({"a.b": body()}), ValueError, r"bodies: 'a\.b' cannot be a name; allowed: .*without dots"),
    "world": (lambda: td.Mechanism({"world": body()}), ValueError, r"bodies: 'world' cannot be a name"),
    "method_name": (lambda: td.Mechanism({"items": body()}), ValueError, r"bodies: 'items' cannot be a name; allowed: .*not a method"),
    "attribute_name": (lambda: td.Mechanism({"training": body()}), ValueError, r"bodies: 'training' cannot be a name"),
    "empty_name": (lambda: td.Mechanism({"": body()}), ValueError, r"bodies: '' cannot be a name; allowed: non-empty"),
    "number_as_name": (lambda: td.Mechanism({1: body()}), ValueError, r"bodies: 1 cannot be a name; allowed: non-empty strings"),
    "joint_as_body": (lambda: td.Mechanism({"a": td.Fixed(None, "b")}), TypeError, r"bodies\['a'\]: got Fixed; allowed: Body"),
    "body_as_contact": (lambda: td.Mechanism({"a": body()}, (), {"c": body()}), TypeError, r"contacts\['c'\]: got Body; allowed: Contact"),
    "zero_timestep": (lambda: td.Mechanism({"a": body()}, timestep=0.0), ValueError, r"timestep: got 0\.0; allowed: positive"),
    "negative_timestep": (lambda: setattr(mechanism(), "timestep", -0.1), ValueError, r"timestep: got -0\.1; allowed: positive"),
    "gravity_number": (lambda: td.Mechanism({"a": body()}, gravity=-9.81), ValueError, r"gravity: got shape \(\); allowed"),
    "gravity_shape": (
        lambda: td.Mechanism({"a": body()}, gravity=(0, -9.81)),
        ValueError,
        r"gravity: got shape \(2,\); allowed: \(\.\.\., 3\)",
    ),
    "open_loop": (
        lambda: td.Mechanism(
            {"a": body()}, {"j": td.Revolute(None, "a"), "k": td.Fixed(None, "a", parent_anchor=(0, 3, 4))}
        ).initial_state(),
        ValueError,
        r"a loop cannot be closed in directions in which it does not move: joint 'k' by 5 m and 0 rad stays open\. Correct the anchors",
    ),
}

OPTIONS: dict[str, tuple[Call, type[Exception], str]] = {
    "negative_kappa": (lambda: td.SolverOptions(kappa=-1e-6), ValueError, r"kappa: got -1e-06; allowed: positive"),
    "zero_kappa": (lambda: td.SolverOptions(kappa=0.0), ValueError, r"kappa: got 0\.0; allowed: positive"),
    "nan_kappa": (lambda: td.SolverOptions(kappa=math.nan), ValueError, r"kappa: got nan; allowed: positive finite"),
    "small_grad_kappa": (
        lambda: td.SolverOptions(kappa=1e-4, grad_kappa=1e-6),
        ValueError,
        r"grad_kappa: got 1e-06; allowed: kappa = 0\.0001 or larger",
    ),
    "zero_residual_tol": (lambda: td.SolverOptions(residual_tol=0.0), ValueError, r"residual_tol: got 0\.0; allowed: positive"),
    "loose_path": (lambda: td.SolverOptions(central_path_tol=1.0), ValueError, r"central_path_tol: got 1\.0; allowed: below 1"),
    "no_iterations": (lambda: td.SolverOptions(max_iterations=0), ValueError, r"max_iterations: got 0; allowed: 1 or more"),
    "unknown_on_failure": (
        lambda: td.SolverOptions(on_failure="ignore"),
        ValueError,
        r"on_failure: got 'ignore'; allowed: \['flag', 'raise'\]",
    ),
    "unknown_backend": (
        lambda: td.SolverOptions(backend="cuda"),
        ValueError,
        r"backend: got 'cuda'; allowed: \['auto', 'reference', 'native'\]",
    ),
    "positional": (lambda: td.SolverOptions(1e-6), TypeError, r"positional argument"),
}

TABLE = {**STEPPING, **MODULES, **BUILDING, **OPTIONS}


def test_names_are_not_reused() -> None:
    assert len(TABLE) == len(STEPPING) + len(MODULES) + len(BUILDING) + len(OPTIONS)


@pytest.mark.parametrize("name", TABLE)
def test_error(name: str) -> None:
    call, exception, message = TABLE[name]
    with pytest.raises(exception, match=message):
        call()


def test_a_refused_assignment_changes_nothing() -> None:
    one = body(mass=2.0)
    with pytest.raises(ValueError, match="positive"):
        one.mass = -1.0
    assert float(one.mass) == 2


def test_nearly_unit_quaternions_are_normalized() -> None:
    z = state()
    scaled = z.clone()
    scaled[6:10] *= 1 + 5e-7
    out, expected = mechanism()(scaled), mechanism()(z)
    torch.testing.assert_close(out, expected, rtol=0, atol=1e-12)
    assert abs(float(torch.linalg.vector_norm(out[6:10])) - 1) <= 1e-15


# -- bad environments among good ones ---------------------------------------------------------------------------


BAD_PLACES = {
    "position": (0, math.nan),
    "velocity": (16, math.inf),
    "quaternion": (7, math.nan),
    "spin": (10, -math.inf),
    "too_fast": (11, 4600.0),  # √2/h for the shortest substep
}


@pytest.mark.parametrize("name", BAD_PLACES)
def test_a_bad_state_is_flagged_alone(name: str) -> None:
    """Only that environment is flagged: the others are bit for bit those of a batch without it, and its gradients are zero."""
    model = mechanism()
    mass = model.bodies["base"].mass.requires_grad_()
    good = state(4) + 0.0
    good[:, 3] = torch.tensor([0.1, 0.2, 0.3, 0.4])
    z = changed(good, 0, 0.0)
    place, value = BAD_PLACES[name]
    z[2, place] = value
    z.requires_grad_()
    u = torch.full((4, 1), 0.1, requires_grad=True)
    out = model.step(z, u)
    assert out.status.tolist() == [0, 0, int(td.Status.INVALID_INPUT), 0]
    assert torch.equal(out.z[2].nan_to_num(7.0), z[2].nan_to_num(7.0))  # the state it had

    keep = [0, 1, 3]
    alone_z, alone_u = z.detach()[keep].requires_grad_(), u.detach()[keep].requires_grad_()
    alone = model.step(alone_z, alone_u)
    assert torch.equal(out.z[keep], alone.z) and torch.equal(out.impulses[keep], alone.impulses)

    (grad_mass,) = torch.autograd.grad(alone.z.sum() + alone.impulses.sum(), mass, retain_graph=True)
    (alone.z.sum() + alone.impulses.sum()).backward()
    # A loss that skips nothing that is finite.
    (out.z[keep].sum() + out.z[2].nan_to_num(0, 0, 0).sum() + out.impulses.sum()).backward()
    assert bool((z.grad[2] == 0).all()) and bool((u.grad[2] == 0).all())
    assert torch.equal(z.grad[keep], alone_z.grad) and torch.equal(u.grad[keep], alone_u.grad)
    assert bool(torch.isfinite(grad_mass))
    torch.testing.assert_close(mass.grad, 2 * grad_mass, rtol=1e-12, atol=1e-12)  # added up twice, in two orders


def test_a_bad_input_or_wrench_is_flagged_alone() -> None:
    for name in ("u", "wrench"):
        values = torch.zeros(3, 1 if name == "u" else 12)
        values[1, 0] = math.nan
        out = mechanism().step(state(3), **{name: values})
        assert out.status.tolist() == [0, int(td.Status.INVALID_INPUT), 0]
        assert torch.equal(out.z[1], state())


def test_rollouts_and_jacobians_carry_a_bad_environment_along() -> None:
    z = state(3)
    z[1, 0] = math.nan
    trajectory = mechanism().rollout(z, steps=3)
    assert trajectory.status.tolist() == [[0] * 3, [int(td.Status.INVALID_INPUT)] * 3, [0] * 3]
    assert bool(torch.isfinite(trajectory.z[[0, 2]]).all())
    A, B = mechanism().jacobians(z)
    assert bool((A[1] == 0).all()) and bool((B[1] == 0).all()) and bool((A[[0, 2]] != 0).any())


def test_a_bad_parameter_flags_its_environments() -> None:
    model = mechanism()
    scale = torch.tensor([1.0, math.nan])
    model.bodies["base"].mass.data = scale  # behind the back of the checks
    assert model.step(state(2)).status.tolist() == [0, int(td.Status.INVALID_INPUT)]


def test_a_bad_warm_start_is_no_harm() -> None:
    model = mechanism()
    model.options = td.SolverOptions(kappa=1e-4, residual_tol=1e-11, central_path_tol=1e-8)
    good = model.step(state())
    for warm in (torch.full_like(good.solution, math.nan), torch.zeros_like(good.solution), -good.solution):
        out = model.step(state(), warm_start=warm)
        assert out.status == 0
        torch.testing.assert_close(out.z, good.z, rtol=0, atol=1e-8)  # both within 1e-8 κ of the same point


def test_every_status_explains_itself() -> None:
    assert all(len(status.explain) > 20 for status in td.Status)
    assert "√2/h" in td.Status.INVALID_INPUT.explain and "kappa" in td.Status.MAX_ITERATIONS.explain


def test_steps_that_do_not_converge() -> None:
    """One iteration is not enough for anything: flagged with the state kept and zero gradient, or raised, as asked."""
    model, z = mechanism(max_iterations=1), state(2).requires_grad_()
    out = model.step(z)
    assert out.status.tolist() == [int(td.Status.MAX_ITERATIONS)] * 2
    assert torch.equal(out.z, z)
    (out.z.sum() + out.impulses.sum()).backward()
    assert bool((z.grad == 0).all())
    model.options = td.SolverOptions(kappa=1e-4, max_iterations=1, on_failure="raise")
    with pytest.raises(RuntimeError, match=r"environment 0 of 2: no start of the solver converged.*smaller timestep, a larger kappa or"):
        model.step(z)
    assert td.SolverOptions(on_failure="raise").on_failure == "raise"
