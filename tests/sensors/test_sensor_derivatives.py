"""C and D of linearizations: all rows at once are those of one backward pass for each number."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import torchdojo as td
from torchdojo.native import loader

native = pytest.mark.skipif(not loader.available(), reason="no compiler for the native kernel")
TOLERANCE = 1e-11  # relative to the largest number: stiff contacts magnify the rounding of other lanes; 5e-12 seen
ON_A_BODY = (
    "gyro", "accelerometer", "velocimeter", "magnetometer", "frame_position", "frame_quaternion", "frame_z_axis",
    "frame_linear_acceleration", "force", "torque", "touch",
)  # fmt: skip


def sensed(mech: td.Mechanism, body: str, joint: str) -> td.Mechanism:
    mech.sites["place"] = td.Site(body, (0.01, 0.02, -0.05), (0.8, 0.6, 0.0, 0.0), size=0.3)
    mech.sensors.update({kind: td.Sensor(kind, site="place") for kind in ON_A_BODY})
    mech.sensors["turn"], mech.sensors["rate"] = td.Sensor("joint_position", joint=joint), td.Sensor("joint_velocity", joint=joint)
    mech.sensors["sum"], mech.sensors["center"] = td.Sensor("subtree_angular_momentum"), td.Sensor("subtree_center")
    return mech


def row_by_row(mech: td.Mechanism, z: Tensor, driven: dict[str, Tensor], repeat: int, **options: Any) -> tuple[Tensor, Tensor, Tensor]:
    """y, C and D by a backward pass for each number."""
    ((key, given),) = driven.items()
    change = z.new_zeros(*z.shape[:-1], 12 * mech.num_bodies).requires_grad_()
    inputs = given.expand(*z.shape[:-1], -1).clone().requires_grad_()
    moved = mech.retract(z, change)
    out = mech.step(moved, **{key: inputs}, repeat=repeat, **options)
    y = mech.read_sensors(moved, out, **{key: inputs}, repeat=repeat)
    rows = [
        torch.autograd.grad(column.sum(), (change, inputs), retain_graph=True, materialize_grads=True)
        if column.requires_grad
        else (torch.zeros_like(change), torch.zeros_like(inputs))
        for column in y.unbind(-1)
    ]
    C, D = (torch.stack(column, dim=-2) for column in zip(*rows, strict=True))
    return y.detach(), C, D


def close(ours: Tensor, exact: Tensor, rounding: float = 0.0) -> None:
    """rounding: by which each of both may be off beside the tolerance."""
    torch.testing.assert_close(ours, exact, rtol=0, atol=TOLERANCE * float(exact.abs().max()) + 2 * rounding)


def ant() -> td.Mechanism:
    mech = td.models.ant()
    return sensed(mech, list(mech.bodies)[-1], list(mech.joints)[-1])


def turned(mech: td.Mechanism) -> td.Mechanism:
    """With a sensor of a motor, which reads controls."""
    mech.sensors["motor"] = td.Sensor("actuator_force", actuator=mech.actuators.names[0])
    return mech


@native
@pytest.mark.parametrize(("key", "repeat"), [("u", 1), ("ctrl", 1), ("ctrl", 3)])
@pytest.mark.parametrize("batch", [(), (3,), (2, 2)])
@pytest.mark.parametrize("learned", [False, True])
def test_all_rows_at_once(key: str, repeat: int, batch: tuple[int, ...], learned: bool) -> None:
    mech = ant() if key == "u" else turned(ant())
    generator = torch.Generator().manual_seed(0)
    size = mech.num_inputs if key == "u" else len(mech.actuators)
    driven = 0.3 * torch.randn(*batch, size, generator=generator, dtype=torch.float64)
    z = mech.initial_state(pose="home").expand(*batch, -1)
    z = mech.rollout(z, (driven if key == "u" else mech.actuators(driven)).unsqueeze(-2).expand(*batch, 40, -1)).z[..., -1, :]
    z = mech.retract(z, z.new_zeros(*batch, 12 * mech.num_bodies))  # equal bits in both: solutions of contacts magnify rounding
    next(iter(mech.bodies.values())).mass.requires_grad_(learned)
    solved = mech.linearize(z, **{key: driven}, repeat=repeat, sensors=True)
    assert float(mech.distances(z).min()) < 1e-3  # forces act
    y, C, D = row_by_row(mech, z, {key: driven}, repeat)
    torch.testing.assert_close(solved.y, y, rtol=0, atol=1e-9 * float(y.abs().max()))  # of two solutions, each to 1e-9
    # How far the last digit of the inputs moves derivatives of the same function: on a Xeon, 1.1e-11 of the largest one.
    moved = [row_by_row(mech, z, {key: driven * (1 + k * 2.0**-52)}, repeat)[1:] for k in (-2, -1, 1, 2)]
    close(solved.C, C, max(float((other - C).abs().max()) for other, _ in moved))
    close(solved.D, D, max(float((other - D).abs().max()) for _, other in moved))


@pytest.mark.slow
def test_the_reference_has_the_same_rows() -> None:
    """Near a contact, of a joint with friction, by PyTorch alone."""

    class Own(td.NonlinearContact):
        """The kernel has none of a user's own."""

    hinge = td.Revolute(None, "rod", axis=(0, 1, 0), child_anchor=(0, 0, 0.4), parent_anchor=(0, 0, 0.49))
    contacts = {"tip": Own("rod", point=(0, 0, -0.1), friction=0.5)}
    mech = sensed(td.Mechanism({"rod": td.Body(1.0, (0.02, 0.02, 0.01))}, {"hinge": hinge}, contacts), "rod", "hinge")
    z, u = mech.initial_state(hinge={"q": 0.2, "qd": 0.3}), torch.tensor([0.4], dtype=torch.float64)
    with pytest.warns(UserWarning, match="reference"):
        solved = mech.linearize(z, u, sensors=True)
        y, C, D = row_by_row(mech, z, {"u": u}, 1)
    for ours, exact in ((solved.y, y), (solved.C, C), (solved.D, D)):
        torch.testing.assert_close(ours, exact, rtol=0, atol=1e-9 * float(exact.abs().max()))  # another factorization than the adjoint's


@native
def test_failed_steps_and_no_sensors() -> None:
    mech = ant()
    z = mech.initial_state(pose="home").expand(2, -1).clone()
    z[1, 3] = torch.nan
    solved = mech.linearize(z, torch.zeros(mech.num_inputs, dtype=torch.float64), sensors=True)
    assert solved.status.tolist()[0] == 0 and bool((solved.C[1] == 0).all()) and bool((solved.D[1] == 0).all())
    one = mech.linearize(z[0], torch.zeros(mech.num_inputs, dtype=torch.float64), sensors=True)
    close(solved.C[0], one.C)
    none = mech.linearize(z[0], sensors=[])
    assert none.C.shape == (0, 12 * mech.num_bodies) and none.D.shape == (0, mech.num_inputs)
