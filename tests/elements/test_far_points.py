"""Points far from the ground: steps of mechanisms with near contacts leave them out, and come to the same solution as with them."""

from __future__ import annotations

import math
import sys

import pytest
import torch
from torch import Tensor

import torchdojo as td
from torchdojo.native import loader, memory
from torchdojo.native.program import kernel_library

pytestmark = pytest.mark.skipif(not loader.available(), reason="needs the compiled kernel")

BOX = td.Box((0.1, 0.08, 0.06))
TOLERANCE = 1e-9  # both solve to 1e-12; impulses of far points follow from gaps of a centimeter
TURNS = 2 * 1e-12 / (0.2 * (0.08**2 + 0.06**2) / 12)  # [rad/s], of both residuals and the least inertia of the lid


def tossed(near: bool, kind: str, kappa: float = 1e-6, mass: float | Tensor = 0.4, mu: float | Tensor = 0.5, **laws: float) -> td.Mechanism:
    """Two boxes on a hinge with points at their corners, and a third one far away, with near contacts to both or without."""
    contact = td.ImpactContact if kind == "frictionless" else td.NonlinearContact
    friction = {} if kind == "frictionless" else {"friction": mu}
    contacts: dict[str, td.Contact] = {}
    corners = [(x, y, z) for x in (-0.05, 0.05) for y in (-0.04, 0.04) for z in (-0.03, 0.03)]
    for body in ("box", "lid"):
        for k, corner in enumerate(corners):
            contacts[f"{body}{k}"] = contact(body, point=corner, radius=0.004, **friction, **laws)
    contacts["roof"] = contact("box", point=(0.0, 0.0, 0.03), normal=(0.0, 0.6, -0.8), offset=-0.5, **friction)
    if near:
        contacts |= td.near_contacts("box", BOX, "far", BOX, slots=4) | td.near_contacts("lid", BOX, "far", BOX, slots=4)
    return td.Mechanism(
        {"box": td.Body(mass, shape=BOX), "lid": td.Body(0.5 * mass, shape=BOX), "far": td.Body(1.0, shape=BOX)},
        {"hinge": td.Revolute("box", "lid", axis=(0, 1, 0), parent_anchor=(0.07, 0, 0), child_anchor=(-0.07, 0, 0), damper=1e-4)},
        contacts,
        timestep=0.005,
        options=td.SolverOptions(residual_tol=1e-12, central_path_tol=1e-8, kappa=kappa),
    )


def starts(mech: td.Mechanism, batch: int) -> Tensor:
    """Boxes that lie, hang and fly, so that each environment has other points near the ground."""
    generator = torch.Generator().manual_seed(0)

    def random(*shape: int) -> Tensor:
        return torch.rand(*shape, generator=generator, dtype=torch.float64)

    height = 0.036 + 0.3 * random(batch) ** 2
    position = torch.stack((0 * height, 0 * height, height), -1)
    upright = (torch.arange(batch) % 3 > 0)[:, None]
    turn = torch.where(upright, random(batch, 3) - 0.5, 0.0)
    orientation = torch.nn.functional.normalize(torch.cat((torch.ones(batch, 1, dtype=torch.float64), turn), -1), dim=-1)
    position[:, 2] += torch.where(upright[:, 0], 0.15, 0.0)
    box = {
        "position": position,
        "orientation": orientation,
        "velocity": random(batch, 3) - 0.5,
        "angular_velocity": 4 * random(batch, 3) - 2,
    }
    return mech.initial_state(batch, box=box, far={"position": (0.0, 0.0, 40.0)}, hinge={"q": 0.4 * random(batch, 1)})


def on_ground(mech: td.Mechanism, out: td.StepOutput) -> tuple[Tensor, Tensor]:
    """Gaps and forces of the points."""
    report = mech.contact_report(out.z, out)
    points = [k for k, name in enumerate(report.names) if "near" not in name]
    return report.gaps[..., points], report.forces[..., points, :]


@pytest.mark.parametrize(
    ("kind", "kappa", "mass"), [("disc", 1e-6, 0.4), ("disc", 1e-8, 0.02), ("disc", 1e-6, 30.0), ("frictionless", 1e-6, 0.4)]
)
def test_far_points_are_where_they_were(kind: str, kappa: float, mass: float) -> None:
    mech, plain = tossed(True, kind, kappa, mass), tossed(False, kind, kappa, mass)
    z = starts(plain, 12)
    ours, theirs = mech.step(z), plain.step(z)
    touched = 0
    for _ in range(40):
        assert not ours.status.any() and not theirs.status.any()
        apart = (ours.z - theirs.z).abs().unflatten(-1, (3, 13))
        assert apart[..., :10].max() < TOLERANCE * max(1.0, 0.4 / mass)
        assert apart[..., 10:].max() < TURNS * max(1.0, 0.4 / mass)
        # Impulses on the path have errors of κ/γ² of the residual.
        scale = 1.0 / mech.timestep.item()
        (gaps, pushes), (_, expected) = on_ground(mech, ours), on_ground(plain, theirs)
        assert (pushes - expected).abs().max() < 1e-7 * max(1.0, mass) * scale
        touched += int((gaps.amin(-1) < 1e-2).sum())
        z = theirs.z
        ours, theirs = mech.step(z, warm_start=ours.solution), plain.step(z, warm_start=theirs.solution)
    assert 0.1 < touched / (12 * 40) < 0.9  # some are near the ground, some fly


def test_environments_may_have_numbers_of_their_own() -> None:
    mass, mu = torch.linspace(0.1, 2.0, 12, dtype=torch.float64), torch.linspace(0.2, 0.9, 12, dtype=torch.float64)
    mech, plain = (tossed(near, "disc", mass=mass, mu=mu) for near in (True, False))
    z = starts(plain, 12)
    ours, theirs = mech.rollout(z, steps=10), plain.rollout(z, steps=10)
    assert not ours.status.any()
    assert (ours.z - theirs.z).abs().max() < 1e-7  # after 10 steps
    alone = tossed(True, "disc", mass=float(mass[7]), mu=float(mu[7])).rollout(z[7], steps=10)
    assert (ours.z[7] - alone.z).abs().max() < 1e-7


def test_numbers_of_far_points_are_checked() -> None:
    mu = torch.full((12,), 0.5, dtype=torch.float64)
    mech = tossed(True, "disc", mu=mu)
    z = starts(mech, 12)
    with torch.no_grad():
        friction = mech.named_contacts()["lid3"].friction
        friction[2] = math.nan  # of an environment in the air
    status = mech.step(z).status
    assert status.nonzero().flatten().tolist() == [2]
    assert status[2] == int(td.Status.INVALID_INPUT)


def test_gradients_count_far_points() -> None:
    mech, plain = tossed(True, "disc", 1e-4), tossed(False, "disc", 1e-4)
    z = starts(plain, 12)
    weight = torch.randn(z.shape, generator=torch.Generator().manual_seed(1), dtype=z.dtype)
    gradients = []
    for mechanism in (mech, plain):
        leaf = z.clone().requires_grad_(True)
        out = mechanism.rollout(leaf, steps=8)
        (out.z[:, -1] * weight).sum().backward()
        assert leaf.grad is not None
        gradients.append(leaf.grad)
    assert (gradients[0] - gradients[1]).abs().max() < 1e-6 * gradients[1].abs().max()


def test_a_point_that_comes_near_within_a_step_is_taken_up() -> None:
    """Nothing in the state says that the wrench will push a box at rest onto the ground."""
    mech, plain = tossed(True, "disc"), tossed(False, "disc")
    z = plain.initial_state(2, box={"position": (0.0, 0.0, 0.1)}, far={"position": (0.0, 0.0, 40.0)})
    wrench = z.new_zeros(2, 18)
    wrench[1, 2::6] = torch.tensor([-2e3, -2e3, 0.0])
    ours, theirs = (m.step(z, wrench=wrench) for m in (mech, plain))
    assert theirs.z[1, 2] < 0.04 < theirs.z[0, 2]
    assert not ours.status.any()
    assert (ours.z - theirs.z).abs().max() < 10 * TOLERANCE  # [m/s], of an impact at 20 m/s


@pytest.mark.parametrize("laws", [{"restitution": 0.5}, {"stiffness": 1e4, "damping": 10.0}, {"recovery_speed": 0.1}])
def test_points_with_laws_stay(laws: dict[str, float]) -> None:
    mech, plain = tossed(True, "disc", **laws), tossed(False, "disc", **laws)
    z = starts(plain, 12)
    ours, theirs = mech.rollout(z, steps=20), plain.rollout(z, steps=20)
    assert (ours.z - theirs.z).abs().max() < 1e-7  # after 20 steps


def test_environments_do_not_depend_on_those_beside_them() -> None:
    """Environments are put together by what touches, so their order in the batch must not matter."""
    mech = tossed(True, "disc")
    z = starts(mech, 24)
    order = torch.randperm(24, generator=torch.Generator().manual_seed(2))
    straight, mixed = mech.rollout(z, steps=10).z, mech.rollout(z[order], steps=10).z
    assert (straight[order] - mixed).abs().max() < TOLERANCE


def test_memory_is_used_again_when_nobody_has_it() -> None:
    used = memory.UsedPages(most=2)
    first = torch.frombuffer(used.take(1 << 12), dtype=torch.float64)
    view = first[10:].view(-1)
    second = torch.frombuffer(used.take(1 << 12), dtype=torch.float64)
    places = {first.data_ptr(), second.data_ptr()}
    assert len(places) == 2
    del first
    third = torch.frombuffer(used.take(1 << 12), dtype=torch.float64)  # the view still has the first one
    assert third.data_ptr() not in places
    place = second.data_ptr()
    del second, view
    assert torch.frombuffer(used.take(1 << 12), dtype=torch.float64).data_ptr() == place
    assert len(used.take(1 << 13)) == 1 << 13


def test_memory_that_was_used_is_zero_again() -> None:
    used = memory.UsedPages(most=2, clear=kernel_library().td_clear)
    numbers = torch.frombuffer(used.take(1 << 20), dtype=torch.float64)
    place = numbers.data_ptr()
    numbers[700], numbers[100_000] = 1.0, 2.0
    numbers.numpy()[50_000] = 3.0  # whoever writes
    del numbers
    again = torch.frombuffer(used.take(1 << 20), dtype=torch.float64)
    assert not again.any()
    assert again.data_ptr() == place or not sys.platform.startswith("linux")
    again.fill_(1.0)  # too much to be cleared
    del again
    assert not torch.frombuffer(used.take(1 << 20), dtype=torch.float64).any()


def test_solutions_outlive_later_steps() -> None:
    """Solutions lie in memory that is used again, but not while a tensor of them lives."""
    mech = tossed(True, "disc")
    z = starts(mech, 1200)  # more than a megabyte of solutions
    with torch.no_grad():
        first = mech.step(z)
        kept, copy = first.solution[:, 3:], first.solution[:, 3:].clone()
        del first
        for _ in range(8):
            z = mech.step(z).z
    assert torch.equal(kept, copy)
