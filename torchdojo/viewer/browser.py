"""Scenes in a browser, by viser: each part of a scene is one node with an instance for each playback, so that batches stay cheap."""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torchdojo.viewer.renderer import required
from torchdojo.viewer.scene import Part, Scene
from torchdojo.viewer.stage import part_radius, tint

__all__ = ["Browser", "multiply", "open_server", "rotate", "same_scene", "surface"]

Array = NDArray[np.float64]
Hit = Callable[[int, str, Any], None]

DEFAULT_PORT = 8080
PLANE = {
    "cell_size": 0.5,
    "cell_color": (200, 204, 210),
    "section_size": 1.0,
    "section_color": (165, 170, 178),
    "plane_color": (240, 241, 243),
    "plane_opacity": 1.0,
    "infinite_grid": True,
}


def open_server(port: int | None, host: str) -> Any:
    """A viser server at `port`. Without one, at 8080 or the next free one, which is then printed.

    Raises:
        ImportError: viser is missing. OSError: the port is in use, or not allowed.
    """
    viser = required("viser", "the live view")
    wanted = DEFAULT_PORT if port is None else port
    # viser goes on to the next port without a word, so the port is tried first.
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, wanted))
        except OSError as error:
            if port is not None:
                remedy = "give another, port=0 for any that is free, or none for the next one"
                raise OSError(f"port {port} of {host} cannot be opened ({error.strerror}); {remedy}") from error
    server = viser.ViserServer(host=host, port=wanted, label="torchdojo", verbose=False)
    if port is None and server.get_port() != wanted:
        print(f"port {wanted} is in use; the view is at port {server.get_port()}")
    return server


class Browser:
    """Draws copies of one scene at `offsets` (copies, 3) [m]. `on_hit` learns of clicks and drags on bodies.

    tints: the number of each copy where copies lie on top of each other, all but number 0 tinted and translucent; None on a grid, whose
    copies look alike.
    """

    def __init__(
        self, server: Any, scene: Scene, offsets: Array, *, tints: Sequence[int] | None, name: str = "", on_hit: Hit | None = None
    ):
        self._server, self._scene, self._offsets = server, scene, offsets
        self._copies = len(offsets)
        self._moving: list[tuple[Any, int, Array, Array]] = []  # node, body, place of the part in the body
        identity = np.tile((1.0, 0.0, 0.0, 0.0), (self._copies, 1))
        for number, part in enumerate(scene.parts):
            path = f"/{name}/{part.body or 'world'}/{number}"
            if part.kind == "plane":
                server.scene.add_grid(path, wxyz=part.orientation, position=part.position, **PLANE)
                continue
            vertices, faces = surface(part, scene)
            color = scene.color(part)
            moving = part.body is not None
            numbers = tints if tints is not None else [0] * self._copies
            colors = np.array([tint(color, number, True) if moving else color for number in numbers])
            node = server.scene.add_batched_meshes_simple(
                path,
                vertices,
                faces,
                batched_wxyzs=identity * 1.0,
                batched_positions=offsets * 1.0,
                batched_colors=np.round(255 * colors[:, :3]).astype(np.uint8),
                batched_opacities=colors[:, 3].astype(np.float32) if colors[:, 3].min() < 1.0 else None,
                side="double",
                lod="off",
            )
            index = scene.bodies.index(part.body) if part.body is not None else -1
            place, turn = np.asarray(part.position), np.asarray(part.orientation)
            if index < 0:
                node.batched_positions, node.batched_wxyzs = offsets + place, np.tile(turn, (self._copies, 1))
            else:
                self._moving.append((node, index, place, turn))
                if on_hit is not None:
                    self._listen(node, part, on_hit)

    def show(self, positions: Array, orientations: Array) -> None:
        """Draw bodies at positions (copies, bodies, 3) and orientations (copies, bodies, 4); copies that are not finite go out of sight."""
        gap = ~(np.isfinite(positions).all((1, 2)) & np.isfinite(orientations).all((1, 2)))
        for node, body, place, turn in self._moving:
            q, x = orientations[:, body], positions[:, body]
            where, turned = x + rotate(q, place) + self._offsets, multiply(q, turn)
            where[gap], turned[gap] = (0.0, 0.0, -1e4), (1.0, 0.0, 0.0, 0.0)
            node.batched_positions, node.batched_wxyzs = where, turned

    def look(self, center: Array, radius: float) -> None:
        """Place the camera of new visitors."""
        camera = self._server.initial_camera
        camera.look_at = tuple(center)
        camera.position = tuple(center + 1.7 * radius * np.array((0.75, -0.75, 0.45)))

    @property
    def radius(self) -> float:
        """The size of the largest part of a body [m]."""
        return max((part_radius(part, self._scene) for part in self._scene.parts if part.body is not None), default=0.1)

    @staticmethod
    def _listen(node: Any, part: Part, on_hit: Hit) -> None:
        node.on_click(lambda event: on_hit(event.instance_index or 0, str(part.body), event))
        node.on_drag(lambda event: on_hit(event.instance_index or 0, str(part.body), event))


def surface(part: Part, scene: Scene) -> tuple[NDArray[np.float32], NDArray[np.uint32]]:
    """Triangles of a part in its own frame; where it has edges, none share a vertex, so that the edges are seen."""
    if part.kind == "mesh":
        triangles = scene.meshes[part.mesh]
        return _edged(triangles.vertices * np.asarray(part.size, dtype=np.float32), triangles.faces)
    creation = required("trimesh.creation", "the live view")
    if part.kind == "box":
        mesh = creation.box(extents=part.size)
    elif part.kind == "capsule":
        mesh = creation.capsule(radius=part.size[0], height=part.size[1], count=(16, 16))
    elif part.kind == "cylinder":
        mesh = creation.cylinder(radius=part.size[0], height=part.size[1], sections=48)
    else:
        mesh = creation.icosphere(subdivisions=3)
        mesh.apply_scale(part.size * 3 if part.kind == "sphere" else part.size)
    if part.kind in ("box", "cylinder"):
        return _edged(mesh.vertices, mesh.faces)
    return mesh.vertices.astype(np.float32), mesh.faces.astype(np.uint32)


def _edged(vertices: NDArray[Any], faces: NDArray[Any]) -> tuple[NDArray[np.float32], NDArray[np.uint32]]:
    return vertices[faces].reshape(-1, 3).astype(np.float32), np.arange(faces.size, dtype=np.uint32).reshape(-1, 3)


def rotate(q: Array, vector: Array) -> Array:
    """Vectors (..., 3) turned by unit quaternions (..., 4) wxyz."""
    axis = q[..., 1:]
    return vector + 2.0 * np.cross(axis, np.cross(axis, vector) + q[..., :1] * vector)


def multiply(q: Array, p: Array) -> Array:
    """Products of quaternions (..., 4) wxyz."""
    q, p = np.broadcast_arrays(q, p)
    w, v, a, b = q[..., :1], q[..., 1:], p[..., :1], p[..., 1:]
    return np.concatenate((w * a - (v * b).sum(-1, keepdims=True), w * b + a * v + np.cross(v, b)), -1)


def same_scene(scenes: Sequence[Scene]) -> list[list[int]]:
    """Indices of equal scenes, grouped, in the order of their first."""
    groups: list[list[int]] = []
    for i, scene in enumerate(scenes):
        for group in groups:
            other = scenes[group[0]]
            meshes = scene.meshes is other.meshes or not (scene.meshes or other.meshes)
            if scene is other or (meshes and scene.bodies == other.bodies and scene.parts == other.parts):
                group.append(i)
                break
        else:
            groups.append([i])
    return groups
