"""A user's contact on a height field: a flat field is a plane, steps differentiate by samples, a ball in a bowl gains no energy."""

from __future__ import annotations

import torch
from torch import Tensor, nn

import torchdojo as td
from torchdojo.evaluation.conservation import total_energy
from torchdojo.geometry.heights import HeightField

RADIUS = 0.1
CELL = 0.1


class OnHeights(td.NonlinearContact):
    """A ball on a height field whose samples (rows, columns) [m] are a parameter of the contact."""

    def __init__(self, body: str, heights: Tensor, **arguments: object) -> None:
        super().__init__(body, **arguments)
        self.heights = nn.Parameter(heights)

    def signed_distance(self, point: Tensor) -> Tensor:
        return HeightField(self.heights, CELL).gap(point)[0]


def ball(contact: td.Contact) -> td.Mechanism:
    inertia = 0.4 * RADIUS**2
    return td.Mechanism({"ball": td.Body(1.0, (inertia,) * 3)}, contacts={"skin": contact}, options=td.SolverOptions(backend="reference"))


def flat() -> Tensor:
    return torch.zeros(8, 9, dtype=torch.float64)


def test_a_flat_field_is_a_plane() -> None:
    field = ball(OnHeights("ball", flat(), radius=RADIUS, friction=0.4))
    plane = ball(td.NonlinearContact("ball", radius=RADIUS, friction=0.4))
    z = field.initial_state(ball=dict(position=(0.02, -0.03, 0.105), velocity=(0.4, 0.1, -1.0)))
    with torch.no_grad():
        for _ in range(5):
            torch.testing.assert_close(field(z), plane(z), rtol=0, atol=1e-12)
            z = plane(z)


def test_steps_differentiate_by_states_samples_and_friction() -> None:
    heights = 0.03 * torch.rand(8, 9, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    mech = ball(OnHeights("ball", heights, radius=RADIUS, friction=0.4))
    mech.options = td.SolverOptions(backend="reference", kappa=1e-4)
    z = mech.initial_state(ball=dict(position=(0.02, -0.03, 0.16), velocity=(0.5, 0.2, -2.0)))
    report = td.testing.check_gradients(
        mech, z, parameters=["contacts.skin.heights", "contacts.skin.friction"], directions=3, tolerance=1e-6
    )
    assert float(report.numeric["contacts.skin.heights -> state"].abs().max()) > 1e-3


def test_a_ball_that_rolls_in_a_bowl_gains_no_energy() -> None:
    x = CELL * (torch.arange(16, dtype=torch.float64) - 7.5)
    mech = ball(OnHeights("ball", 0.5 * (x[:, None] ** 2 + x**2), radius=RADIUS, friction=0.5))
    z = mech.initial_state(ball=dict(position=(0.3, 0.0, 0.165)))
    path = [z]
    with torch.no_grad():
        for _ in range(25):
            path.append(mech(path[-1]))
        growth = total_energy(mech, torch.stack(path)).diff(dim=0)
    # The ball lands first. One step of the landing gains 4.7e-5 J, as on a built-in tilted plane (3.9e-5 J); then the ball rolls.
    assert float(growth[8:].max()) <= 0
    assert float(path[-1][11]) < -4  # [rad/s]
