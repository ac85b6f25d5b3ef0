"""A scene to draw: the solids of each body and of the world, the contacts and the joints of a mechanism, as plain numbers.

A page, a video and a live view draw from a `Scene`, never from a `Mechanism`: so they also draw what was read from a file.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from torchdojo.elements.bodies import Body
from torchdojo.elements.contact import SAMPLED
from torchdojo.elements.contacts import Contact
from torchdojo.elements.joints import Joint, StandardJoint
from torchdojo.elements.near_contact import NearContact
from torchdojo.geometry.hulls import Hull, MeshSource, convex_hull
from torchdojo.geometry.polytopes import Polytope
from torchdojo.geometry.shapes import Box, Capsule, Cylinder, Ellipsoid, Mesh, Shape, Sphere
from torchdojo.geometry.visuals import SIZES, Triangles, Vector, Visual
from torchdojo.mechanism import Mechanism
from torchdojo.parameters import PhysicalModule, warn_user
from torchdojo.sensors.site import Site
from torchdojo.viewer.surfaces import Surfaces, available
from torchdojo.viewer.terrain import terrain

__all__ = ["GRAY", "SIZES", "ContactPoint", "JointFrame", "Part", "Scene", "Triangles"]

GRAY = (0.62, 0.66, 0.72, 1.0)
SITE_COLOR, SITE_RADIUS = (0.93, 0.35, 0.15, 1.0), 0.008  # of the marker of a site [m]
EARTH = (0.80, 0.79, 0.76, 1.0)
#: Shapes that have a kind of their own, with the attributes that `SIZES` lists.
SHAPES: dict[type[Shape], tuple[str, tuple[str, ...]]] = {
    Sphere: ("sphere", ("radius",)),
    Box: ("box", ("size",)),
    Capsule: ("capsule", ("radius", "length")),
    Cylinder: ("cylinder", ("radius", "length")),
    Ellipsoid: ("ellipsoid", ("semi_axes",)),
}
#: The same for shapes of the world that a contact carries: the attributes are its fields.
OTHER = {
    "sphere": ("other_radius",),
    "box": ("other_size",),
    "capsule": ("other_radius", "other_length"),
    "ellipsoid": ("other_semi_axes",),
}


@dataclass(frozen=True)
class Part:
    """A solid that is rigid in the frame of a body, or of the world.

    kind, size: see `SIZES`. position (3,) [m] and orientation (4,) wxyz: of the part's frame in the frame of `body` (None: the world).
    color: (4,) red, green, blue, opacity in [0, 1]. role: "visual", "collision" or "ground". mesh: key of `Scene.meshes` of a "mesh".
    """

    kind: str
    size: Vector
    body: str | None
    position: Vector = (0.0, 0.0, 0.0)
    orientation: Vector = (1.0, 0.0, 0.0, 0.0)
    color: Vector = GRAY
    role: str = "collision"
    mesh: str = ""


@dataclass(frozen=True)
class ContactPoint:
    """A contact by name; `body` carries the point that a playback tells the positions of."""

    name: str
    body: str


@dataclass(frozen=True)
class JointFrame:
    """The frame of a joint, rigid in the frame of its child `body`: position (3,) [m], orientation (4,) wxyz. Its z is the joint's axis."""

    name: str
    body: str
    position: Vector
    orientation: Vector


@dataclass(frozen=True)
class Scene:
    """The drawing of one mechanism, at poses that a `Playback` tells.

    bodies: names, in the order of the poses. meshes: surfaces by key, of the parts of kind "mesh"; files are read when a key is asked for.
    """

    bodies: tuple[str, ...]
    parts: tuple[Part, ...]
    contacts: tuple[ContactPoint, ...] = ()
    joints: tuple[JointFrame, ...] = ()
    meshes: Mapping[str, Triangles] = field(default_factory=dict)

    @classmethod
    def of(cls, mechanism: Mechanism, *, environment: int = 0, collision: bool = False, sites: bool = False) -> Scene:
        """The scene of a mechanism: what its bodies show, the ground and the fixed shapes that they touch, contacts and joints.

        A body shows its `visuals`. It shows the shapes that collide where it has none, and also where the mesh of a visual is not there.

        Args:
            environment: whose numbers are drawn, where parameters differ by environment (counted over all batch dimensions).
            collision: draw the shapes that collide in any case. sites: draw a small ball at each site.
        """
        builder = _Builder(environment)
        for name, body in mechanism.named_bodies().items():
            builder.add_body(name, body, collision)
        if sites:
            builder.add_sites(mechanism.sites.values())
        builder.add_world(mechanism.named_contacts().values(), mechanism.scenery)
        contacts = tuple(ContactPoint(name, contact.body) for name, contact in mechanism.named_contacts().items())
        joints = tuple(builder.joint_frame(name, joint) for name, joint in mechanism.named_joints().items())
        return cls(tuple(mechanism.bodies), tuple(dict.fromkeys(builder.parts)), contacts, joints, Surfaces(builder.meshes))

    def color(self, part: Part) -> Vector:
        """The color to draw a part in: magenta for a mesh that cannot be read, the mesh's own where the part has none."""
        surface = self.meshes[part.mesh] if part.kind == "mesh" else None
        if surface is not None and surface.color is not None and (surface.missing or part.color == GRAY):
            return surface.color
        return part.color


class _Builder:
    """Collects parts and meshes."""

    def __init__(self, environment: int) -> None:
        self.environment = environment
        self.parts: list[Part] = []
        self.cores: set[int] = set()
        self.meshes: dict[str, Triangles | MeshSource] = {}

    def add_body(self, name: str, body: Body, collision: bool) -> None:
        for visual in body.visuals:
            self.add_visual(visual, name)
        hidden = [v.mesh for v in body.visuals if isinstance(v.mesh, MeshSource) and not available(v.mesh)]
        if collision or hidden or not body.visuals:
            for shape in body.shapes:
                self.add_shape(shape, name)

    def add_sites(self, sites: Iterable[Site]) -> None:
        for site in sites:
            place = self.pick(site.position, 1)
            self.parts.append(Part("sphere", (SITE_RADIUS,), site.body, place, color=SITE_COLOR, role="visual"))

    def add_world(self, contacts: Iterable[Contact], scenery: Iterable[Visual]) -> None:
        for visual in scenery:
            self.add_visual(visual, None)
        for contact in contacts:
            if contact.other is not None:
                continue
            if isinstance(contact, NearContact):
                if not contact.in_scenery:
                    self.add_core(contact.shapes[1])
            elif contact.other_kind in SAMPLED:
                self.add_terrain(contact)
            elif contact.other_kind != "surface":
                size = tuple(number for name in OTHER[contact.other_kind] for number in self.numbers(contact, name))
                orientation = self.numbers(contact, "other_orientation") if "other_orientation" in contact.fields else (1.0, 0.0, 0.0, 0.0)
                self.parts.append(Part(contact.other_kind, size, None, self.numbers(contact, "other_point"), orientation))
            elif type(contact).signed_distance is Contact.signed_distance:
                normal = torch.tensor(self.numbers(contact, "normal"), dtype=torch.float64)
                x, y, z = (normal / torch.linalg.vector_norm(normal)).tolist()
                (offset,) = self.numbers(contact, "offset")
                self.parts.append(Part("plane", (), None, (offset * x, offset * y, offset * z), from_z((x, y, z)), role="ground"))
            else:
                self.add_terrain(contact)

    def add_core(self, core: Polytope) -> None:
        """A fixed shape with near contacts: its core, which lies up to 1 mm inside."""
        if id(core) in self.cores:
            return
        self.cores.add(id(core))
        place: Vector = tuple(core.center.tolist())
        if len(core.normals):
            corners, faces = convex_hull(core.vertices.numpy())
            surface = Triangles(core.vertices.numpy()[corners].astype("float32"), faces.astype("int32"))
            self.parts.append(Part("mesh", (1.0, 1.0, 1.0), None, mesh=self.key(surface)))
        elif core.semi_axes is not None and core.orientation is not None:
            self.parts.append(Part("ellipsoid", tuple(core.semi_axes.tolist()), None, place, tuple(core.orientation.tolist())))
        elif len(core.vertices) == 1:
            self.parts.append(Part("sphere", (core.radius,), None, place))
        else:
            along = core.vertices[1] - core.vertices[0]
            length = float(torch.linalg.vector_norm(along))
            self.parts.append(Part("capsule", (core.radius, length), None, place, from_z(tuple(along.tolist()))))

    def add_terrain(self, contact: Contact) -> None:
        surface = terrain(contact)
        if surface is not None:
            same = [key for key, other in self.meshes.items() if isinstance(other, Triangles) and equal(surface, other)]
            self.parts.append(Part("mesh", (1.0, 1.0, 1.0), None, color=EARTH, role="ground", mesh=same[0] if same else self.key(surface)))

    def add_visual(self, visual: Visual, body: str | None) -> None:
        size, key, color = visual.size, "", visual.color or GRAY
        if visual.mesh is not None:
            key, size = self.key(visual.mesh), (1.0, 1.0, 1.0)
        role = "ground" if visual.kind == "plane" else "visual"
        self.parts.append(Part(visual.kind, size, body, visual.position, visual.orientation, color, role, key))

    def add_shape(self, shape: Shape, body: str) -> None:
        place: dict[str, Any] = {"position": self.pick(shape.position, 1), "orientation": self.pick(shape.orientation, 1)}
        if isinstance(shape, Mesh | Hull):
            vertices, faces = self.pick_points(shape.vertices), shape.faces.cpu().numpy().astype("int32")
            key = self.key(Triangles(vertices, faces))
            self.parts.append(Part("mesh", (1.0, 1.0, 1.0), body, mesh=key, **place))
            return
        for cls, (kind, names) in SHAPES.items():
            if isinstance(shape, cls):
                size = tuple(n for name in names for n in self.pick(getattr(shape, name), int(name in ("size", "semi_axes"))))
                self.parts.append(Part(kind, size, body, **place))
                return
        allowed = ", ".join(cls.__name__ for cls in (*SHAPES, Mesh, Hull))
        warn_user(f"body {body!r} has a {type(shape).__name__}, which is not drawn; the viewer draws {allowed}, and `Body(visuals=)`")

    def key(self, source: Triangles | MeshSource) -> str:
        for key, other in self.meshes.items():
            if source is other or (isinstance(source, MeshSource) and source == other):
                return key
        key = f"{len(self.meshes)}"
        self.meshes[key] = source
        return key

    def joint_frame(self, name: str, joint: Joint) -> JointFrame:
        anchor = self.numbers(joint, "child_anchor") if "child_anchor" in joint.fields else (0.0, 0.0, 0.0)
        axis = self.numbers(joint, "axis") if isinstance(joint, StandardJoint) else (0.0, 0.0, 1.0)
        return JointFrame(name, joint.child, anchor, from_z(axis))

    def numbers(self, module: PhysicalModule, name: str) -> Vector:
        return self.pick(getattr(module, name), module.fields[name])

    def pick(self, value: torch.Tensor, ndim: int) -> Vector:
        """The numbers of the environment, where a value of `ndim` dimensions may have further ones in front."""
        rows = value.detach().cpu().double().reshape(-1, *value.shape[value.ndim - ndim :])
        return tuple(rows[self.environment % len(rows)].reshape(-1).tolist())

    def pick_points(self, value: torch.Tensor) -> Any:
        rows = value.detach().cpu().reshape(-1, *value.shape[-2:])
        return rows[self.environment % len(rows)].numpy().astype("float32")


def equal(a: Triangles, b: Triangles) -> bool:
    return np.array_equal(a.vertices, b.vertices) and np.array_equal(a.faces, b.faces)


def from_z(axis: Vector) -> Vector:
    """The shortest rotation from z to an axis of any length, wxyz."""
    n = torch.tensor(axis, dtype=torch.float64)
    x, y, z = (n / torch.linalg.vector_norm(n)).tolist()
    if z < -1 + 1e-12:
        return (0.0, 1.0, 0.0, 0.0)
    w = 1.0 + z
    length = (w * w + x * x + y * y) ** 0.5
    return (w / length, -y / length, x / length, 0.0)
