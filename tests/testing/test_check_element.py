"""`check_element`: it passes what is right, and each of its checks finds the defect that it is there for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import torchdojo as td
from torchdojo.elements import Motion, Pose, joints
from user_elements import Bowl, Cardan, Slider, TwoAngles

ANCHORS = dict(parent_anchor=(0.1, 0, -0.5), child_anchor=(0, 0.1, 0.5))
GEARED = {name: td.Revolute("a", name, axis=(0, 1, 0), child_anchor=(0, 0, 0.5)) for name in "bc"}

RIGHT: dict[str, Callable[[], dict[str, Any]]] = {
    **{name: lambda name=name: dict(element=getattr(joints, name)("a", "b", axis=(0.2, 1, 0.3), **ANCHORS)) for name in joints.JOINT_TYPES},
    "all of a hinge": lambda: dict(
        element=td.Revolute(None, "b", limits=(-0.4, 0.4), friction=0.1, armature=0.1, spring=1.0, damper=0.1, **ANCHORS)
    ),
    "impact": lambda: dict(element=td.ImpactContact("a", point=(0.1, 0.2, -0.3), restitution=0.5)),
    "cone": lambda: dict(element=td.NonlinearContact("a", radius=0.1, torsional_friction=0.01, rolling_friction=0.01)),
    "pyramid between bodies": lambda: dict(
        element=td.LinearContact("a", other="b", shape=td.Sphere(0.1), other_shape=td.Capsule(0.1, 0.5))
    ),
    "coupling": lambda: dict(element=td.JointCoupling("b", "c", ratio=-2.0, offset=0.1), joints=GEARED),
    "cardan": lambda: dict(element=Cardan("a", "b", **ANCHORS)),
    "cardan with limits": lambda: dict(element=TwoAngles("a", "b", limits=(-0.5, 0.5), **ANCHORS)),
    "slider": lambda: dict(element=Slider(None, "b")),
    "bowl": lambda: dict(element=Bowl("a", radius=0.1)),
}


# As in tests/elements/test_joint_mechanics.py: the kinds of coordinates there are; the other joints combine them.
SHOWN = ("Fixed", "Revolute", "Floating")
COMBINED = [name for name in joints.JOINT_TYPES if name not in SHOWN]
LONG = [
    *COMBINED,
    "Floating",
    "impact",
    "coupling",
    "all of a hinge",
    "cardan",
    "cardan with limits",
    "bowl",
    "pyramid between bodies",
]  # two seconds and more


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.slow] * (name in LONG)) for name in RIGHT])
def test_right_elements_pass(name: str) -> None:
    arguments = RIGHT[name]()
    element = arguments["element"]
    report = td.testing.check_element(**arguments)
    assert all(check is None or check.value <= check.allowed for check in report)
    assert (report.kernel is None) == (not type(element).__module__.startswith("torchdojo."))
    assert (report.momentum is None) == (isinstance(element, td.Contact) and element.other is None)
    assert report.gradients is not None and report.batch is not None and report.float32 is not None


# -- defects -------------------------------------------------------------------------------------------------------------------------------


class Unbalanced(Slider):
    """It pushes the child, and the parent does not feel it."""

    def residual(
        self, motions: tuple[Motion, ...], impulse: Tensor, slack: Tensor, u: Tensor, timestep: Tensor
    ) -> tuple[list[tuple[Tensor, Tensor]], Tensor]:
        wrenches, rows = super().residual(motions, impulse, slack, u, timestep)
        return [(0 * wrenches[0][0], 0 * wrenches[0][1]), wrenches[1]], rows


class Crooked(TwoAngles):
    """It places the child elsewhere than it measures."""

    def displace(self, q: Tensor) -> Pose:
        return super().displace(q + 1e-3)


class Mixing(Bowl):
    """The first environment tells all where the surface is."""

    def signed_distance(self, point: Tensor) -> Tensor:
        return super().signed_distance(point - 0.01 * torch.tanh(point.reshape(-1, 3)[0]))


class Shapeless(td.Joint):
    """A length that is read for the first environment only."""

    num_rows = 1
    fields = {"length": 0}  # noqa: RUF012

    def __init__(self, parent: str | None, child: str) -> None:
        super().__init__(parent, child)
        self.length = 0.5

    def constraint(self, parent: Pose, child: Pose) -> Tensor:
        return (child.x - parent.x).square().sum(-1, keepdim=True) - self.length.reshape(-1)[:1]


RADIUS = torch.tensor(2.0, dtype=torch.float64).expand(1)


class Doubled(td.ImpactContact):
    """A constant in double precision."""

    def signed_distance(self, point: Tensor) -> Tensor:
        return (RADIUS - torch.linalg.vector_norm(point - torch.tensor((0.0, 0.0, 2.0), dtype=torch.float64), dim=-1)).to(torch.float64)


class Counting(Bowl):
    """Copies are worse than the original."""

    def __setstate__(self, state: Any) -> None:
        super().__setstate__(state)
        self.worn = self.__dict__.get("worn", 0.0) + 1e-3

    def signed_distance(self, point: Tensor) -> Tensor:
        return super().signed_distance(point) - getattr(self, "worn", 0.0)


class Unpicklable(Bowl):
    def __init__(self, body: str) -> None:
        super().__init__(body)
        self.height = lambda point: point[..., 2]


class Detached(td.Joint):
    """Weights without gradient."""

    num_rows = 1

    def __init__(self, parent: str | None, child: str) -> None:
        super().__init__(parent, child)
        self.weight = nn.Parameter(torch.tensor(0.5, dtype=torch.float64))

    def constraint(self, parent: Pose, child: Pose) -> Tensor:
        return (child.x - parent.x).square().sum(-1, keepdim=True) - self.weight.detach()


class Careless(Bowl):
    """Whatever is given is taken."""

    def check_field(self, name: str, value: Tensor) -> Tensor:
        return value


WRONG: dict[str, tuple[Callable[[], td.Joint | td.Contact], str]] = {
    "coordinates": (lambda: Crooked("a", "b", **ANCHORS), r"got 0\.001; allowed: 1e-10"),
    "momentum": (lambda: Unbalanced("a", "b"), r"got .*; allowed: 1e-09 for Unbalanced \(linear and angular impulse"),
    "batch": (lambda: Mixing("a", radius=0.1), r"got .*; allowed: 1e-07"),
    "vmap": (lambda: Shapeless("a", "b"), r"got .*; allowed: 1e-07"),
    "float32": (lambda: Doubled("a"), r"got \w+Error: .*dtype"),
    "copies": (lambda: Unpicklable("a"), r"got .*[Pp]ickl.*; allowed: no error"),
    "gradients": (lambda: Detached("a", "b"), r"got .*; allowed: 1e-05"),
    "fields": (lambda: Careless("a"), r"got [1-9]; allowed: 0"),
}


@pytest.mark.parametrize("check", WRONG)
def test_every_check_finds_its_defect(check: str) -> None:
    make, message = WRONG[check]
    with pytest.raises(AssertionError, match=f"^check_element: {check}: {message}"):
        td.testing.check_element(make())


def test_copies_are_the_same_to_the_last_bit() -> None:
    with pytest.raises(AssertionError, match=r"^check_element: copies: got .*; allowed: 0 for Counting"):
        td.testing.check_element(Counting("a"))


def test_kernel_and_reference_disagree(monkeypatch: pytest.MonkeyPatch) -> None:
    coordinates = td.StandardJoint.coordinates
    monkeypatch.setattr(td.StandardJoint, "coordinates", lambda joint, *poses: 1.01 * coordinates(joint, *poses))
    with pytest.raises(AssertionError, match=r"^check_element: (kernel|coordinates): got .*; allowed: 1e-"):
        td.testing.check_element(td.Revolute(None, "b", spring=100.0, rest=0.5, **ANCHORS))


def test_given_states_and_the_element_stays() -> None:
    contact = td.NonlinearContact("a")
    z = td.Mechanism({"a": td.Body(1.0, (1, 1, 1))}).initial_state(a=dict(position=torch.tensor([[0, 0, 1e-3], [0, 0, 0.1]])))
    td.testing.check_element(contact, z=z)
    assert not any(p.requires_grad for p in contact.parameters()) and contact.point.dtype == torch.float64


class Nowhere(td.ImpactContact):
    def signed_distance(self, point: Tensor) -> Tensor:
        return 1 + point.square().sum(-1)


def test_refused() -> None:
    with pytest.raises(TypeError, match=r"check_element: got Body; allowed: a Joint, a Contact, a Coupling or a Tendon"):
        td.testing.check_element(td.Body(1.0, (1, 1, 1)))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"found no states in which the contact is nearly closed.*give z="):
        td.testing.check_element(Nowhere("a"))
