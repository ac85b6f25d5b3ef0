"""Robots dropped on their feet: no foot goes into the ground at any step length, and the torso comes to rest at the same height."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any
from xml.etree import ElementTree

import numpy as np
import torch
from torch import Tensor

from torchdojo import models
from torchdojo.elements.contacts import NonlinearContact
from torchdojo.evaluation.experiment import Line, Measurement, Outcome, Plot, Setting, SkippedError, flagged_steps, slug, smallest_distance
from torchdojo.io import load
from torchdojo.mechanism import Mechanism

__all__ = ["atlas", "atlas_drop", "atlas_start", "standing_a1", "torso_height"]

# Corners of Atlas' left sole in the frame of the foot [m], where its file draws heel and toe spheres. The right sole is mirrored.
SOLE_CORNERS = [(x, y, -0.07645) for x in (-0.0876, 0.1728) for y in (0.066, -0.0626)]
SOLE_RADIUS = 0.01  # [m]
LINK_RADIUS = 0.05  # radius of the spheres at the links' centers of mass on which a limp Atlas falls [m]
FRICTION = 0.8
# Joint springs and dampers that hold the posture [N·m/rad, N·m·s/rad]. A spring acts explicitly, so at 20 Hz it needs h k < 2 d, or light
# links shake. Atlas tips over if its ankles are much softer than its weight × height, 1600 N·m/rad.
ATLAS_POSTURE, A1_POSTURE = (4000.0, 400.0), (50.0, 2.0)
RATES = (20, 50, 100, 200, 500)  # [Hz]


def atlas(setting: Setting, timestep: float, *, posture: tuple[float, float] | None = ATLAS_POSTURE, all_links: bool = False) -> Mechanism:
    """Boston Dynamics' Atlas (31 bodies, 175 kg), from the file that Dojo uses, on eight contact spheres of its soles.

    `posture` is the spring and damper of every joint; None leaves Atlas limp, with the file's dampers of 0.1 N·m·s/rad. `all_links` adds
    spheres on all links.
    """
    contacts = {
        f"{side}_sole{i}": {"link": f"{side}_foot", "point": (x, y if side == "l" else -y, z), "radius": SOLE_RADIUS}
        for side in ("l", "r")
        for i, (x, y, z) in enumerate(SOLE_CORNERS)
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the file names meshes, which are not used here
        mech = load(setting.robot("atlas", "atlas.urdf"), timestep=timestep, contacts=contacts, friction=FRICTION)
        if all_links:
            more = {name: NonlinearContact(name, radius=LINK_RADIUS, friction=FRICTION) for name in mech.bodies if "foot" not in name}
            mech = Mechanism(
                dict(mech.bodies.items()), dict(mech.joints.items()), {**dict(mech.contacts.items()), **more}, timestep=timestep
            )
    if posture is not None:
        for joint in mech.joints.values():
            if joint.num_inputs:
                joint.spring, joint.damper = (torch.tensor(value, dtype=torch.float64) for value in posture)
    return mech


def atlas_start(mech: Mechanism, height: float) -> Tensor:
    """State (13 nb,) of Atlas upright, with all joints at zero and the soles `height` [m] above the ground."""
    lowest = float(mech.distances(mech.initial_state()).min())
    return mech.initial_state(floating_base={"q": (0.0, 0.0, height - lowest, 0.0, 0.0, 0.0)})


def standing_a1(timestep: float) -> tuple[Mechanism, Tensor]:
    """The A1, held in its standing pose by springs, and its state with the feet 2 cm above the ground."""
    spring, damper = A1_POSTURE
    mech = models.quadruped(timestep=timestep, spring=spring, damper=damper)
    return mech, models.initial_state("quadruped", mech)


# -- drops of different step lengths -------------------------------------------------------------------------------------------------------


def atlas_drop(setting: Setting) -> Outcome:
    """Atlas falls 0.1 m, held in its posture or limp; 2 s with h = 0.1, 0.01 and 0.001 s (Howell et al. 2025, Table II).

    The smallest distance is taken over all contacts and all steps. MuJoCo uses the same file, springs, dampers and spheres, and its own
    defaults. Its Atlas does not come to rest with h = 0.1 and 0.01 s, but bounces until it topples.
    """
    rows: list[Measurement] = []
    published = {0.1: "MuJoCo fails (Dojo, Table II)", 0.01: "MuJoCo −28 mm (Dojo, Table II)", 0.001: "MuJoCo −46 mm (Dojo, Table II)"}
    for timestep in (0.1, 0.01) if setting.quick else (0.1, 0.01, 0.001):
        for label, held in (("held", True), ("limp", False)):
            name = slug(f"{label}_{timestep:g}_s")
            mech = atlas(setting, timestep, posture=ATLAS_POSTURE if held else None, all_links=not held)
            path = mech.rollout(atlas_start(mech, 0.1), steps=round(2.0 / timestep))
            smallest = float(mech.distances(path.z).min())
            theirs = _mujoco_drop(setting, timestep, round(2.0 / timestep)) if held else None
            rows += [
                Measurement(
                    f"{name}_smallest_distance_m", f"Atlas {label}, h = {timestep:g} s: smallest distance", smallest, "m",
                    at_least=0.0, published=published[timestep] if held else "", mujoco=theirs,
                ),
                flagged_steps(path.status, name=name),
            ]  # fmt: skip
    return Outcome(rows)


def _mujoco_drop(setting: Setting, timestep: float, steps: int) -> float | None:
    """Smallest distance [m] of Atlas' soles in MuJoCo; NaN where the simulation diverges, None without MuJoCo 3.3 or newer."""
    mujoco = setting.mujoco
    if mujoco is None or not hasattr(getattr(mujoco, "MjSpec", None), "body"):
        return None
    root = ElementTree.parse(setting.robot("atlas", "atlas.urdf")).getroot()
    for link in root.iter("link"):
        for kind in ("visual", "collision"):
            for element in link.findall(kind):
                link.remove(element)
    spec = mujoco.MjSpec.from_string(ElementTree.tostring(root, encoding="unicode"))
    spec.option.timestep = timestep
    spec.body("pelvis").add_freejoint()
    friction = [FRICTION, 0.0, 0.0]
    spec.worldbody.add_geom(type=mujoco.mjtGeom.mjGEOM_PLANE, size=[0, 0, 1], friction=friction)
    for side in ("l", "r"):
        for x, y, z in SOLE_CORNERS:
            place = [x, y if side == "l" else -y, z]
            ball = {"type": mujoco.mjtGeom.mjGEOM_SPHERE, "size": [SOLE_RADIUS, 0, 0], "mass": 0}
            spec.body(f"{side}_foot").add_geom(**ball, pos=place, friction=friction, contype=1, conaffinity=0)
    model = spec.compile()
    data = mujoco.MjData(model)
    hinges = model.jnt_type == mujoco.mjtJoint.mjJNT_HINGE
    model.jnt_limited[:] = 0  # the drop does not reach the limits
    model.jnt_stiffness[hinges] = ATLAS_POSTURE[0]
    model.dof_damping[model.jnt_dofadr[hinges]] = ATLAS_POSTURE[1]
    balls = model.geom_type == mujoco.mjtGeom.mjGEOM_SPHERE
    mujoco.mj_forward(model, data)
    data.qpos[2] += 0.1 + SOLE_RADIUS - data.geom_xpos[balls, 2].min()
    smallest = 0.1
    for _ in range(steps):
        mujoco.mj_step(model, data)
        mujoco.mj_fwdPosition(model, data)
        if any(data.warning[i].number for i in (mujoco.mjtWarning.mjWARN_BADQACC, mujoco.mjtWarning.mjWARN_BADQPOS)):
            return float("nan")
        smallest = min(smallest, float(data.geom_xpos[balls, 2].min()) - SOLE_RADIUS)
    return smallest


# -- the same height at every rate ---------------------------------------------------------------------------------------------------------


def torso_height(setting: Setting) -> Outcome:
    """A1 and Atlas, held by springs and dampers, fall 2 cm onto their feet; 4 s at 20 to 500 Hz (Howell et al. 2025, Figure 7)."""
    rows: list[Measurement] = []
    plots: list[Plot] = []
    notes: list[str] = []
    builders: Mapping[str, Any] = {"A1": standing_a1, "Atlas": lambda timestep: _standing_atlas(setting, timestep)}
    for robot, bound in (("A1", 1e-3), ("Atlas", 5e-3)):
        lines, rest, distances, statuses = {}, {}, [], []
        for rate in RATES:
            try:
                mech, z = builders[robot](1 / rate)
            except SkippedError as reason:
                notes.append(f"{robot} is left out: {reason}")
                break
            path = mech.rollout(z, steps=4 * rate)
            height = path.z[:, 2].numpy()
            rest[rate] = float(height[-1])
            distances.append(mech.distances(path.z).min())
            statuses.append(path.status)
            lines[f"{rate} Hz"] = Line(np.arange(len(height)) / rate, height)
        if not lines:
            continue
        difference = max(abs(rest[rate] - rest[RATES[-1]]) for rate in RATES)
        key = robot.lower()
        rows += [
            Measurement(
                f"{key}_rest_height_difference_m", f"{robot}, {RATES[0]} to {RATES[-1]} Hz: difference of rest heights from {RATES[-1]} Hz",
                difference, "m", at_most=bound,
            ),
            Measurement(f"{key}_rest_height_m", f"rest height at {RATES[-1]} Hz", rest[RATES[-1]], "m"),
            smallest_distance(torch.stack(distances), key),
            flagged_steps(*statuses, name=key),
        ]  # fmt: skip
        plots.append(Plot(f"{key}_torso", f"{robot} dropped 2 cm", "time [s]", "height of the torso's center of mass [m]", lines))
    return Outcome(rows, plots, notes=notes)


def _standing_atlas(setting: Setting, timestep: float) -> tuple[Mechanism, Tensor]:
    mech = atlas(setting, timestep)
    return mech, atlas_start(mech, 0.02)
