"""How kernel and reference are compared: one step of both, their derivatives at one solution, and samples of contact."""

from __future__ import annotations

import dataclasses
import itertools
import os
from typing import Any

import torch
from mechanisms import Sample
from torch import Tensor

import torchdojo as td
from torchdojo import quaternion as quat


def exact(kappa: float = 1e-6, **given: Any) -> td.SolverOptions:
    """Both sides converge to rounding, so that what remains is not the solver's tolerance. Products of variables of order 1 that solve a
    linear system come no closer to kappa than 1e-13."""
    return td.SolverOptions(**(dict(kappa=kappa, residual_tol=1e-12, central_path_tol=1e-12 / kappa, max_halvings=0) | given))


#: Under the sanitizers the kernel runs and the reference does not: what both find is compared in every other run.
SANITIZED = os.environ.get("TORCHDOJO_SANITIZE") == "1"
ULP = torch.finfo(torch.float64).eps
Leaves = dict[str, Tensor]


def derivatives(mech: td.Mechanism, out: td.StepOutput, leaves: Leaves, weights: tuple[Tensor, Tensor]) -> Leaves:
    """Gradients of a weighted sum of the state and the impulses by every input and parameter."""
    leaves = leaves | dict(mech.named_parameters())
    loss = (out.z * weights[0]).sum() + (out.impulses * weights[1]).sum()
    return dict(zip(leaves, torch.autograd.grad(loss, list(leaves.values()), materialize_grads=True), strict=True))


def error(value: Tensor, wanted: Tensor) -> float:
    """Largest difference relative to max(1, magnitude), entry by entry."""
    return float(((value - wanted).abs() / wanted.abs().clamp_min(1)).max()) if wanted.numel() else 0.0


def relative(value: Tensor, wanted: Tensor) -> float:
    """Largest difference relative to the largest entry, environment by environment (the first dimension)."""
    if not wanted.numel():
        return 0.0
    count = len(wanted) if wanted.ndim else 1
    difference, size = (t.reshape(count, -1).abs().amax(-1) for t in (value - wanted, wanted))
    return float((difference / size.clamp_min(torch.finfo(wanted.dtype).tiny)).max())


def parameter_errors(values: Leaves, wanted: Leaves) -> dict[str, float]:
    """By kind of parameter (mass, friction, ...), relative to its largest gradient; kinds that hardly matter, to the others."""
    kinds: dict[str, list[str]] = {}
    for name in wanted:
        kinds.setdefault(name.rpartition(".")[2], []).append(name)
    largest = {kind: max(float(wanted[name].abs().max()) for name in names if wanted[name].numel()) for kind, names in kinds.items()}
    floor = 1e-4 * max(largest.values())
    return {
        f"grad_{kind}": max(float((values[name] - wanted[name]).abs().max()) for name in names if wanted[name].numel())
        / max(largest[kind], floor)
        for kind, names in kinds.items()
    }


def polished(mech: td.Mechanism, options: td.SolverOptions, z: Tensor, u: Tensor, wrench: Tensor | None) -> td.StepOutput:
    """The step from a cold start, and two more Newton steps.

    An error of 1e-12 m in a gap would leave an error of 1e-6 in the impulse of a pressed contact, kappa / gap.
    """
    with torch.no_grad():
        mech.options = options
        out = mech.step(z, u, wrench=wrench)
        assert out.status.eq(0).all() and out.substeps.eq(1).all()
        mech.options = dataclasses.replace(options, min_iterations=2)
        again = mech.step(z, u, wrench=wrench, warm_start=out.solution)
    assert again.status.eq(0).all() and float((again.z - out.z).abs().max()) < 1e-6
    return again


def conditioning(mech: td.Mechanism, solution: Tensor, leaves: Leaves, weights: tuple[Tensor, Tensor]) -> dict[str, float]:
    """Changes of derivatives at one solution, measured as in `check`, when inputs and parameters move by their last bits.

    No implementation computes derivatives better. The changes are far above rounding where several contacts or joints share a
    load, as a box on four corners or a redundant loop, and kappa or rounding alone decides the shares.
    """
    parameters = dict(mech.named_parameters())
    given = {name: value.detach().clone() for name, value in (parameters | leaves).items()}

    def measure(move: bool) -> Leaves:
        moved = {name: value * (1 + move * ULP * torch.randint(-1, 2, value.shape)) for name, value in given.items()}
        with torch.no_grad():
            for name, parameter in parameters.items():
                parameter.copy_(moved[name])
        here = {name: moved[name].requires_grad_() for name in leaves}
        both = derivatives(mech, mech.step(**here, warm_start=solution), here, weights)
        jacobian = torch.cat(mech.jacobians(moved["z"].detach(), moved["u"].detach(), warm_start=solution), dim=-1)
        return both | {"jacobian": jacobian}

    wanted = measure(False)
    changes = [derivative_errors(measure(True), wanted, leaves) for _ in range(4)]
    measure(False)  # puts the parameters back
    return {name: max(change[name] for change in changes) for name in changes[0]}


def derivative_errors(values: Leaves, wanted: Leaves, leaves: Leaves) -> dict[str, float]:
    """Errors of the gradients of inputs (`leaves`) and parameters, and of the Jacobian."""
    errors = {f"grad_{name}": relative(values[name], wanted[name]) for name in leaves}
    names = wanted.keys() - leaves.keys() - {"jacobian"}
    errors |= parameter_errors({name: values[name] for name in names}, {name: wanted[name] for name in names})
    return errors | {"jacobian": relative(values["jacobian"], wanted["jacobian"])}


def check(mech: td.Mechanism, z: Tensor, u: Tensor, wrench: Tensor | None = None, *, redundant: bool = False) -> td.StepOutput:
    """Both sides succeed from a cold start, with equal states, impulses and derivatives; returns the kernel's step.

    Derivatives are taken at the solution of the kernel, which the reference gets as a warm start with nothing left to improve. They depend
    on the slack of a pressed contact (kappa / impulse, 1e-7 m and less) and on the internal stress of redundant joints. Each solver has
    these to rounding of 1 m and 1 N·s only, so derivatives at two solutions equal to 1e-13 differ by up to 1e-6. At one solution they agree
    to 1e-10, or to ten times their change by the last bits of inputs and parameters (`conditioning`). Four contacts that share a load at
    kappa 1e-8 need the latter, and so do parameters that would tear redundant joints apart.
    """
    options = mech.options
    native, reference = (dataclasses.replace(options, backend=backend) for backend in ("native", "reference"))
    for parameter in mech.parameters():
        parameter.requires_grad_()
    leaves = {name: value.clone().requires_grad_() for name, value in dict(z=z, u=u, wrench=wrench).items() if value is not None}
    weights = torch.randn(z.shape[-1]), torch.randn(max(piece.stop for piece in mech.impulse_layout.values())) * (not redundant)

    out = polished(mech, native, z, u, wrench)
    mech.options = native
    settled = mech.step(**leaves, warm_start=out.solution)
    solution = settled.solution
    ours = derivatives(mech, settled, leaves, weights) | {"jacobian": torch.cat(mech.jacobians(z, u, warm_start=solution), dim=-1)}
    if SANITIZED:
        mech.options = options
        return out

    wanted = polished(mech, reference, z, u, wrench)
    errors = {"z": error(out.z, wanted.z)}
    if not redundant:
        errors["impulses"] = error(out.impulses, wanted.impulses)
    mech.options = reference
    same = mech.step(**leaves, warm_start=solution)
    theirs = derivatives(mech, same, leaves, weights) | {"jacobian": torch.cat(mech.jacobians(z, u, warm_start=solution), dim=-1)}
    errors["solution"] = error(same.solution, solution)
    errors |= derivative_errors(ours, theirs, leaves)
    if wrench is not None and mech.contacts:
        del errors["jacobian"]  # that of the step without wrench, whose solution is another one
    # How a box's four corners share its weight is decided by kappa alone, so impulses at two solutions agree to rounding / kappa.
    allowed = {"impulses": 1e-10 + 1e-17 / options.kappa}
    wrong = {name: value for name, value in errors.items() if not value <= allowed.get(name, 1e-10)}
    if wrong.keys() - {"z", "impulses", "solution"}:
        mech.options = native
        bounds = {name: 10 * value for name, value in conditioning(mech, solution, leaves, weights).items()}
        wrong = {name: value for name, value in wrong.items() if not value <= bounds.get(name, 0.0)}
    mech.options = options
    assert not wrong, wrong
    return out


def thrown_box(count: int, seed: int = 0) -> Sample:
    """A box with eight corners on the ground, one after the other of its phases: flight, impact, sliding, rest."""
    torch.manual_seed(seed)
    corners = list(itertools.product((-0.25, 0.25), repeat=3))
    points = {f"corner{i}": td.NonlinearContact("box", point=p, radius=0.01 * (i % 2), friction=0.3) for i, p in enumerate(corners)}
    base = td.Floating(None, "box", damper=0.1, child_anchor=(0.1, 0.0, 0.05))
    mech = td.Mechanism({"box": td.Body(1.0, (0.04, 0.045, 0.05))}, {"base": base}, points, options=exact())
    phase = torch.arange(count) % 4
    height = torch.tensor((1.0, 0.28, 0.261, 0.2602))[phase]
    speed = torch.tensor((1.0, 1.0, 1.0, 0.0))[phase][:, None]
    spin = torch.tensor((3.0, 0.5, 0.0, 0.0))[phase][:, None] * torch.randn(count, 3)
    down = torch.tensor((0.0, -5.0, 0.0, 0.0))[phase]
    velocity = torch.cat((speed * torch.randn(count, 2), down[:, None]), dim=-1)
    position = torch.cat((torch.zeros(count, 2), height[:, None]), dim=-1)
    z = torch.cat((position, velocity, torch.eye(4)[:1].expand(count, 4), spin), dim=-1)
    return Sample(mech, z, torch.randn(count, 6))


LAWS: list[dict[str, float]] = [
    {"restitution": 0.6},
    {"recovery_speed": 0.1},
    {"stiffness": 2e3},
    {"stiffness": 2e3, "damping": 30.0},
    {"restitution": 1.0, "recovery_speed": 0.5},
]


SHAPES: dict[str, td.Shape] = {"sphere": td.Sphere(0.1), "capsule": td.Capsule(radius=0.05, length=0.3), "box": td.Box((0.2, 0.3, 0.25))}
ELLIPSOID = td.Ellipsoid((0.15, 0.1, 0.05))  # has a file of its own, test_ellipsoid_contacts.py


def collision(shape: str, other: str, fixed: bool, model: type[td.Contact], **laws: float) -> Sample:
    """Two bodies, or one and a shape fixed in the world, turned at random, 3 mm apart and flying at each other."""
    torch.manual_seed(1)
    shapes = {**SHAPES, "ellipsoid": ELLIPSOID}
    bodies = {"a": td.Body(1.0, (0.010, 0.012, 0.013))} | ({} if fixed else {"b": td.Body(0.7, (0.008, 0.006, 0.007))})
    surface = {"normal": (0.1, 0.2, 1.0), "offset": -0.1} if other == "half-space" else {"other_shape": shapes[other]}
    friction = {} if model is td.ImpactContact else {"friction": 0.4}
    contact = model("a", shape=shapes[shape], other=None if fixed else "b", **surface, **friction, **laws)
    mech = td.Mechanism(bodies, contacts={"touch": contact}, options=exact())
    count, nb = 8, len(bodies)
    z = torch.zeros(count, nb, 13)
    z[..., 6:10] = quat.normalize(torch.randn(count, nb, 4))
    z[:, 0, :3] = 0.05 * torch.randn(count, 3) + torch.tensor((0.0, 0.0, 0.5))
    low, high = torch.full((count,), -0.5), torch.full((count,), 2.0)  # where a is along z: the distance grows beyond the other's middle
    for _ in range(60):
        z[:, 0, 2] = 0.5 * (low + high)
        near = mech.distances(z.flatten(-2))[:, 0] < 0.003
        low, high = torch.where(near, z[:, 0, 2], low), torch.where(near, high, z[:, 0, 2])
    z[..., 3:6], z[..., 10:] = 0.5 * torch.randn(count, nb, 3), 2 * torch.randn(count, nb, 3)
    z[:, 0, 5] -= 2
    return Sample(mech, z.flatten(-2), torch.zeros(count, 0))


PAIRS = [(a, b, fixed) for a in SHAPES for b in SHAPES for fixed in (False, True)] + [("sphere", "half-space", False)]


def dealt(number: int, count: int) -> list[tuple[str, str, bool]]:
    """The pairs that get the n-th of several laws: each law meets every shape on either side, fixed and free, and no pair twice."""
    places = list(SHAPES)
    pairs = [pair for pair in PAIRS if pair[1] in SHAPES and (places.index(pair[0]) + places.index(pair[1]) + pair[2]) % count == number]
    return pairs if number else [*pairs, PAIRS[-1]]


def trajectory(mech: td.Mechanism, z: Tensor, u: Tensor, steps: int) -> tuple[Tensor, Tensor, list[Tensor]]:
    start = z.clone().requires_grad_()
    push = u[:, None].expand(-1, steps, -1).clone().requires_grad_()
    path = mech.rollout(start, push)
    weights = torch.linspace(-1, 1, z.shape[-1])
    leaves = [start, push, *(p for p in mech.parameters() if p.requires_grad)]
    return path.z.detach(), path.status, list(torch.autograd.grad((path.z[:, -1] @ weights).sum(), leaves))


def outputs(mech: td.Mechanism, z: Tensor, u: Tensor, rows: Tensor | None = None) -> list[Tensor]:
    """State, impulses, counts, gradients and Jacobian of the environments `rows`; all are computed together."""
    z, u = z.clone().requires_grad_(), u.clone().requires_grad_()
    out = mech.step(z, u)
    grads = torch.autograd.grad((out.z * torch.linspace(1, 2, z.shape[-1])).sum() + out.impulses.sum(), (z, u))
    jacobians = mech.jacobians(z.detach(), u.detach())
    results = [t.detach() for t in (*out, *grads, *jacobians)]
    return results if rows is None else [t[rows] for t in results]


def same_bits(first: list[Tensor], second: list[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def nan_state(z: Tensor, u: Tensor) -> None:
    z[5, 3] = torch.nan
