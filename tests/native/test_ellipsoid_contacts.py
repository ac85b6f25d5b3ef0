"""Contacts of ellipsoids: against the exact distance, both backends, gradients by poses and sizes, motions."""

from __future__ import annotations

import pytest
import torch
from parity import check, collision
from torch import Tensor

import torchdojo as td
from torchdojo import quaternion as quat
from torchdojo.geometry.ellipsoids import core_radius
from torchdojo.geometry.pairs import KINDS, Solid, nearest
from torchdojo.native import loader

pytestmark = pytest.mark.skipif(not loader.available(), reason="needs the compiled kernel")

EGG = td.Ellipsoid((0.05, 0.03, 0.02))
SHAPES: dict[str, td.Shape] = {
    "sphere": td.Sphere(0.03),
    "capsule": td.Capsule(0.02, 0.1),
    "box": td.Box((0.1, 0.08, 0.06)),
    "ellipsoid": td.Ellipsoid((0.06, 0.04, 0.01)),
}
PAIRS: list = [("ellipsoid", "half-space", True), ("ellipsoid", "ellipsoid", False), ("ellipsoid", "box", True)]
LONG = [("ellipsoid", "half-space", False), ("ellipsoid", "sphere", True), ("capsule", "ellipsoid", False)]
PAIRS += [pytest.param(*pair, marks=pytest.mark.slow) for pair in LONG]


def solid(shape: td.Shape, x: Tensor, q: Tensor) -> Solid:
    extent = next((getattr(shape, name) for name in ("length", "size", "semi_axes") if hasattr(shape, name)), x.new_zeros(0))
    return Solid(x, q, getattr(shape, "radius", x.new_zeros(())).expand(len(x)), extent.expand(len(x), *extent.shape))


def random_poses(count: int, far: float) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    turns = quat.normalize(torch.randn(2, count, 4, generator=generator, dtype=torch.float64))
    way = torch.nn.functional.normalize(torch.randn(count, 3, generator=generator, dtype=torch.float64), dim=-1)
    return way * (0.05 + far * torch.rand(count, 1, generator=generator, dtype=torch.float64)), turns[0], turns[1]


@pytest.mark.parametrize("kind", KINDS)
def test_distance_is_exact(kind: str) -> None:
    """As of `td.distance`, which searches in another way; boxes have rounded edges, so overlap by less than their radius is right, too."""
    shape, rounding = SHAPES[kind], 0.0
    x, q, turn = random_poses(150, 0.1)
    found = nearest(kind, "ellipsoid", solid(shape, x, q), solid(EGG, torch.zeros_like(x), turn))
    if isinstance(shape, td.Box):
        rounding = float(core_radius(0.5 * shape.size))
        shape = td.Box(shape.size - 2 * rounding)
    exact = td.distance(shape, (x, q), EGG, (torch.zeros_like(x), turn))
    gap = exact.distance - rounding
    right = gap > -0.9 * (rounding if rounding else 1e-3)
    assert int(right.sum()) > 75
    torch.testing.assert_close(found.distance[right], gap[right], atol=1e-14, rtol=0)
    torch.testing.assert_close(found.normal[right], exact.normal[right], atol=1e-11, rtol=0)
    torch.testing.assert_close(found.point[right], (exact.point - rounding * exact.normal)[right], atol=1e-12, rtol=0)


@pytest.mark.sanitize
@pytest.mark.parametrize(("shape", "other", "fixed"), PAIRS)
def test_backends_agree(shape: str, other: str, fixed: bool) -> None:
    out = check(*collision(shape, other, fixed, td.NonlinearContact))
    assert int((out.impulses[:, 0] > 1e-2).sum()) >= 3


@pytest.mark.parametrize(("shape", "other", "fixed"), PAIRS)
def test_gradients_agree_with_differences(shape: str, other: str, fixed: bool) -> None:
    """By states and by every number, the semi-axes among them."""
    mech, z, _ = collision(shape, other, fixed, td.NonlinearContact)
    mech.options = td.SolverOptions(kappa=1e-4, residual_tol=1e-12, backend="native")
    report = td.testing.check_gradients(mech, z[0], directions=3, tolerance=1e-7)
    assert any("semi_axes" in name for name in report.errors)


def test_spheres_are_ellipsoids_with_equal_axes() -> None:
    ends = []
    for shape in (td.Sphere(0.05), td.Ellipsoid((0.05, 0.05, 0.05))):
        bodies = {name: td.Body(1.0, shape=shape) for name in "ab"}
        contacts = {
            "floor": td.NonlinearContact("a", shape=shape),
            "other": td.NonlinearContact("b", shape=shape, other="a", other_shape=shape),
        }
        mech = td.Mechanism(bodies, contacts=contacts, options=td.SolverOptions(residual_tol=1e-12))
        z = mech.initial_state(a={"position": (0, 0, 0.0502), "velocity": (0.1, 0, 0)}, b={"position": (0.02, 0.01, 0.16)})
        path = mech.rollout(z, steps=30)
        assert not path.status.any()
        ends.append(path.z[-1])
    torch.testing.assert_close(*ends, atol=1e-9, rtol=0)


def test_egg_rolls_on_a_floor_and_comes_to_rest_on_its_short_axis() -> None:
    floor = td.Box((2.0, 2.0, 0.2), position=(0, 0, -0.1))
    contact = td.NonlinearContact("egg", shape=EGG, other_shape=floor, friction=0.8, rolling_friction=2e-3, torsional_friction=2e-3)
    mech = td.Mechanism({"egg": td.Body(0.2, shape=EGG)}, contacts={"floor": contact})
    path = mech.rollout(mech.initial_state(egg={"position": (0, 0, 0.06), "angular_velocity": (3.0, 2.0, 1.0)}), steps=300)
    assert not path.status.any() and float(mech.distances(path.z).min()) > 0
    assert float(path.z[-1, 2]) == pytest.approx(0.02, abs=1e-4) and float(path.z[-1, 3:6].abs().max()) < 1e-3


def test_what_is_refused() -> None:
    class Bowl(td.NonlinearContact):
        def signed_distance(self, point: Tensor) -> Tensor:
            return 1 - torch.linalg.vector_norm(point, dim=-1)

    with pytest.raises(ValueError, match="an Ellipsoid against a half-space"):
        Bowl("a", shape=EGG)
    with pytest.raises(ValueError, match="Sphere, Capsule, Box and Ellipsoid"):
        td.NonlinearContact("a", shape=EGG, other_shape=td.Cylinder(0.1, 0.1))
