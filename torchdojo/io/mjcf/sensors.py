"""Sites and sensors of an MJCF file. Bodies that became part of others keep their sites, at the place that they have there."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from torchdojo.io.mjcf.description import MjcfInfo
from torchdojo.io.mjcf.model import import_mujoco
from torchdojo.io.mjcf.names import joint_label
from torchdojo.io.mjcf.tendons import site_in
from torchdojo.io.report import Findings
from torchdojo.io.robot import WORLD, LinkInfo
from torchdojo.mechanism import Mechanism
from torchdojo.sensors.kind import Sensor
from torchdojo.sensors.site import SHAPES, Site

__all__ = ["add_sensors"]

#: MuJoCo's sensors -> ours, by the kind of object that they are attached to
FRAMES = {
    "FRAMEPOS": "frame_position", "FRAMEQUAT": "frame_quaternion", "FRAMEXAXIS": "frame_x_axis", "FRAMEYAXIS": "frame_y_axis",
    "FRAMEZAXIS": "frame_z_axis", "FRAMELINVEL": "frame_linear_velocity", "FRAMEANGVEL": "frame_angular_velocity",
    "FRAMELINACC": "frame_linear_acceleration", "FRAMEANGACC": "frame_angular_acceleration", "GYRO": "gyro",
    "VELOCIMETER": "velocimeter", "ACCELEROMETER": "accelerometer", "MAGNETOMETER": "magnetometer", "FORCE": "force", "TORQUE": "torque",
    "TOUCH": "touch", "RANGEFINDER": "rangefinder",
}  # fmt: skip
JOINTS = {
    "JOINTPOS": "joint_position", "JOINTVEL": "joint_velocity", "JOINTACTFRC": "joint_actuator_force",
    "JOINTLIMITPOS": "joint_limit_position", "JOINTLIMITVEL": "joint_limit_velocity", "JOINTLIMITFRC": "joint_limit_force",
    "BALLQUAT": "ball_quaternion", "BALLANGVEL": "ball_angular_velocity",
}  # fmt: skip
ACTUATORS = {"ACTUATORPOS": "actuator_position", "ACTUATORVEL": "actuator_velocity", "ACTUATORFRC": "actuator_force"}
SUBTREES = {"SUBTREECOM": "subtree_center", "SUBTREELINVEL": "subtree_linear_velocity", "SUBTREEANGMOM": "subtree_angular_momentum"}
CARRIED = "force", "torque"
SIGNED = "JOINTPOS", "JOINTVEL", "JOINTACTFRC"


class _LeftOutError(Exception):
    """The reason why a mechanism cannot have a sensor."""


def add_sensors(mech: Mechanism, robot: MjcfInfo) -> Findings:
    """Give the mechanism the sites and sensors of the file. Returns those that it cannot have, by reason."""
    return _Reader(mech, robot).read()


class _Reader:
    def __init__(self, mech: Mechanism, robot: MjcfInfo) -> None:
        self.mech, self.robot, self.model, self.mujoco = mech, robot, robot.compiled.model, import_mujoco()
        self.links: list[LinkInfo] = [WORLD, *robot.links.values()]
        self.body_of_top = {top: name for name, top in robot.tops.items()}
        self.places = {label: (name, i, sign) for name, entries in robot.coordinates.items() for i, (label, sign) in enumerate(entries)}
        self.sites = {i: str(self.model.site(i).name) or f"site{i}" for i in range(self.model.nsite)}

    def read(self) -> Findings:
        model, mech = self.model, self.mech
        shapes = {int(getattr(self.mujoco.mjtGeom, f"mjGEOM_{shape.upper()}")): shape for shape in SHAPES}
        for i, name in self.sites.items():
            shape = shapes.get(int(model.site_type[i]), "sphere")
            zone = {"shape": shape, "size": np.maximum(model.site_size[i, : SHAPES[shape]], 1e-9).tolist()}
            mech.sites[name] = self._site(int(model.site_bodyid[i]), model.site_pos[i], model.site_quat[i], **zone)
        mech.sensors.magnetic = torch.tensor(model.opt.magnetic, dtype=torch.float64)
        reasons: dict[str, list[str]] = {}
        for i in range(model.nsensor):
            name = str(model.sensor(i).name) or f"sensor{i}"
            try:
                mech.sensors[name] = self._sensor(i)
            except (_LeftOutError, ValueError) as error:
                mech.sensors.left_out[name] = str(error)
                reasons.setdefault(str(error), []).append(name)
        findings = Findings()
        for reason, names in reasons.items():
            findings.add("ignored", "sensors", names, reason, "none")
        return findings

    def _site(self, body: int, position: Any, quaternion: Any, **zone: Any) -> Site:
        """The site of a frame that is given in an MJCF body."""
        return site_in(self.links[body], position, quaternion, **zone)

    def _object(self, kind: int, number: int) -> str | Site:
        """The frame of an object of the file, as a name or a site."""
        model, types = self.model, self.mujoco.mjtObj
        if kind == int(types.mjOBJ_SITE):
            return self.sites[number]
        if kind == int(types.mjOBJ_BODY):
            return self._site(number, model.body_ipos[number], model.body_iquat[number])
        if kind == int(types.mjOBJ_XBODY):
            return self._site(number, np.zeros(3), np.array([1.0, 0.0, 0.0, 0.0]))
        if kind == int(types.mjOBJ_GEOM):
            return self._site(int(model.geom_bodyid[number]), model.geom_pos[number], model.geom_quat[number])
        if kind == int(types.mjOBJ_CAMERA) and int(model.cam_mode[number]) == 0:
            return self._site(int(model.cam_bodyid[number]), model.cam_pos[number], model.cam_quat[number])
        raise _LeftOutError("their object is neither a site, a body, a geom nor a fixed camera")

    def _sensor(self, i: int) -> Sensor:
        model = self.model
        kind = self.mujoco.mjtSensor(int(model.sensor_type[i])).name.removeprefix("mjSENS_")
        readers: list[tuple[Mapping[str, str], Callable[[int, str], Sensor]]] = [
            (FRAMES, self._frame), (JOINTS, self._joint), (ACTUATORS, self._actuator), (SUBTREES, self._subtree),
        ]  # fmt: skip
        for names, reader in readers:
            if kind in names:
                sensor = reader(i, kind)
                break
        else:
            if kind != "CLOCK":
                raise _LeftOutError(f"there is no sensor like MuJoCo's {kind.lower()} here")
            sensor = Sensor("clock")
        noise = getattr(model, "sensor_noise", None)
        return replace(sensor, cutoff=float(model.sensor_cutoff[i]), noise=0.0 if noise is None else float(noise[i]))

    def _frame(self, i: int, kind: str) -> Sensor:
        model = self.model
        number, reference = int(model.sensor_objid[i]), int(model.sensor_refid[i])
        site = self._object(int(model.sensor_objtype[i]), number)
        if FRAMES[kind] in CARRIED:
            body = int(model.site_bodyid[number])
            if body not in self.body_of_top:
                owner = self.links[body].body or "the world"
                raise _LeftOutError(
                    f"their body is welded to {owner}, which carries it without a joint; merge_fixed_joints=False keeps it as a body"
                )
        if reference < 0:
            return Sensor(FRAMES[kind], site)
        return Sensor(FRAMES[kind], site, self._object(int(model.sensor_reftype[i]), reference))

    def _joint(self, i: int, kind: str) -> Sensor:
        number = int(self.model.sensor_objid[i])
        label = joint_label(self.model, number)
        if label not in self.places:
            raise _LeftOutError("their joint is not in the mechanism")
        joint, coordinate, sign = self.places[label]
        if kind.startswith("BALL"):
            frame = self.robot.moved[self.robot.joints[joint].child].frame
            if not np.allclose(frame, np.eye(3)):
                raise _LeftOutError("the axes of their joint are turned here")
            return Sensor(JOINTS[kind], joint=joint)
        offset = float(self.model.qpos0[self.model.jnt_qposadr[number]]) if kind == "JOINTPOS" else 0.0
        return Sensor(JOINTS[kind], joint=joint, coordinate=coordinate, scale=sign if kind in SIGNED else 1.0, offset=offset)

    def _actuator(self, i: int, kind: str) -> Sensor:
        number = int(self.model.sensor_objid[i])
        motors = self.mech.actuators
        for name, drive in self.robot.drives.items():
            if drive.number == number and motors is not None and name in motors.names:
                return Sensor(ACTUATORS[kind], actuator=name)
        raise _LeftOutError("their actuator does not act here")

    def _subtree(self, i: int, kind: str) -> Sensor:
        number, model = int(self.model.sensor_objid[i]), self.model
        fixed = [b for b in range(1, model.nbody) if self.links[b].body is None and model.body_mass[b] > 0]
        if number == 0 and not fixed:
            return Sensor(SUBTREES[kind])
        if number not in self.body_of_top:
            owner = self.links[number].body or "the world"
            raise _LeftOutError(f"their body is part of {owner} here; merge_fixed_joints=False keeps it as a body")
        return Sensor(SUBTREES[kind], body=self.body_of_top[number])
