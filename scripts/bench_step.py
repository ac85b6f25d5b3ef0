#!/usr/bin/env python
"""Time one step, its gradient and its Jacobian, next to MuJoCo's in the same run.

    scripts/bench_step.py --quick                                 # does everything once, tiny: minutes without the compiled backend
    scripts/bench_step.py --output bench.md                       # all models, batch 1 and 1024, one and two threads
    scripts/bench_step.py --models ant,humanoid --batch 1,64

What is compared: both engines simulate the same robot at the same timestep (0.01 s) in float64 with the same number of threads, after
settling, under random inputs drawn anew for every step and environment, uniform in +-effort times the largest torque of the actuator.
Both are timed by turns; the numbers are medians. torchdojo runs `rollout` (each step warm-started); MuJoCo runs `mujoco.rollout`, many
steps of many environments in one C call, with its Euler integrator, its Newton solver, pyramidal cones, condim 3, and no collisions but
those with the ground.

MuJoCo's models: Gymnasium's files for half_cheetah, ant and humanoid; menagerie's A1 (from $TORCHDOJO_SHARED, without meshes, with motors)
for the quadruped, which has a lighter trunk; for the others the very mechanism of torchdojo, written as MJCF. Both have the joint limits
and the armature of those files.

All parameters trainable: forward and backward with gradients of every parameter of the mechanism as well as of z0 and u, over that without.

In contact: torchdojo, a step in which a contact carries more than kappa / 1 mm (on the central path: its gap is below 1 mm); MuJoCo, a
state with ncon > 0. Needs `pip install -e ".[bench]"`; without mujoco, or a file, the columns of MuJoCo stay empty.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib.util
import itertools
import math
import os
import platform
import statistics
import sys
import time
import warnings
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import torchdojo as td
from torchdojo import models
from torchdojo import quaternion as quat
from torchdojo.dynamics.integrator import split_state

try:
    import mujoco
    import mujoco.rollout
except ImportError:
    mujoco = None

SHARED = Path(os.environ.get("TORCHDOJO_SHARED") or Path(__file__).resolve().parents[2] / "shared")
TIMESTEP = 0.01  # [s], both engines
ACTIVE_GAP = 1e-3  # [m]: a contact counts as active below it
A1_TORQUE = 33.5  # [N·m], menagerie's forcerange
SHORTEST = 0.05  # [s], of one timing
NEVER = "–"


Start = tuple[Any, np.ndarray]  # mujoco.MjModel, qpos


@dataclass
class Case:
    """One mechanism of the benchmark.

    Attributes:
        start: (13 nb,) state. limit: (nu,) largest inputs [N, N·m]; bias: (nu,) added to the random ones.
        effort: fraction of `limit` that random inputs reach. settle: steps before anything is timed.
        most: environments at most, whatever is asked for; an eighth of it for Jacobians (MuJoCo takes 9 s for one of spheres100).
        mjcf: MuJoCo's model and the qpos to start from; raises MissingError.
    """

    mech: td.Mechanism
    start: Tensor
    limit: Tensor
    effort: float
    settle: int
    mjcf: Callable[[Case], Start]
    bias: Tensor | None = None
    most: int = 1_000_000

    def inputs(self, *shape: int) -> Tensor:
        u = self.effort * self.limit * (2 * torch.rand(*shape, self.limit.numel(), dtype=torch.float64) - 1)
        return u if self.bias is None else u + self.bias


class MissingError(Exception):
    """MuJoCo's side of a case cannot be had; the message says why."""


# -- the mechanisms ------------------------------------------------------------------------------------------------------------------------


def _gym(name: str, effort: float) -> Callable[[], Case]:
    def build() -> Case:
        mech = models.make(name, timestep=TIMESTEP)
        return Case(mech, models.initial_state(name, mech), _effort_limits(mech), effort, 80, lambda case: _gym_model(name))

    return build


def _quadruped() -> Case:
    # Springs hold it up in its standing pose: without them it would lie on its belly.
    mech = models.quadruped(timestep=TIMESTEP, spring=A1_SPRING, damper=A1_DAMPER)
    limit = torch.full((mech.num_inputs,), A1_TORQUE, dtype=torch.float64)
    return Case(mech, models.initial_state("quadruped", mech), limit, 0.1, 80, lambda case: _a1_model())


def _atlas() -> Case:
    sole = [(x, y) for x in (-0.0876, 0.1728) for y in (0.066, -0.0626)]
    contacts = {
        f"{side}_sole{i}": {"link": f"{side}_foot", "point": (x, y if side == "l" else -y, -0.07645), "radius": 0.01}
        for side in ("l", "r")
        for i, (x, y) in enumerate(sole)
    }
    mech = td.load(_shared("atlas", "atlas.urdf"), timestep=TIMESTEP, contacts=contacts)
    for joint in mech.joints.values():
        if joint.num_inputs:  # springs hold it up
            joint.spring, joint.damper = 1000.0, 20.0
    z = mech.initial_state(floating_base={"q": (0.0, 0.0, 1.0, 0.0, 0.0, 0.0)})
    z = mech.initial_state(floating_base={"q": (0.0, 0.0, 1.005 - float(mech.distances(z).min()), 0.0, 0.0, 0.0)})
    return Case(mech, z, _effort_limits(mech), 0.05, 60, _export)


def _arm() -> Case:
    path = _shared("franka_panda", "panda_collision.urdf")
    mech = td.load(path, timestep=TIMESTEP, floating_base=False, contacts=None, ignore=("panda_finger_joint2",))
    for joint in mech.joints.values():  # the file has none, and the last links weigh little
        joint.damper = 1.0 if joint.free_rotations else 10.0
    return Case(mech, mech.initial_state(), _effort_limits(mech), 0.1, 20, _export)


def _quadrotor() -> Case:
    mech = td.Mechanism({"quadrotor": td.Body(1.0, (0.01, 0.01, 0.018))}, {"base": td.Floating(None, "quadrotor")}, timestep=TIMESTEP)
    bias = torch.tensor([0.0, 0.0, 9.81, 0.0, 0.0, 0.0], dtype=torch.float64)  # hover
    limit = torch.tensor([2.0, 2.0, 2.0, 0.02, 0.02, 0.02], dtype=torch.float64)
    return Case(mech, mech.initial_state(base={"q": (0.0, 0.0, 2.0, 0.0, 0.0, 0.0)}), limit, 1.0, 5, _export, bias)


def _pendulum(n: int, joint: str) -> Callable[[], Case]:
    def build() -> Case:
        mech = models.npendulum(n, timestep=TIMESTEP, length=1.0 / n, mass=1.0 / n, damper=1e-3)
        if joint == "Spherical":
            joints = {
                name: td.Spherical(old.parent, old.child, parent_anchor=old.parent_anchor, child_anchor=old.child_anchor, damper=1e-3)
                for name, old in mech.joints.items()
            }
            mech = td.Mechanism(dict(mech.bodies.items()), joints, timestep=TIMESTEP)
        limit = torch.full((mech.num_inputs,), 0.05 / n, dtype=torch.float64)
        tilt = 0.5 if joint == "Revolute" else (0.5, 0.2, 0.0)
        return Case(mech, mech.initial_state(hinge1={"q": tilt}), limit, 1.0, 5, _export, most=_most(n))

    return build


def _spheres(n: int) -> Callable[[], Case]:
    """A chain of balls of 5 cm and 0.1 kg in a row on the ground, each tied to the next where they touch."""

    def build() -> Case:
        radius, names = 0.05, [f"ball{i}" for i in range(n)]
        bodies = {name: td.Body(0.1, shape=td.shapes.Sphere(radius)) for name in names}
        joints: dict[str, Any] = {"base": td.Floating(None, names[0], actuated=False)}
        for a, b in itertools.pairwise(names):
            joints[f"{a}_{b}"] = td.Spherical(a, b, parent_anchor=(radius, 0, 0), child_anchor=(-radius, 0, 0), damper=1e-3)
        contacts = {name: td.NonlinearContact(name, radius=radius, friction=0.5) for name in names}
        mech = td.Mechanism(bodies, joints, contacts, timestep=TIMESTEP)
        limit = torch.full((mech.num_inputs,), 0.01, dtype=torch.float64)
        z = mech.initial_state(base={"q": (0.0, 0.0, radius + 1e-3, 0.0, 0.0, 0.0)})
        return Case(mech, z, limit, 1.0, 20, _export, most=_most(n))

    return build


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
}
QUICK = ("half_cheetah", "quadruped", "quadrotor", "spheres10")
LONG = ("humanoid", "quadruped", "arm", "quadrotor")  # with a row for a long rollout
A1_SPRING, A1_DAMPER = 30.0, 0.5  # [N·m/rad, N·m·s/rad]
A1_STANDING = {"hip": 0.0, "thigh": 0.9, "calf": -1.425}  # that of `td.models.quadruped`


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
    """Menagerie's A1 with motors for its position servos, and without the meshes, which only its looks need."""
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
    """A tree of Revolute, Prismatic, Spherical and Floating joints as MJCF: frames, coordinates and inputs are those of torchdojo."""
    mech = case.mech
    root = ElementTree.Element("mujoco")
    ElementTree.SubElement(root, "compiler", angle="radian")
    ElementTree.SubElement(root, "option", gravity=_text(mech.gravity))
    world = ElementTree.SubElement(root, "worldbody")
    ElementTree.SubElement(world, "geom", {"type": "plane", "size": "0 0 1", "name": "floor", "friction": "0 0 0"})
    actuators = ElementTree.SubElement(root, "actuator")
    nodes: dict[str | None, ElementTree.Element] = {None: world}
    pending = dict(mech.joints.items())
    limits = {name: case.limit[piece] for name, piece in mech.input_layout.items()}
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
        for i in range(gears if name in limits else 0):
            gear = [float(limits[name][i]) if i == j else 0.0 for j in range(gears)]
            ElementTree.SubElement(actuators, "motor", jointinparent=name, gear=_text(gear))
    for contact in mech.contacts.values():
        attributes = {"type": "sphere", "mass": "0", "size": _text(max(float(contact.radius), 1e-4)), "pos": _text(contact.point)}
        ElementTree.SubElement(nodes[contact.body], "geom", {**attributes, "friction": f"{float(contact.friction)} 0 0"})
    model = mujoco.MjModel.from_xml_string(ElementTree.tostring(root, encoding="unicode"))
    pose = split_state(case.start).pose
    number = {name: i for i, name in enumerate(mech.bodies)}
    coordinates, layout, qpos = mech.to_minimal(case.start)[0], 0, model.qpos0.copy()
    for name, joint in mech.joints.items():
        address = model.joint(name).qposadr[0]
        child = number[joint.child]
        if joint.num_coordinates == 6:
            qpos[address : address + 7] = torch.cat((pose.x[child], pose.q[child]))
        elif joint.num_coordinates == 3:
            qpos[address : address + 4] = quat.exp(coordinates[layout : layout + 3])
        else:
            qpos[address] = coordinates[layout]
        layout += joint.num_coordinates
    return model, qpos


def _text(value: Any) -> str:
    return " ".join(repr(float(x)) for x in torch.as_tensor(value, dtype=torch.float64).reshape(-1))


class MuJoCo:
    """The same workload in MuJoCo: settled states of `batch` environments, and what can be timed."""

    def __init__(self, case: Case, batch: int, settle: int) -> None:
        model, qpos = case.mjcf(case)
        model.opt.timestep = TIMESTEP
        model.opt.integrator = mujoco.mjtIntegrator.mjINT_EULER
        model.opt.solver = mujoco.mjtSolver.mjSOL_NEWTON
        model.opt.iterations = 100
        # Point contacts with plain friction, as here, in MuJoCo's default and fastest setting: menagerie's A1 asks for rolling friction and
        # an elliptic cone with impratio 100, which takes six times as long.
        model.geom_condim[:] = 3
        model.opt.cone, model.opt.impratio = mujoco.mjtCone.mjCONE_PYRAMIDAL, 1.0
        floor = model.geom_type == mujoco.mjtGeom.mjGEOM_PLANE
        model.geom_contype[:], model.geom_conaffinity[:] = ~floor, floor
        self.model, self.case = model, case
        data = mujoco.MjData(model)
        self.data = [data]  # one per thread
        data.qpos[:] = qpos
        state = np.empty(mujoco.mj_stateSize(model, mujoco.mjtState.mjSTATE_FULLPHYSICS))
        mujoco.mj_getState(model, data, state, mujoco.mjtState.mjSTATE_FULLPHYSICS)
        self.states = np.tile(state, (batch, 1))
        if settle:
            self.states = self.rollout(self.controls(batch, settle), 1)[:, -1].copy()

    def controls(self, batch: int, steps: int) -> np.ndarray:
        scale = np.where(self.model.actuator_ctrllimited, self.model.actuator_ctrlrange[:, 1], 1.0)
        control = self.case.effort * scale * np.random.uniform(-1, 1, (batch, steps, self.model.nu))
        return control if self.case.bias is None else control + (self.case.bias / self.case.limit).numpy()

    def rollout(self, controls: np.ndarray, threads: int) -> np.ndarray:
        """States (batch, steps, n). An environment that MuJoCo warns of (it diverges) repeats its last state."""
        batch = controls.shape[0]
        while len(self.data) < threads:
            self.data.append(mujoco.MjData(self.model))
        states, _ = mujoco.rollout.rollout(self.model, self.data[:threads], self.states[:batch], controls, persistent_pool=True)
        return states

    def contact_fraction(self, states: np.ndarray, most: int = 2000) -> float:
        """Share of states with a contact, from at most `most` of them."""
        flat = states.reshape(-1, states.shape[-1])
        data, found = mujoco.MjData(self.model), []
        for state in flat[:: max(1, len(flat) // most)]:
            mujoco.mj_setState(self.model, data, state, mujoco.mjtState.mjSTATE_FULLPHYSICS)
            mujoco.mj_fwdPosition(self.model, data)
            found.append(data.ncon > 0)
        return float(np.mean(found))

    def jacobians(self, count: int) -> None:
        """Centred differences of one step for each of `count` environments."""
        n, nu = 2 * self.model.nv + self.model.na, self.model.nu
        A, B, data = np.empty((n, n)), np.empty((n, nu)), self.data[0]
        for state in self.states[:count]:
            mujoco.mj_setState(self.model, data, state, mujoco.mjtState.mjSTATE_FULLPHYSICS)
            mujoco.mjd_transitionFD(self.model, data, 1e-6, True, A, B if nu else None, None, None)


# -- measuring -----------------------------------------------------------------------------------------------------------------------------


@dataclass
class Sizes:
    batches: Sequence[int]
    threads: Sequence[int]
    steps: int
    steps_alone: int  # of a single environment: enough that the call itself does not count
    settle: float
    repeats: int
    jacobians: int
    long: int


def by_turns(repeats: int, *runs: Callable[[], Any] | None) -> list[float | None]:
    """Median seconds of each run, one after the other `repeats` times; the first round is not counted if there are others.

    A run shorter than `SHORTEST` is repeated within its turn until it takes that long, so that caches left cold by the other engine do not
    count.
    """
    seconds: list[list[float]] = [[] for _ in runs]
    for _ in range(repeats + (repeats > 1)):
        for mine, run in zip(seconds, runs, strict=True):
            if run is not None:
                start, elapsed, count = time.perf_counter(), 0.0, 0
                while elapsed < SHORTEST:
                    run()
                    count += 1
                    elapsed = time.perf_counter() - start
                mine.append(elapsed / count)
    return [statistics.median(mine[1:] if repeats > 1 else mine) if mine else None for mine in seconds]


def measure(name: str, case: Case, sizes: Sizes, say: Callable[[str], None]) -> tuple[list[list[str]], list[str]]:
    """Rows of the table of steps, and one of the table of Jacobians."""
    mech, settle = case.mech, max(1, round(sizes.settle * case.settle))
    batches = sorted({min(batch, case.most) for batch in sizes.batches})
    count = min(sizes.jacobians, max(1, case.most // 8))
    most = max(*batches, count)
    with torch.no_grad():
        z = mech.rollout(case.start, case.inputs(most, settle)).z[..., -1, :].contiguous()
    reference: MuJoCo | None = None
    if mujoco is None:
        say(f"{name}: mujoco is not installed")
    else:
        try:
            reference = MuJoCo(case, most, settle)
        except MissingError as reason:
            say(f"{name}: not in MuJoCo: {reason}")
    rows = []
    for batch in batches:
        steps = sizes.steps_alone if batch == 1 else sizes.steps
        u = case.inputs(batch, steps)
        controls = None if reference is None else reference.controls(batch, steps)
        weights = torch.randn(z.shape[-1], dtype=torch.float64)
        z_leaf, u_leaf = z[:batch].clone().requires_grad_(), u.clone().requires_grad_()

        def forward(z: Tensor = z[:batch], u: Tensor = u) -> td.Trajectory:
            with torch.no_grad():
                return mech.rollout(z, u)

        def forward_backward(z: Tensor = z_leaf, u: Tensor = u_leaf, weights: Tensor = weights) -> None:
            torch.autograd.grad((mech.rollout(z, u).z[..., -1, :] * weights).sum(), (z, u), allow_unused=True)

        def all_trainable(z: Tensor = z_leaf, u: Tensor = u_leaf, weights: Tensor = weights) -> None:
            parameters = [p.requires_grad_() for p in mech.parameters()]
            torch.autograd.grad((mech.rollout(z, u).z[..., -1, :] * weights).sum(), (z, u, *parameters), allow_unused=True)
            mech.requires_grad_(False)

        path = forward()
        theirs_contact = None
        if reference is not None:
            states = reference.rollout(controls, 1)
            theirs_contact = reference.contact_fraction(states) if mech.contacts else None
            stopped = int((states[:, -1] == states[:, -2]).all(-1).sum()) if steps > 1 else 0
            if stopped:
                say(f"{name}: MuJoCo: {stopped} of {batch} environments diverged and stopped early")
        for threads in sizes.threads:
            torch.set_num_threads(threads)
            run = None if reference is None else lambda c=controls, n=threads, r=reference: r.rollout(c, n)
            ours, theirs, both, trainable = by_turns(sizes.repeats, forward, run, forward_backward, all_trainable)
            unit = 1e6 / (batch * steps)
            rows.append([
                name, f"{mech.num_bodies}", f"{mech.num_inputs}", f"{len(mech.contacts)}", f"{batch}", f"{threads}",
                _number(ours, unit), _number(theirs, unit), _ratio(theirs, ours), _number(both, unit), _ratio(trainable, both),
                f"{path.iterations.double().mean():.1f}", f"{100 * float((path.status != 0).double().mean()):.1f}",
                _percent(_contact_fraction(mech, path.impulses) if mech.contacts else None), _percent(theirs_contact), f"{case.effort:g}",
            ])  # fmt: skip
            say(f"{name}: batch {batch}, {threads} thread(s): {rows[-1][6]} µs, MuJoCo {rows[-1][7]} µs per step")
    torch.set_num_threads(sizes.threads[0])
    u = case.inputs(count)
    run = None if reference is None else lambda: reference.jacobians(count)
    with torch.no_grad():
        solution = mech.step(z[:count], u).solution  # (MuJoCo, too, starts its solver from the last accelerations)
    size = 12 * mech.num_bodies
    out = torch.empty(count, size, size + mech.num_inputs, dtype=torch.float64)  # (MuJoCo, too, writes into memory that is there)
    ours, theirs = by_turns(sizes.repeats, lambda: mech.jacobians(z[:count], u, warm_start=solution, out=out), run)
    freedoms = NEVER if reference is None else f"{2 * reference.model.nv} x {2 * reference.model.nv + reference.model.nu}"
    shape = f"{size} x {size + mech.num_inputs}"
    jacobian = [name, f"{count}", shape, _number(ours, 1e6 / count), freedoms, _number(theirs, 1e6 / count), _ratio(theirs, ours)]
    say(f"{name}: Jacobian {jacobian[3]} µs, MuJoCo {jacobian[5]} µs")
    return rows, jacobian


def measure_long(name: str, case: Case, sizes: Sizes, say: Callable[[str], None]) -> list[str]:
    """One environment over many steps, with the gradient to the initial state and all inputs."""
    torch.set_num_threads(sizes.threads[0])
    z, u = case.start.clone().requires_grad_(), case.inputs(sizes.long).requires_grad_()

    def run() -> td.Trajectory:
        path = case.mech.rollout(z, u)
        torch.autograd.grad(path.z[..., -1, :].sum(), (z, u))
        return path

    def forward() -> td.Trajectory:
        with torch.no_grad():
            return case.mech.rollout(z, u)

    path = forward()
    alone, both = by_turns(min(sizes.repeats, 3), forward, run)
    flagged = int((path.status != 0).sum())
    say(f"{name}: {sizes.long} steps {_number(both, 1)} s")
    return [name, f"{sizes.long}", _number(alone, 1), _number(both, 1), f"{path.iterations.double().mean():.1f}", f"{flagged}"]


def _contact_fraction(mech: td.Mechanism, impulses: Tensor) -> float:
    normal = [mech.impulse_layout[f"contacts.{name}"].start for name in mech.contacts]
    return float((impulses[..., normal] > mech.options.kappa / ACTIVE_GAP).any(-1).double().mean())


def _number(value: float | None, unit: float) -> str:
    if value is None:
        return NEVER
    digits = 2 - math.floor(math.log10(max(value * unit, 1e-9)))
    return f"{value * unit:.{max(0, min(digits, 4))}f}"


def _ratio(theirs: float | None, ours: float | None) -> str:
    return NEVER if theirs is None or ours is None else f"{theirs / ours:.3g}"


def _percent(value: float | None) -> str:
    return NEVER if value is None else f"{100 * value:.0f}" + ("" if value >= 1 / 3 else " (< 33)")


# -- the report ----------------------------------------------------------------------------------------------------------------------------

STEP_COLUMNS = (
    "model", "bodies", "inputs", "contacts", "batch", "threads", "forward [µs]", "MuJoCo [µs]", "MuJoCo / ours", "forward + backward [µs]",
    "all parameters trainable [x]", "iterations", "flagged [%]", "in contact [%]", "MuJoCo's [%]", "effort",
)  # fmt: skip
JACOBIAN_COLUMNS = ("model", "environments", "Jacobian", "ours [µs]", "MuJoCo's", "transitionFD [µs]", "MuJoCo / ours")
LONG_COLUMNS = ("model", "steps", "forward [s]", "forward + backward [s]", "iterations", "flagged steps")


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    widths = [max(len(row[i]) for row in (columns, *rows)) for i in range(len(columns))]
    lines = ["| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |" for row in (columns, *rows)]
    return "\n".join([lines[0], "|" + "|".join("-" * (width + 2) for width in widths) + "|", *lines[1:]])


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


def _report(sizes: Sizes, options: argparse.Namespace, tables: dict[str, tuple[Sequence[str], list[list[str]]]], notes: list[str]) -> str:
    solver = td.SolverOptions(backend=options.backend)
    facts = [
        f"- {_cpu()}, {os.cpu_count()} cores; Python {platform.python_version()}, torch {torch.__version__}, "
        f"MuJoCo {mujoco.__version__ if mujoco else 'not installed'}; float64, timestep {TIMESTEP} s, kappa {solver.kappa:g}, "
        f"backend {options.backend}",
        f"- per step and environment, from rollouts of {sizes.steps} steps (batch 1: {sizes.steps_alone}); medians of {sizes.repeats}; "
        f"seed {options.seed}",
        *(f"- {note}" for note in notes),
    ]
    parts = [f"### {title}\n\n{_table(columns, rows)}" for title, (columns, rows) in tables.items() if rows]
    return "\n\n".join(["## One step, next to MuJoCo", "\n".join(facts), *parts]) + "\n"


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    def numbers(text: str) -> list[int]:
        values = [int(part) for part in text.split(",")]
        if min(values) < 1:
            raise argparse.ArgumentTypeError(f"got {text!r}; allowed: numbers of 1 or more, separated by commas")
        return values

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", metavar="A,B", help=f"which of {', '.join(CASES)} (default: all; --quick: {', '.join(QUICK)})")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, once: does it run?")
    parser.add_argument("--batch", type=numbers, metavar="N,M", help="environments (default: 1,1024; --quick: 1,4)")
    parser.add_argument("--threads", type=numbers, metavar="N,M", help="of both engines (default: 1,2; --quick: 1)")
    parser.add_argument("--steps", type=int, help="of a timed rollout (default: 20; --quick: 3)")
    parser.add_argument("--steps-alone", type=int, help="the same for batch 1 (default: 200; --quick: 3)")
    parser.add_argument("--repeats", type=int, help="timings of which the median is taken (default: 7; --quick: 1)")
    parser.add_argument("--jacobians", type=int, help="environments whose Jacobians are taken (default: 64; --quick: 2)")
    parser.add_argument("--long", type=int, help="steps of the long rollouts; 0 leaves them out (default: 1000; --quick: 20)")
    parser.add_argument("--backend", default="auto", help="SolverOptions.backend (default: auto)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, metavar="FILE", help="write the report there too")
    options = parser.parse_args(arguments)
    options.models = options.models.split(",") if options.models else list(QUICK if options.quick else CASES)
    unknown = [name for name in options.models if name not in CASES]
    if unknown:
        parser.error(f"--models: no {', '.join(unknown)}; there are: {', '.join(CASES)}")
    return options


def main(arguments: Sequence[str] | None = None) -> None:
    options = _parse(arguments)
    sizes = Sizes([1, 4], [1], 3, 3, 0.25, 1, 2, 20) if options.quick else Sizes([1, 1024], [1, 2], 20, 200, 1.0, 7, 64, 1000)
    given = {
        "batches": options.batch,
        **{key: getattr(options, key) for key in ("threads", "steps", "steps_alone", "repeats", "jacobians", "long")},
    }
    sizes = dataclasses.replace(sizes, **{key: value for key, value in given.items() if value is not None})
    if mujoco is not None:
        mujoco.set_mju_user_warning(lambda text: None)  # instead of a MUJOCO_LOG.TXT in the current folder
    warnings.filterwarnings("ignore", "kept on the joints, but not part of the step yet")  # said in the description of this script
    warnings.filterwarnings("ignore", ".*mesh collision geometry is skipped")
    notes: list[str] = []

    def say(text: str) -> None:
        print(text, file=sys.stderr, flush=True)
        if "MuJoCo:" in text or "not installed" in text:
            notes.append(text)

    steps: list[list[str]] = []
    jacobians: list[list[str]] = []
    long: list[list[str]] = []
    for name in options.models:
        torch.manual_seed(options.seed)
        np.random.seed(options.seed)
        try:
            case = CASES[name]()
        except MissingError as reason:
            notes.append(f"{name} left out: {reason}")
            continue
        case.mech.options = td.SolverOptions(backend=options.backend)
        rows, jacobian = measure(name, case, sizes, say)
        steps += rows
        jacobians.append(jacobian)
        if name in LONG and sizes.long:
            long.append(measure_long(name, case, sizes, say))
    report = _report(
        sizes,
        options,
        {
            "Steps": (STEP_COLUMNS, steps),
            f"Jacobians of one step, {sizes.threads[0]} thread(s)": (JACOBIAN_COLUMNS, jacobians),
            f"Long rollouts, one environment, {sizes.threads[0]} thread(s)": (LONG_COLUMNS, long),
        },
        notes,
    )
    print(report)
    if options.output:
        options.output.write_text(report)


if __name__ == "__main__":
    main()
