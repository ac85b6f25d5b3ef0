"""The mechanisms of the benchmarks, and MuJoCo's models of them.

MuJoCo simulates Gymnasium's files for half_cheetah, ant and humanoid. For the quadruped it has menagerie's A1 (from $TORCHDOJO_SHARED,
without meshes, with motors), whose trunk is lighter. For all other cases it has the mechanism of torchdojo, written as MJCF.
"""

from __future__ import annotations

import importlib.util
import itertools
import os
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import torchdojo as td
from torchdojo import models
from torchdojo import quaternion as quat

try:
    import mujoco
except ImportError:
    mujoco = None

SHARED = Path(os.environ.get("TORCHDOJO_SHARED") or Path(__file__).resolve().parents[2] / "shared")
TIMESTEP = 0.01  # [s], both engines
A1_TORQUE = 33.5  # [N·m], menagerie's forcerange


Start = tuple[Any, np.ndarray]  # mujoco.MjModel, qpos


@dataclass
class Case:
    """One mechanism of the benchmark.

    Attributes:
        start: (13 nb,) state.
        strength: (nu,) largest inputs [N, N·m].
        effort: fraction of `strength` that random inputs reach.
        settle: number of steps before anything is timed.
        mjcf: function that returns MuJoCo's model and the qpos to start from, or raises MissingError.
        bias: (nu,) inputs that are added to the random inputs.
        most: largest number of environments; Jacobians take an eighth of it, since MuJoCo needs 9 s for one of spheres100.
    """

    mech: td.Mechanism
    start: Tensor
    strength: Tensor
    effort: float
    settle: int
    mjcf: Callable[[Case], Start]
    bias: Tensor | None = None
    most: int = 1_000_000

    def inputs(self, *shape: int) -> Tensor:
        u = self.effort * self.strength * (2 * torch.rand(*shape, self.strength.numel(), dtype=torch.float64) - 1)
        return u if self.bias is None else u + self.bias


class MissingError(Exception):
    """The case has no counterpart in MuJoCo, or lacks a file; the message says why."""


# -- the mechanisms ------------------------------------------------------------------------------------------------------------------------


def _gym(name: str, effort: float) -> Callable[[], Case]:
    def build() -> Case:
        mech = models.make(name, timestep=TIMESTEP)
        return Case(mech, models.initial_state(name, mech), _effort_limits(mech), effort, 80, lambda case: _gym_model(name))

    return build


def _quadruped() -> Case:
    # Springs hold the quadruped in its standing pose; without them it would lie on its belly.
    mech = models.quadruped(timestep=TIMESTEP, spring=A1_SPRING, damper=A1_DAMPER)
    strength = torch.full((mech.num_inputs,), A1_TORQUE, dtype=torch.float64)
    return Case(mech, models.initial_state("quadruped", mech), strength, 0.1, 80, lambda case: _a1_model())


def _atlas() -> Case:
    sole = [(x, y) for x in (-0.0876, 0.1728) for y in (0.066, -0.0626)]
    contacts = {
        f"{side}_sole{i}": {"link": f"{side}_foot", "point": (x, y if side == "l" else -y, -0.07645), "radius": 0.01}
        for side in ("l", "r")
        for i, (x, y) in enumerate(sole)
    }
    mech = td.load(_shared("atlas", "atlas.urdf"), timestep=TIMESTEP, contacts=contacts)
    for joint in mech.joints.values():
        if joint.num_inputs:  # springs hold Atlas up
            joint.spring, joint.damper = 1000.0, 20.0
    z = mech.initial_state(floating_base={"q": (0.0, 0.0, 1.0, 0.0, 0.0, 0.0)})
    z = mech.initial_state(floating_base={"q": (0.0, 0.0, 1.005 - float(mech.distances(z).min()), 0.0, 0.0, 0.0)})
    return Case(mech, z, _effort_limits(mech), 0.05, 60, _export)


def _arm() -> Case:
    path = _shared("franka_panda", "panda_collision.urdf")
    mech = td.load(path, timestep=TIMESTEP, floating_base=False, contacts=None, ignore=("panda_finger_joint2",))
    for joint in mech.joints.values():  # the file has no dampers, and the last links weigh little
        joint.damper = 1.0 if joint.free_rotations else 10.0
    return Case(mech, mech.initial_state(), _effort_limits(mech), 0.1, 20, _export)


def _quadrotor() -> Case:
    mech = td.Mechanism({"quadrotor": td.Body(1.0, (0.01, 0.01, 0.018))}, {"base": td.Floating(None, "quadrotor")}, timestep=TIMESTEP)
    bias = torch.tensor([0.0, 0.0, 9.81, 0.0, 0.0, 0.0], dtype=torch.float64)  # hover
    strength = torch.tensor([2.0, 2.0, 2.0, 0.02, 0.02, 0.02], dtype=torch.float64)
    return Case(mech, mech.initial_state(base={"q": (0.0, 0.0, 2.0, 0.0, 0.0, 0.0)}), strength, 1.0, 5, _export, bias)


def _pendulum(n: int, joint: str) -> Callable[[], Case]:
    def build() -> Case:
        mech = models.npendulum(n, timestep=TIMESTEP, length=1.0 / n, mass=1.0 / n, damper=1e-3)
        if joint == "Spherical":
            joints = {
                name: td.Spherical(old.parent, old.child, parent_anchor=old.parent_anchor, child_anchor=old.child_anchor, damper=1e-3)
                for name, old in mech.joints.items()
            }
            mech = td.Mechanism(dict(mech.bodies.items()), joints, timestep=TIMESTEP)
        strength = torch.full((mech.num_inputs,), 0.05 / n, dtype=torch.float64)
        tilt = 0.5 if joint == "Revolute" else (0.5, 0.2, 0.0)
        return Case(mech, mech.initial_state(hinge1={"q": tilt}), strength, 1.0, 5, _export, most=_most(n))

    return build


def _spheres(n: int, length: int | None = None) -> Callable[[], Case]:
    """A row of balls (5 cm, 0.1 kg) on the ground. Neighbors are tied where they touch, in chains of `length` balls (None: one chain)."""

    def build() -> Case:
        radius, names, start = 0.05, [f"ball{i}" for i in range(n)], {}
        bodies = {name: td.Body(0.1, shape=td.Sphere(radius)) for name in names}
        joints: dict[str, Any] = {}
        for number, chain in enumerate(names[i : i + (length or n)] for i in range(0, n, length or n)):
            base = f"base{number}" if number else "base"
            joints[base] = td.Floating(None, chain[0], actuated=False)
            start[base] = {"q": (0.0, float(number), radius + 1e-3, 0.0, 0.0, 0.0)}
            for a, b in itertools.pairwise(chain):
                joints[f"{a}_{b}"] = td.Spherical(a, b, parent_anchor=(radius, 0, 0), child_anchor=(-radius, 0, 0), damper=1e-3)
        contacts = {name: td.NonlinearContact(name, radius=radius, friction=0.5) for name in names}
        mech = td.Mechanism(bodies, joints, contacts, timestep=TIMESTEP)
        strength = torch.full((mech.num_inputs,), 0.01, dtype=torch.float64)
        return Case(mech, mech.initial_state(**start), strength, 1.0, 20, _export, most=_most(n))

    return build


def _thrown(n: int) -> Callable[[], Case]:
    """The chain of balls of `torchdojo evaluate`, thrown flat with a wave across it, which rolls out."""

    def build() -> Case:
        from torchdojo.evaluation.chains import thrown_chain  # older versions, which bench_against.py measures, lack it

        mech, start = thrown_chain(n)
        strength = torch.zeros(mech.num_inputs, dtype=torch.float64)
        return Case(mech, start, strength, 0.0, 0, _not_exported, most=_most(n))

    return build


def _not_exported(case: Case) -> Start:
    raise MissingError("starts in motion, and only positions are exported")


def _most(n: int) -> int:
    return 1_000_000 if n < 50 else 16


CASES: dict[str, Callable[[], Case]] = {
    "half_cheetah": _gym("half_cheetah", 0.5),
    "ant": _gym("ant", 0.5),
    "humanoid": _gym("humanoid", 0.1),
    "quadruped": _quadruped,
    "atlas": _atlas,
    "arm": _arm,
    "quadrotor": _quadrotor,
    "pendulum10": _pendulum(10, "Revolute"),
    "pendulum100": _pendulum(100, "Revolute"),
    "ball_pendulum10": _pendulum(10, "Spherical"),
    "ball_pendulum100": _pendulum(100, "Spherical"),
    "spheres10": _spheres(10),
    "spheres100": _spheres(100),
    "thrown10": _thrown(10),
    "thrown100": _thrown(100),
    "chains_of_ten10": _spheres(10),
    "chains_of_ten100": _spheres(100, length=10),
}
A1_SPRING, A1_DAMPER = 30.0, 0.5  # [N·m/rad, N·m·s/rad]
A1_STANDING = {"hip": 0.0, "thigh": 0.9, "calf": -1.425}  # standing pose of `td.models.quadruped` [rad]


def _effort_limits(mech: td.Mechanism) -> Tensor:
    actuated = [joint for joint in mech.joints.values() if joint.num_inputs]
    return torch.cat([torch.as_tensor(joint.effort_limit, dtype=torch.float64).reshape(-1) for joint in actuated])


def _shared(*parts: str) -> Path:
    path = SHARED.joinpath("models", *parts)
    if not path.exists():
        raise MissingError(f"no {path} (set TORCHDOJO_SHARED to the folder of the shared data)")
    return path


# -- MuJoCo's side -------------------------------------------------------------------------------------------------------------------------


def _gym_model(name: str) -> Start:
    gymnasium = importlib.util.find_spec("gymnasium")
    if gymnasium is None or gymnasium.origin is None:
        raise MissingError("gymnasium, which brings the file, is not installed")
    path = Path(gymnasium.origin).parent / "envs" / "mujoco" / "assets" / f"{name}.xml"
    model = mujoco.MjModel.from_xml_path(str(path))
    return model, model.qpos0


def _a1_model() -> Start:
    """Menagerie's A1 with motors in place of its position servos, and without its meshes, which serve only its looks."""
    root = ElementTree.parse(_shared("unitree_a1", "a1.xml")).getroot()
    asset = root.find("asset")
    if asset is not None:
        root.remove(asset)
    for keyframes in root.findall("keyframe"):
        root.remove(keyframes)
    for parent in list(root.iter()):
        for geom in parent.findall("geom"):
            if geom.get("mesh") or geom.get("type") == "mesh":
                parent.remove(geom)
            else:
                geom.attrib.pop("material", None)
    world, actuators = root.find("worldbody"), root.find("actuator")
    assert world is not None and actuators is not None
    ElementTree.SubElement(world, "geom", {"type": "plane", "size": "0 0 1", "name": "floor"})
    for servo in actuators:
        servo.tag = "motor"
        servo.attrib.pop("class")
        servo.attrib.update(gear=str(A1_TORQUE), ctrllimited="true", ctrlrange="-1 1")
    for joint in root.iter("joint"):
        part = next((part for part in A1_STANDING if joint.get("name", "").endswith(f"_{part}_joint")), None)
        if part is not None:
            joint.attrib.update(stiffness=str(A1_SPRING), damping=str(A1_DAMPER), springref=str(A1_STANDING[part]))
    model = mujoco.MjModel.from_xml_string(ElementTree.tostring(root, encoding="unicode"))
    return model, np.concatenate((model.qpos0[:7], model.qpos_spring[7:]))


def _export(case: Case) -> Start:
    """MJCF of a tree of Revolute, Prismatic, Spherical and Floating joints, with the frames, coordinates and inputs of torchdojo."""
    mech = case.mech
    root = ElementTree.Element("mujoco")
    ElementTree.SubElement(root, "compiler", angle="radian")
    ElementTree.SubElement(root, "option", gravity=_text(mech.gravity))
    world = ElementTree.SubElement(root, "worldbody")
    ElementTree.SubElement(world, "geom", {"type": "plane", "size": "0 0 1", "name": "floor", "friction": "0 0 0"})
    actuators = ElementTree.SubElement(root, "actuator")
    nodes: dict[str | None, ElementTree.Element] = {None: world}
    pending = dict(mech.joints.items())
    strengths = {name: case.strength[piece] for name, piece in mech.input_layout.items()}
    while pending:
        name = next(name for name, joint in pending.items() if joint.parent in nodes)
        joint = pending.pop(name)
        position = joint.parent_anchor - quat.rotate(joint.orientation_offset, joint.child_anchor)
        node = ElementTree.SubElement(
            nodes[joint.parent], "body", name=joint.child, pos=_text(position), quat=_text(joint.orientation_offset)
        )
        nodes[joint.child] = node
        body = mech.bodies[joint.child]
        inertia = [float(body.inertia[i, j]) for i, j in ((0, 0), (1, 1), (2, 2), (0, 1), (0, 2), (1, 2))]
        ElementTree.SubElement(node, "inertial", pos="0 0 0", mass=_text(body.mass), fullinertia=_text(inertia))
        kinds = {"Revolute": "hinge", "Prismatic": "slide", "Spherical": "ball", "Floating": "free"}
        kind = kinds.get(type(joint).__name__)
        if kind is None:
            raise MissingError(f"{type(joint).__name__} joints have no counterpart in MuJoCo")
        attributes = {"type": kind, "name": name, "damping": _text(joint.damper[0])}
        if kind != "free":
            attributes |= {"pos": _text(joint.child_anchor), "stiffness": _text(joint.spring[0])}
        if kind in ("hinge", "slide"):
            attributes |= {"axis": _text(joint.axis), "springref": _text(joint.rest)}
            if any(joint.limited):
                attributes |= {"limited": "true", "range": _text(torch.cat(joint.limits))}
            for name_here, name_there in (("friction", "frictionloss"), ("armature", "armature")):
                if getattr(joint, name_here) is not None:
                    attributes[name_there] = _text(getattr(joint, name_here))
        ElementTree.SubElement(node, "joint", attributes)
        gears = {"ball": 3, "free": 6}.get(kind, 1)
        for i in range(gears if name in strengths else 0):
            gear = [float(strengths[name][i]) if i == j else 0.0 for j in range(gears)]
            ElementTree.SubElement(actuators, "motor", jointinparent=name, gear=_text(gear))
    for contact in mech.contacts.values():
        attributes = {"type": "sphere", "mass": "0", "size": _text(max(float(contact.radius), 1e-4)), "pos": _text(contact.point)}
        ElementTree.SubElement(nodes[contact.body], "geom", {**attributes, "friction": f"{float(contact.friction)} 0 0"})
    model = mujoco.MjModel.from_xml_string(ElementTree.tostring(root, encoding="unicode"))
    states = case.start.unflatten(-1, (-1, 13))  # bench_against.py imports this file for old versions, too
    number = {name: i for i, name in enumerate(mech.bodies)}
    coordinates, layout, qpos = mech.to_minimal(case.start)[0], 0, model.qpos0.copy()
    for name, joint in mech.joints.items():
        address = model.joint(name).qposadr[0]
        child = number[joint.child]
        if joint.num_coordinates == 6:
            qpos[address : address + 7] = torch.cat((states[child, :3], states[child, 6:10]))
        elif joint.num_coordinates == 3:
            qpos[address : address + 4] = quat.exp(coordinates[layout : layout + 3])
        else:
            qpos[address] = coordinates[layout]
        layout += joint.num_coordinates
    return model, qpos


def _text(value: Any) -> str:
    return " ".join(repr(float(x)) for x in torch.as_tensor(value, dtype=torch.float64).reshape(-1))
