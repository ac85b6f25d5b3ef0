"""Limits of the whole rotation: the kernel against the reference, and gradients against differences."""

from __future__ import annotations

import pytest
import torch
from parity import check, exact
from torch import Tensor

import torchdojo as td
from torchdojo.native import loader

pytestmark = [pytest.mark.skipif(not loader.available(), reason="no compiler for the native kernel"), pytest.mark.sanitize]

KINDS = ("Spherical", "CylindricalFree", "PlanarFree", "Floating")
LAWS = {
    "alone": {},
    "others": {"armature": 0.1, "friction": 0.2, "damper": 0.3, "spring": 2.0, "velocity_limits": 8.0},
    "servo": {"servo_stiffness": 8.0, "servo_damping": 0.3, "servo_range": (-3.0, 4.0), "implicit": True, "spring": 1.0},
}
ANGLE = 0.8


def chain(kinds: tuple[str, ...] = KINDS, turn: float = 0.97, **laws: object) -> tuple[td.Mechanism, Tensor, Tensor]:
    """Bodies one after another, turned by the fraction `turn` of their cones and turning on. In the last environment they are at zero."""
    torch.manual_seed(6)
    bodies, joints, parent, q, qd = {}, {}, None, [], []
    for number, kind in enumerate(kinds):
        name = kind.lower()
        slides, turns = td.elements.joints.JOINT_TYPES[kind]
        bodies[name] = td.Body(0.8, (0.02, 0.03, 0.015))
        bound = torch.tensor([0.5] * slides + [torch.inf] * turns)
        joints[name] = getattr(td, kind)(
            parent,
            name,
            axis=torch.randn(3),
            parent_anchor=0.2 * torch.randn(3),
            child_anchor=0.2 * torch.randn(3),
            cone=ANGLE - 0.05 * number,
            limits=(-bound, bound) if number % 2 else None,
            **laws,
        )
        axis = torch.randn(3, turns)
        axis = axis / axis.norm(dim=-1, keepdim=True)
        q += [0.2 * torch.randn(3, slides), turn * (ANGLE - 0.05 * number) * axis]
        qd += [torch.randn(3, slides), 4 * axis + torch.randn(3, turns)]
        parent = name
    mech = td.Mechanism(bodies, joints, timestep=0.01, options=exact(1e-4))
    q, qd = torch.cat(q, dim=-1), torch.cat(qd, dim=-1)
    q[-1] = 0.0
    return mech, mech.to_maximal(q, qd), torch.randn(3, mech.num_inputs)


@pytest.mark.parametrize("law", LAWS)
def test_every_joint(law: str) -> None:
    check(*chain(**LAWS[law]))


@pytest.mark.parametrize("kind", KINDS)
def test_one_joint(kind: str) -> None:
    check(*chain((kind,)))


def test_starts_outside() -> None:
    """They come back at a bounded speed, which the gradients know."""
    mech, z, u = chain(("Spherical", "CylindricalFree"), turn=1.1)
    check(mech, z, u)


def test_loop() -> None:
    """A loop of balls with cones: the general factorization in the place of the tree."""
    bodies = {name: td.Body(0.8, (0.02, 0.03, 0.015)) for name in ("a", "b")}
    joints = {
        "shoulder": td.Spherical(None, "a", child_anchor=(0, 0, 0.3), cone=0.8),
        "elbow": td.Spherical("a", "b", parent_anchor=(0, 0, -0.3), child_anchor=(0, 0.3, 0), cone=0.7),
        "hook": td.Spherical(None, "b", parent_anchor=(0, -0.6, -0.6), child_anchor=(0, -0.3, 0), cone=0.6, actuated=False),
    }
    mech = td.Mechanism(bodies, joints, timestep=0.01, options=exact(1e-4))
    z = mech.initial_state()  # it turns about the line from shoulder to hook
    torch.manual_seed(7)
    for _ in range(30):  # until the limits hold it
        z = mech(z, torch.tensor([2.0, 1.0, 0.5, 0.0, 0.0, 0.0])).detach()
    check(mech, z[None].expand(2, -1).clone(), 3 * torch.randn(2, mech.num_inputs), redundant=True)


@pytest.mark.parametrize("turn", [0.97, 1.1])
def test_parameters_equal_differences(turn: float) -> None:
    mech, z, u = chain(("Spherical", "CylindricalFree"), turn)
    mech.options = td.SolverOptions(kappa=1e-4, backend="native")
    names = [f"joints.{name}.{field}" for name in mech.joints for field in ("upper", "axis", "orientation_offset", "child_anchor")]
    report = td.testing.check_gradients(mech, z[0], u[0], parameters=[*names, "timestep"], directions=6)
    assert report.max_relative_error < 1e-6, report
