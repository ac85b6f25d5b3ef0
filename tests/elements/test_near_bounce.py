"""Restitution of near contacts: bodies leave at -e times the speed at which they arrive, in the step in which they would arrive."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

import torchdojo as td
from torchdojo.geometry.polytopes import polytope_of
from torchdojo.native import loader
from torchdojo.quaternion import rotate

pytest.importorskip("scipy")

H = 0.01
FLOOR = td.Box((2.0, 2.0, 0.2), position=(0.0, 0.0, -0.1))
FLAT, CORNER = (0.0, 0.0, 0.0), (0.6, 0.4, 0.1)
needs_kernel = pytest.mark.skipif(not loader.available(), reason="needs the compiled kernel")


def ball_hull(count: int, size: float, seed: int) -> td.Hull:
    points = torch.randn(count, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    points = size * points / torch.linalg.vector_norm(points, dim=-1, keepdim=True)
    return td.Hull(points - td.Hull(points).center)


SHAPES: dict[str, Any] = {
    "ball": td.Sphere(0.05),
    "capsule": td.Capsule(0.03, 0.08),
    "box": td.Box((0.1, 0.08, 0.06)),
    "cylinder": td.Cylinder(0.04, 0.1),
    "hull": ball_hull(14, 0.05, 1),
    "ellipsoid": td.Ellipsoid((0.05, 0.04, 0.03)),
}


def turned(vector: tuple[float, float, float]) -> tuple[float, ...]:
    v = torch.tensor(vector, dtype=torch.float64)
    angle = float(torch.linalg.vector_norm(v))
    axis = v / angle if angle else v
    return (math.cos(angle / 2), *(math.sin(angle / 2) * axis).tolist())


def on_floor(
    shape: Any, law: dict[str, Any], *, gravity: float = 0.0, backend: str | None = None, timestep: float = H, **options: Any
) -> td.Mechanism:
    contacts = td.near_contacts("body", shape, None, FLOOR, friction=0.0, **law)
    settings = {"residual_tol": 1e-12, "kappa": 1e-10, **options, **({} if backend is None else {"backend": backend})}
    body = td.Body(1.0, shape=shape)
    return td.Mechanism({"body": body}, (), contacts, timestep=timestep, gravity=(0.0, 0.0, -gravity), options=td.SolverOptions(**settings))


def speeds(report: td.ContactReport, before: Tensor, after: Tensor) -> list[tuple[float, float]]:
    """Normal velocities, before a step and after it, of the points that bear 1 % of the force, and left.

    Points that arrive later, as the impact turns their body, are at the surface when the step ends, and bounce in the next one.
    """
    result = []
    for point, normal, gap, force in zip(report.points, report.normals, report.gaps, report.forces, strict=True):
        if force.norm() > 1e-2 * report.forces.norm() and gap > 1e-6:
            arm = point - after[:3]
            u = [z[3:6] + torch.linalg.cross(rotate(before[6:10], z[10:13]), arm) for z in (before, after)]
            result.append((float(normal @ u[0]), float(normal @ u[1])))
    return result


@needs_kernel
@pytest.mark.parametrize("backend", ["native", "reference"])
@pytest.mark.parametrize("e", [0.0, 0.5, 1.0])
def test_a_ball_bounces_as_in_closed_form(e: float, backend: str) -> None:
    """Single steps into the ground, with friction and spin. Products of 1e-10 of far contacts, which do not fade, remain."""
    ball, laws = td.Sphere(0.05), {"restitution": e, "friction": 0.3}
    options = td.SolverOptions(residual_tol=1e-12, kappa=1e-10, backend=backend)
    sets = td.near_contacts("ball", ball, None, FLOOR, **laws), {"ground": td.NonlinearContact("ball", radius=0.05, **laws)}
    mechs = [td.Mechanism({"ball": td.Body(1.0, shape=ball)}, (), contacts, options=options) for contacts in sets]
    for speed in (0.5, 1.0, 2.0, 4.0):
        start = {"position": (0, 0, 0.05 + 0.4 * H * speed), "velocity": (0.3, 0.1, -speed), "angular_velocity": (2.0, -1.0, 3.0)}
        near, closed = (mech.step(mech.initial_state(ball=start)) for mech in mechs)
        assert not near.status.any() and not closed.status.any()
        assert abs(float(near.z[5]) - e * speed) < 1e-4
        torch.testing.assert_close(near.z, closed.z, atol=1e-8, rtol=0)


@needs_kernel
@pytest.mark.parametrize("e", [0.0, 0.6, 1.0])
@pytest.mark.parametrize("speed", [0.5, 1.0, 2.0, 4.0])
@pytest.mark.parametrize("pose", [FLAT, CORNER], ids=["flat", "corner"])
@pytest.mark.parametrize("kind", list(SHAPES))
def test_shapes_leave_the_floor_with_the_given_share_of_speed(kind: str, pose: tuple[float, ...], speed: float, e: float) -> None:
    """The first impact of each shape: normal speeds of the points that bear it, its impulse in the report, and energy.

    1e-6: products of 1e-10 let points that bear little leave faster. A body that turns in an impact gains up to (h times the angular
    velocity) of the energy at e = 1, as with contacts in closed form, which say so.
    """
    # Without restitution, too, steps of 10 ms in which corners of hulls turn this fast are taken in halves.
    h = 0.5 * H if kind == "hull" and speed >= 2.0 else H
    mech = on_floor(SHAPES[kind], {"restitution": e}, timestep=h)
    z = mech.initial_state(body={"position": (0, 0, 0.131), "velocity": (0, 0, -speed), "orientation": turned(pose)})  # type: ignore[arg-type]
    for _ in range(25):
        out = mech.step(z)
        assert not out.status.any() and int(out.substeps) == 1
        if (out.z[3:6] - z[3:6]).norm() > 1e-3:
            break
        z = out.z
    else:
        raise AssertionError("no impact")
    report = mech.contact_report(out.z, out)
    torch.testing.assert_close(h * report.forces.sum(0), out.z[3:6] - z[3:6], atol=1e-10, rtol=0)
    pairs = speeds(report, z, out.z)
    assert pairs and all(abs(after + e * before) < 1e-6 for before, after in pairs), pairs
    energies = [float(mech.kinetic_energy(state)) for state in (z, out.z)]
    assert energies[1] <= energies[0] * (1 + 0.5 * e * h * float(out.z[10:13].norm())) + 1e-6


@needs_kernel
@pytest.mark.parametrize("e", [0.0, 0.6, 1.0])
@pytest.mark.parametrize("kinds", [("box", "box"), ("hull", "box"), ("cylinder", "hull"), ("ellipsoid", "box"), ("ball", "cylinder")])
def test_two_bodies_keep_their_momentum(kinds: tuple[str, str], e: float) -> None:
    """A shape flies against another one in space: the momenta, the speed at which they part, and no energy from nothing.

    Steps keep the angular momentum to rounding in the frame of half a step, so the sum over states agrees to the square of the turn.
    """
    a, b = (SHAPES[kind] for kind in kinds)
    contacts = td.near_contacts("a", a, "b", b, friction=0.2, restitution=e, slots=24)
    bodies = {"a": td.Body(1.0, shape=a), "b": td.Body(0.6, shape=b)}
    options = td.SolverOptions(residual_tol=1e-12, kappa=1e-10)
    mech = td.Mechanism(bodies, (), contacts, timestep=0.002, gravity=(0.0, 0.0, 0.0), options=options)
    first = {"position": (0.01, 0, 0.13), "velocity": (0, 0.1, -1.0), "orientation": turned((0.2, 0.1, 0))}
    z = mech.initial_state(a=first, b={"orientation": turned((0.1, -0.3, 0)), "angular_velocity": (0.1, 0.3, 0.2)})
    start, hits = z, 0
    for _ in range(60):
        out = mech.step(z)
        assert not out.status.any()
        energies = [float(mech.kinetic_energy(state)) for state in (z, out.z)]
        assert energies[1] <= energies[0] * (1 + 0.002 * e * float(out.z.reshape(2, 13)[:, 10:].norm(dim=-1).max())) + 1e-7
        if (out.z[3:6] - z[3:6]).norm() > 0.05 and int(out.substeps) == 1:
            hits += 1
            force = mech.contact_report(out.z, out).force("a", "b")
            torch.testing.assert_close(0.002 * force, out.z[3:6] - z[3:6], atol=1e-10, rtol=0)
        z = out.z
    assert hits
    momentum = [state[3:6] + 0.6 * state[16:19] for state in (start, z)]
    torch.testing.assert_close(momentum[1], momentum[0], atol=1e-12, rtol=0)
    angular = [
        sum(
            (torch.linalg.cross(s[:3], mass * s[3:6]) + rotate(s[6:10], body.inertia @ s[10:13]))
            for s, mass, body in zip(state.reshape(2, 13), (1.0, 0.6), mech.bodies.values(), strict=True)
        )
        for state in (start, z)
    ]
    torch.testing.assert_close(angular[1], angular[0], atol=1e-4, rtol=0)


@needs_kernel
@pytest.mark.parametrize("pose", [FLAT, CORNER], ids=["flat", "corner"])
@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=[pytest.mark.slow] * (kind not in ("ball", "capsule", "box"))) for kind in SHAPES]
)
def test_both_backends_bounce_alike(kind: str, pose: tuple[float, ...]) -> None:
    outs = []
    for backend in ("native", "reference"):
        mech = on_floor(SHAPES[kind], {"restitution": 0.7}, gravity=9.81, backend=backend)
        start = {"position": (0, 0, 0.095), "velocity": (0.2, 0, -2.0), "orientation": turned(pose)}  # type: ignore[arg-type]
        z = mech.initial_state(body=start).requires_grad_(True)
        path = [mech.step(z)]
        for _ in range(2):
            path.append(mech.step(path[-1].z))
        (gradient,) = torch.autograd.grad((path[-1].z * torch.linspace(-1, 1, 13, dtype=torch.float64)).sum(), z)
        outs.append((torch.stack([out.z for out in path]).detach(), torch.stack([out.impulses for out in path]).detach(), gradient))
    assert float(outs[0][0][-1, 5]) > -1.9  # it has met the floor
    for native, reference, tolerance in zip(outs[0], outs[1], (1e-10, 1e-8, 1e-6), strict=True):
        torch.testing.assert_close(native, reference, atol=tolerance, rtol=tolerance)


@needs_kernel
@pytest.mark.parametrize("kind", ["box", "hull", "cylinder", "ellipsoid"])
def test_gradients_of_impacts_agree_with_differences(kind: str) -> None:
    """By the state, restitution and friction, of a body that hits a box that lies on the floor."""
    shape, box = SHAPES[kind], td.Box((0.2, 0.2, 0.1))
    laws = {
        name: torch.nn.Parameter(torch.tensor(value, dtype=torch.float64)) for name, value in {"restitution": 0.6, "friction": 0.3}.items()
    }
    contacts = td.near_contacts("box", box, None, FLOOR) | td.near_contacts("body", shape, "box", box, slots=20, **laws)
    bodies = {"box": td.Body(2.0, shape=box), "body": td.Body(0.5, shape=shape)}
    mech = td.Mechanism(bodies, (), contacts, options=td.SolverOptions(residual_tol=1e-13))
    start = {
        "position": (0.01, 0.015, 0.19),
        "velocity": (0.2, 0.1, -1.2),  # hulls at 1.5 m/s are taken whole or in halves by chance
        "orientation": turned((0.3, 0.2, 0.1)),
        "angular_velocity": (1, 2, 3),
    }
    z = mech.initial_state(box={"position": (0, 0, 0.0501)}, body=start)
    for _ in range(12):
        after = mech.step(z).z.detach()
        if float((after[18] - z[18]).detach()) > 0.5:
            break
        z = after
    else:
        raise AssertionError("no impact")
    own = [parameter for parameter in mech.parameters() if any(parameter is law for law in laws.values())]
    assert len(own) == 2
    generator = torch.Generator().manual_seed(0)
    weight, way = (torch.randn(26, generator=generator, dtype=torch.float64) for _ in range(2))
    way[torch.tensor([6, 7, 8, 9, 19, 20, 21, 22])] = 0.0

    def value(step: float, parameter: Tensor | None) -> Tensor:
        with torch.no_grad():
            if parameter is not None:
                parameter += step
            result = (mech.step(z + (step * way if parameter is None else 0.0)).z * weight).sum()
            if parameter is not None:
                parameter -= step
        return result

    leaf = z.detach().clone().requires_grad_(True)
    by_state, *rest = torch.autograd.grad((mech.step(leaf).z * weight).sum(), [leaf, *own])
    for gradient, parameter in [((by_state * way).sum(), None), *zip(rest, own, strict=True)]:
        near, far = (float(value(k * 1e-5, parameter) - value(-k * 1e-5, parameter)) / (k * 2e-5) for k in (1, 2))
        expected = (4 * near - far) / 3
        assert abs(float(gradient) - expected) < 1e-6 * max(1.0, abs(expected)), (float(gradient), expected)


@needs_kernel
def test_a_bounce_depends_on_no_choice_of_terms() -> None:
    """A box turns through the pose in which its face meets the floor. Steps with other numbers of slots are alike."""
    tilt = torch.linspace(-0.004, 0.004, 161, dtype=torch.float64)
    results = []
    for slots in (20, 32):
        mech = on_floor(SHAPES["box"], {"restitution": 0.5, "slots": slots}, kappa=1e-8)
        start = [{"position": (0, 0, 0.045), "velocity": (0, 0, -2.0), "orientation": turned((float(t), 0.5 * float(t), 0))} for t in tilt]
        z = torch.stack([mech.initial_state(body=one) for one in start])
        out = mech.step(z)
        assert not out.status.any()
        results.append(out.z)
    torch.testing.assert_close(results[0], results[1], atol=1e-9, rtol=0)
    assert float(results[0][:, 5].min()) > 0.5


@needs_kernel
@pytest.mark.parametrize("kind", ["box", "hull", "cylinder"])
def test_bounces_are_continuous_while_the_same_terms_bounce(kind: str) -> None:
    """Steps of 5 ms from states along a line, whose terms come and go: third differences of velocities are small, so nothing jumps.

    In steps of 10 ms the hull turns by 0.5 rad after its impact, and may have several solutions.
    """
    mech = on_floor(SHAPES[kind], {"restitution": 0.6}, kappa=1e-8, timestep=0.005)
    q = turned((0.3, 0.2, 0.1))
    core = polytope_of(SHAPES[kind])
    height = 0.005 + core.radius - float(rotate(torch.tensor(q, dtype=torch.float64), core.vertices)[:, 2].min())
    start = {"position": (0, 0, height), "velocity": (0.1, 0, -1.5), "orientation": q, "angular_velocity": (1, 2, 3)}
    way = torch.tensor([0, 0, -0.004, 0.1, 0.2, -0.1, 0, 0, 0, 0, 3, -2, 1], dtype=torch.float64)
    z = mech.initial_state(body=start) + torch.linspace(0, 1, 1001, dtype=torch.float64)[:, None] * way
    out = mech.step(z)
    assert not out.status.any()
    rows = torch.stack([slot.term for slot in mech.contacts.values()], 1).long().tolist()  # type: ignore[attr-defined]
    bouncing = [frozenset(map(tuple, (term for term in row if term[0] >= 4))) for row in rows]
    chosen = [frozenset((kind % 4, i, j) for kind, i, j in row if kind >= 0) for row in rows]
    velocity = out.z[:, [3, 4, 5, 10, 11, 12]]
    third = (velocity[3:] - 3 * velocity[2:-1] + 3 * velocity[1:-2] - velocity[:-3]).abs().amax(-1)
    same = torch.tensor([len(set(bouncing[i : i + 4])) == 1 and bool(bouncing[i]) for i in range(len(rows) - 3)])
    same &= (out.substeps == 1).unfold(0, 4, 1).all(-1)  # a step in halves is another function
    assert int(same.sum()) > 700
    assert kind != "cylinder" or any(chosen[i] != chosen[i + 1] and same[max(i - 1, 0)] for i in range(999))
    assert float(third[same].max()) < 1e-6


@needs_kernel
def test_bodies_at_rest_stay_at_rest() -> None:
    paths = []
    for law in ({}, {"restitution": 0.9}):
        mech = on_floor(SHAPES["box"], law, gravity=9.81, kappa=1e-8)
        paths.append(mech.rollout(mech.initial_state(body={"position": (0, 0, 0.03 + 1e-5)}), steps=200).z)
    torch.testing.assert_close(paths[0], paths[1], atol=1e-12, rtol=0)
    assert float(paths[1][-50:, 3:6].abs().max()) < 1e-8


@needs_kernel
@pytest.mark.parametrize("kind", ["box", "hull"])
def test_newtons_cradle(kind: str) -> None:
    """Five equal bodies in a row, 3 mm apart: the first one's speed goes through to the last one.

    1e-5: each of the four impacts ends with a slack of κ over the impulse of a corner, 4e-10 m, which is 4e-7 m/s.
    """
    shape = (
        td.Box((0.1, 0.1, 0.1))
        if kind == "box"
        else td.Hull([(x, y, z) for x in (-0.05, 0.05) for y in (-0.04, 0.03) for z in (-0.03, 0.04)])
    )
    names = [f"body{i}" for i in range(5)]
    contacts: dict[str, Any] = {}
    for first, second in zip(names[1:], names, strict=False):
        contacts |= td.near_contacts(first, shape, second, shape, friction=0.0, restitution=1.0)
    options = td.SolverOptions(kappa=1e-10, residual_tol=1e-12)
    bodies = {name: td.Body(1.0, shape=shape) for name in names}
    mech = td.Mechanism(bodies, (), contacts, timestep=1e-3, gravity=(0.0, 0.0, 0.0), options=options)
    state = {name: {"position": (0.103 * i - 0.01 * (i == 0), 0, 0), "velocity": (float(i == 0), 0, 0)} for i, name in enumerate(names)}
    path = mech.rollout(mech.initial_state(**state), steps=60)
    assert not path.status.any()
    speed = path.z.unflatten(-1, (5, 13))[..., 3]
    torch.testing.assert_close(speed[-1], torch.tensor([0.0, 0, 0, 0, 1], dtype=torch.float64), atol=1e-5, rtol=0)
    torch.testing.assert_close(speed.sum(-1), torch.ones(61, dtype=torch.float64), atol=1e-10, rtol=0)


@pytest.mark.slow
@needs_kernel
@pytest.mark.parametrize("backend", ["native", "reference"])
def test_instants_of_impacts_are_differentiated(backend: str) -> None:
    """The mode "exact" of a ball: as of its contact in closed form, whose derivatives are those of continuous time."""
    derivatives = []
    laws = {"restitution": 0.6, "friction": 0.3}
    for contacts in (
        td.near_contacts("ball", td.Sphere(0.1), None, FLOOR, **laws),
        {"ground": td.NonlinearContact("ball", radius=0.1, **laws)},
    ):
        options = td.SolverOptions(backend=backend, gradient_mode="exact", kappa=1e-10)
        mech = td.Mechanism({"ball": td.Body(1.0, (0.01, 0.01, 0.01))}, (), contacts, gravity=(0.0, 0.0, 0.0), options=options)
        z = mech.initial_state(ball={"position": (0, 0, 0.111), "velocity": (0.5, 0, -2.0)}).requires_grad_(True)
        (gradient,) = torch.autograd.grad((mech.step(z).z * torch.linspace(-1, 1, 13, dtype=torch.float64)).sum(), z)
        derivatives.append((gradient, mech.jacobians(z.detach())[0]))
    for near, closed in zip(*derivatives, strict=True):
        torch.testing.assert_close(near, closed, atol=1e-7, rtol=0)


@needs_kernel
def test_rollouts_and_sensors_read_bounces() -> None:
    """A rollout of the kernel takes the same steps, and a touch sensor reads the force of an impact, with its gradient."""
    mech = on_floor(SHAPES["box"], {"restitution": 0.5}, gravity=9.81, kappa=1e-8)
    z = mech.initial_state(body={"position": (0, 0, 0.095), "velocity": (0.2, 0, -2.0), "orientation": turned((0.2, 0.1, 0))})
    path, state, warm = mech.rollout(z, steps=30), z, None
    for after in path.z[1:]:
        out = mech.step(state, warm_start=warm)
        torch.testing.assert_close(out.z, after, atol=1e-9, rtol=0)
        change = out.z[3:6] - state[3:6] + H * torch.tensor([0, 0, 9.81], dtype=torch.float64)
        if int(out.substeps) == 1:
            torch.testing.assert_close(H * mech.contact_report(out.z, out).forces.sum(0), change, atol=1e-9, rtol=0)
        state, warm = out.z, out.solution
    assert float(path.z[:, 5].max()) > 0.3

    def force(start: Tensor) -> Tensor:
        out = mech.step(start)
        return mech.contact_report(out.z, out).forces.sum(0)[2]

    hit = int((path.z[1:, 5] - path.z[:-1, 5]).argmax())
    leaf = path.z[hit].detach().clone().requires_grad_(True)
    (gradient,) = torch.autograd.grad(force(leaf), leaf)
    step = torch.zeros(13, dtype=torch.float64)
    step[5] = 1e-6
    expected = float(force(leaf.detach() + step) - force(leaf.detach() - step)) / 2e-6
    assert abs(float(gradient[5]) - expected) < 1e-5 * abs(expected)


@pytest.mark.parametrize("value", [-0.1, 1.5])
def test_coefficients_out_of_range_are_refused(value: float) -> None:
    with pytest.raises(ValueError, match="coefficients of restitution from 0 to 1"):
        td.near_contacts("ball", td.Sphere(0.1), None, FLOOR, restitution=value)
    with pytest.raises(ValueError, match="bounces by its stiffness"):
        td.near_contacts("ball", td.Sphere(0.1), None, FLOOR, restitution=0.5, stiffness=1e4)
