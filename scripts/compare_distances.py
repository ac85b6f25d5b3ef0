"""`td.distance` beside coal, and beside MuJoCo for ellipsoids: `compare_distances.py [pairs of each kind]`.

It needs `pip install coal` and MuJoCo. coal's own tolerance is set to 1e-12; for round shapes it ends at 1e-9 to 1e-7, and normals at the
root of it. So the column "off" has a proof without another engine: how far the two nearest points lie off their shapes. The plane between
them is a lower bound of the distance, and points of the shapes are an upper one.
"""

from __future__ import annotations

import sys
import time
from typing import Any

import numpy as np
import torch

import torchdojo as td
from torchdojo import quaternion as quat

NEAR = 1e-4  # [m]: normals of distances below are not compared


def hull(count: int, seed: int) -> td.Hull:
    points = torch.randn(count, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return td.Hull(0.05 * points / torch.linalg.vector_norm(points, dim=-1, keepdim=True))


SHAPES: dict[str, td.Shape] = {
    "hull of 8": hull(8, 0),
    "hull of 20": hull(20, 1),
    "hull of 64": hull(64, 2),
    "hull of 200": hull(200, 3),
    "box": td.Box((0.1, 0.08, 0.06)),
    "cylinder": td.Cylinder(0.04, 0.1),
    "capsule": td.Capsule(0.02, 0.1),
    "ellipsoid": td.Ellipsoid((0.05, 0.03, 0.02)),
}
PAIRS = [
    ("hull of 8", "hull of 8"),
    ("hull of 20", "hull of 20"),
    ("hull of 64", "hull of 64"),
    ("hull of 200", "hull of 200"),
    ("box", "box"),
    ("box", "hull of 200"),
    ("cylinder", "box"),
    ("cylinder", "hull of 64"),
    ("cylinder", "cylinder"),
    ("capsule", "hull of 20"),
]
ROUND = [("ellipsoid", "ellipsoid"), ("ellipsoid", "box"), ("ellipsoid", "capsule")]


def coal_shape(shape: td.Shape) -> Any:
    import coal

    if isinstance(shape, td.Box):  # coal's own boxes stop at 1e-11
        shape = td.Hull(shape.contact_points()[0])
    if isinstance(shape, td.Cylinder):
        return coal.Cylinder(float(shape.radius), float(shape.length))
    if isinstance(shape, td.Capsule):
        return coal.Capsule(float(shape.radius), float(shape.length))
    if isinstance(shape, td.Ellipsoid):
        return coal.Ellipsoid(*shape.semi_axes.tolist())
    assert isinstance(shape, td.Hull)
    points, triangles = coal.StdVec_Vec3s(), coal.StdVec_Triangle()
    for point in shape.vertices.numpy():
        points.append(point)
    for face in shape.faces.tolist():
        triangles.append(coal.Triangle(*face))
    return coal.Convex(points, triangles)


def by_coal(a: td.Shape, b: td.Shape, poses: list[tuple[torch.Tensor, torch.Tensor]]) -> tuple[np.ndarray, np.ndarray, np.ndarray, float]:
    """Distances, normals from b to a, points of a, and microseconds of a pair."""
    import coal

    request, result = coal.DistanceRequest(), coal.DistanceResult()
    request.enable_signed_distance, request.gjk_tolerance, request.epa_tolerance = True, 1e-12, 1e-12
    request.gjk_max_iterations = request.epa_max_iterations = 512
    one, two = coal_shape(a), coal_shape(b)
    turns = [[coal.Transform3s(R, p) for R, p in zip(quat.rotation_matrix(q).numpy(), x.numpy(), strict=True)] for x, q in poses]
    count = len(turns[0])
    gaps, normals, points = np.zeros(count), np.zeros((count, 3)), np.zeros((count, 3))
    start = time.process_time()
    for k in range(count):
        result.clear()
        gaps[k] = coal.distance(one, turns[0][k], two, turns[1][k], request, result)
        normals[k], points[k] = -result.normal, result.getNearestPoint1()
    return gaps, normals, points, (time.process_time() - start) / count * 1e6


def off(shape: td.Shape, pose: tuple[torch.Tensor, torch.Tensor], point: torch.Tensor) -> torch.Tensor:
    """How far points (N, 3) lie from the surface of a shape at poses, to first order [m]."""
    p = quat.inverse_rotate(pose[1], point - pose[0])
    if isinstance(shape, td.Box):
        return (p.abs() - 0.5 * shape.size).amax(-1).abs()
    if isinstance(shape, td.Cylinder):
        radial = torch.linalg.vector_norm(p[..., :2], dim=-1)
        return torch.maximum(radial - shape.radius, p[..., 2].abs() - 0.5 * shape.length).abs()
    if isinstance(shape, td.Capsule):
        along = p[..., 2].clamp(-0.5 * shape.length, 0.5 * shape.length)
        return (torch.hypot(torch.hypot(p[..., 0], p[..., 1]), p[..., 2] - along) - shape.radius).abs()
    if isinstance(shape, td.Ellipsoid):
        return (torch.linalg.vector_norm(p / shape.semi_axes, dim=-1) - 1).abs() * shape.semi_axes.amin()
    assert isinstance(shape, td.Hull)
    a, b, c = shape.vertices[shape.faces].unbind(1)
    normal = torch.nn.functional.normalize(torch.linalg.cross(b - a, c - a), dim=-1)
    return (p @ normal.T - (normal * a).sum(-1)).amax(-1).abs()


def geom(shape: td.Shape) -> str:
    if isinstance(shape, td.Ellipsoid):
        return f'type="ellipsoid" size="{" ".join(map(repr, shape.semi_axes.tolist()))}"'
    if isinstance(shape, td.Box):
        return f'type="box" size="{" ".join(map(repr, (0.5 * shape.size).tolist()))}"'
    assert isinstance(shape, td.Capsule)
    return f'type="capsule" size="{float(shape.radius)!r} {0.5 * float(shape.length)!r}"'


def by_mujoco(a: td.Shape, b: td.Shape, poses: list[tuple[torch.Tensor, torch.Tensor]]) -> np.ndarray:
    import mujoco

    bodies = "".join(f'<body mocap="true"><geom {geom(shape)}/></body>' for shape in (a, b))
    text = f'<mujoco><option ccd_tolerance="1e-12" ccd_iterations="500"/><worldbody>{bodies}</worldbody></mujoco>'
    model = mujoco.MjModel.from_xml_string(text)
    data = mujoco.MjData(model)
    result = np.zeros(len(poses[0][0]))
    for k in range(len(result)):
        for i, (x, q) in enumerate(poses):
            data.mocap_pos[i], data.mocap_quat[i] = x[k].numpy(), q[k].numpy()
        mujoco.mj_kinematics(model, data)
        result[k] = mujoco.mj_geomDistance(model, data, 0, 1, 10.0, None)
    return result


def random_poses(count: int, seed: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    turns = quat.normalize(torch.randn(2, count, 4, generator=generator, dtype=torch.float64))
    way = torch.randn(count, 3, generator=generator, dtype=torch.float64)
    way = way / torch.linalg.vector_norm(way, dim=-1, keepdim=True)
    way = way * (0.06 + 0.09 * torch.rand(count, 1, generator=generator, dtype=torch.float64))
    return [(torch.zeros_like(way), turns[0]), (way, turns[1])]


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 10000
    print("| pair | apart | wrong side | distance | normal | witness | off | depth | µs, coal |\n" + "|---" * 9 + "|")
    for number, (first, second) in enumerate(PAIRS + ROUND):
        a, b = SHAPES[first], SHAPES[second]
        poses = random_poses(count, number)
        start = time.process_time()
        found = td.distance(a, poses[0], b, poses[1])
        mine = (time.process_time() - start) / count * 1e6
        gaps, normals, points, theirs = by_coal(a, b, poses)
        gap = found.distance.numpy()
        apart = (gap > 0) & (gaps > 0)
        wrong = int(((gap > 1e-9) != (gaps > 1e-9)).sum())
        far = apart & (gap > NEAR)
        error = np.abs(gap - gaps)
        n = np.linalg.norm(found.normal.numpy() - normals, axis=-1)[far]
        w = np.linalg.norm(found.point.numpy() - points, axis=-1)[far]
        depth = error[(gap < 0) & (gaps < 0) & (gaps > -1)]  # coal gives −1e308 where it finds none
        proof = torch.maximum(off(a, poses[0], found.point), off(b, poses[1], found.other_point)).numpy()[apart].max()
        shown = f"{error[apart].max():.0e} | {n.max():.0e} ({int((n > 1e-9).sum())} > 1e-9) | {w.max():.0e} ({int((w > 1e-9).sum())})"
        deep = f"{depth.max():.0e} ({int((depth > 1e-9).sum())} of {len(depth)})" if len(depth) else "-"
        print(
            f"| {first}, {second} | {int(apart.sum())} | {wrong} | {shown} | {proof:.0e} | {deep} | {mine:.0f}, {theirs:.0f} |", flush=True
        )
        if (first, second) in ROUND:
            their = by_mujoco(a, b, poses)
            both = (gap > 0) & (their > 0)
            print(f"| the same beside MuJoCo | {int(both.sum())} | | {np.abs(gap - their)[both].max():.0e} | | | | | |", flush=True)


if __name__ == "__main__":
    main()
