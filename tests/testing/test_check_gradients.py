"""`check_gradients` of elements that users write."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import torchdojo as td
from torchdojo.elements import Pose

REFERENCE = td.SolverOptions(backend="reference")


class Rod(td.Joint):
    """Two points keep a distance that a small network gives."""

    num_rows = 1

    def __init__(self, parent: str | None, child: str) -> None:
        super().__init__(parent, child)
        self.net = nn.Linear(3, 1, dtype=torch.float64)
        self.tip = nn.Parameter(torch.tensor((0.0, 0.0, 0.1), dtype=torch.float64))

    def constraint(self, parent: Pose, child: Pose) -> Tensor:
        span = child.point(self.tip) - parent.x
        return 0.5 * (span.square().sum(-1, keepdim=True) - self.net(self.tip).square())


class Deciding(Rod):
    """Its code depends on values, which no transform of torch can follow."""

    def constraint(self, parent: Pose, child: Pose) -> Tensor:
        return super().constraint(parent, child) * (2.0 if float(self.tip[2].detach()) > 0.05 else 1.0)


class FieldRod(td.Joint):
    num_rows = 1
    fields = {"length": 0, "tip": 1}  # noqa: RUF012

    def __init__(self, parent: str | None, child: str) -> None:
        super().__init__(parent, child)
        self.length, self.tip = 0.5, (0.0, 0.0, 0.1)

    def constraint(self, parent: Pose, child: Pose) -> Tensor:
        span = child.point(self.tip) - parent.x
        return 0.5 * (span.square().sum(-1, keepdim=True) - self.length[..., None] ** 2)


def two_bodies(joint: td.Joint) -> tuple[td.Mechanism, Tensor]:
    torch.manual_seed(0)
    bodies = {"a": td.Body(1.0, (0.1, 0.1, 0.1)), "b": td.Body(0.5, (0.02, 0.03, 0.04))}
    joints = [("base", td.Floating(None, "a")), ("free", td.Floating(None, "b", actuated=False)), ("rod", joint)]
    mech = td.Mechanism(bodies, joints, gravity=(0, 0, 0), options=REFERENCE)
    state = td.Mechanism({name: td.Body(1.0, (1, 1, 1)) for name in "ab"})
    return mech, state.initial_state(b=dict(position=(0.3, 0.4, -0.1), velocity=(0.4, -0.3, 0.2), angular_velocity=(1.0, 2.0, 0.5)))


def counted(mech: td.Mechanism, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many environments each step has from now on."""
    sizes: list[int] = []
    step = mech.step

    def counting(*args: Any, **options: Any) -> Any:
        out = step(*args, **options)
        sizes.append(out.status.numel())
        return out

    monkeypatch.setattr(mech, "step", counting)
    return sizes


@pytest.mark.slow
def test_weights_and_fields_take_as_many_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    for joint, tensors in ((Rod("a", "b"), 3), (FieldRod("a", "b"), 2)):
        mech, z = two_bodies(joint)
        sizes = counted(mech, monkeypatch)
        report = td.testing.check_gradients(mech, z, torch.zeros(6), parameters=["joints.rod"], tolerance=1e-6)
        assert len(sizes) == 5, "two steps for backward, then one batch for z, one for u and one for all tensors"
        assert sum("joints.rod" in label for label in report.errors) == 2 * tensors


def test_code_that_no_transform_follows() -> None:
    torch.manual_seed(1)
    mech, z = two_bodies(Deciding("a", "b"))
    td.testing.check_gradients(mech, z, parameters=["joints.rod.net.bias"], tolerance=1e-6)


def test_weights_are_mapped() -> None:
    mech, z = two_bodies(Rod("a", "b"))
    bias = mech.get_parameter("joints.rod.net.bias").detach()

    def speed(value: Tensor) -> Tensor:
        return torch.func.functional_call(mech, {"joints.rod.net.bias": value}, (z,)).square().sum()

    values = bias + torch.tensor([[0.0], [0.1], [-0.05]])
    together = torch.func.vmap(torch.func.grad(speed))(values)
    one_by_one = torch.stack([torch.func.grad(speed)(value) for value in values])
    # Both are solved to 1e-9, and the rod is pulled hard: errors of 0.1 m at h = 0.01.
    torch.testing.assert_close(together, one_by_one, rtol=1e-6, atol=0)


def test_parameters_that_the_step_does_not_read() -> None:
    """Without a call of the actuators, all of a block of parameters may be theirs: nothing has a batch, and all derivatives are zero."""
    mech = td.Mechanism(
        bodies={"rod": td.Body(1.0, inertia=(0.1, 0.1, 0.1))},
        joints={"hinge": td.Revolute(None, "rod", axis=(0, 1, 0), parent_anchor=(0, 0, 1))},
    )
    td.actuate(mech, {"motor": td.Actuator.motor("hinge", gear=2.0)})
    names = [name for name, _ in mech.named_parameters() if name.startswith("actuators.")]
    assert names
    report = td.testing.check_gradients(mech, mech.initial_state(), parameters=["actuators."])
    assert all(not report.numeric[f"{name} -> state"].any() for name in names)
    assert report.max_relative_error < 1e-6
