"""MuJoCo's side of the corpus: the same file without contacts, with constraints as hard as MuJoCo can have them, in small steps."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from xml.etree import ElementTree

import numpy as np
from numpy.typing import NDArray

from torchdojo.io.mjcf.equalities import led_by_mocap

__all__ = ["Motion", "Reference", "bare_urdf", "compile_file"]

Array = NDArray[np.float64]

HARD = (0.9999, 0.9999, 0.001, 0.5, 2.0)  # solimp: the constraint has all but 1e-4 of the force of a rigid one
SPREAD = 0.1  # [m, rad] of the start about the file's pose, and of what a coordinate keeps from its limits
RATE = 0.5  # [m/s, rad/s] of the start
HOLDING = 1e8  # a damper from which on a joint does not move [N·s/m, N·m·s], and an armature that does as much [kg, kg·m²]


class Motion(NamedTuple):
    """Positions (times, links, 3) [m] and axes (times, links, 3, 3) of links at the same times."""

    positions: Array
    axes: Array


def bare_urdf(path: Path) -> str:
    """The text of a URDF file without geometry and without largest speeds, which MuJoCo does not have."""
    root = ElementTree.parse(path).getroot()
    for link in root.iter("link"):
        for kind in ("visual", "collision"):
            for element in link.findall(kind):
                link.remove(element)
    for limit in root.iter("limit"):
        if limit.get("velocity") is not None:
            limit.set("velocity", "0")
    return ElementTree.tostring(root, encoding="unicode")


def compile_file(mujoco: Any, path: Path, kind: str) -> Any:
    """MuJoCo's model of the file as it is; of a URDF without its geometry, whose meshes MuJoCo looks for in one folder only.

    Raises:
        ValueError: MuJoCo refuses the file.
    """
    try:
        if kind == "urdf":
            return mujoco.MjSpec.from_string(bare_urdf(path)).compile()
        return mujoco.MjModel.from_xml_path(str(path))
    except ElementTree.ParseError as error:
        raise ValueError(f"malformed XML: {error}") from error
    except (mujoco.FatalError, RuntimeError, TypeError) as error:
        raise ValueError(str(error)) from error


class Reference:
    """A model with contacts, tendons, actuators, fluid, gravity compensation and the cones of ball joints left out.

    Args:
        free: name of the root link of a URDF that floats; None: it is fixed, as MuJoCo reads it.
        keeps: whether an equality constraint acts, by its label. moving: of a URDF, the names of joints that move.
    """

    def __init__(
        self,
        mujoco: Any,
        path: Path,
        kind: str,
        *,
        free: str | None = None,
        keeps: Callable[[str], bool] = lambda label: True,
        moving: Collection[str] = (),
    ) -> None:
        self.mujoco = mujoco
        if kind == "urdf":
            spec = mujoco.MjSpec.from_string(bare_urdf(path))
            for joint in list(spec.joints):
                if joint.name not in moving:  # equal limits
                    spec.delete(joint)
            if free is not None and spec.body(free) is not None and free != "world":
                spec.body(free).add_freejoint()
            self.model = spec.compile()
        else:
            self.model = mujoco.MjModel.from_xml_path(str(path))
        self.file_timestep = float(self.model.opt.timestep)
        self._leave_out(keeps, kind == "urdf")
        self.data = mujoco.MjData(self.model)

    def _leave_out(self, keeps: Callable[[str], bool], urdf: bool) -> None:
        """Leave out what the mechanism does not have, and note what the file has of that."""
        mujoco, model = self.mujoco, self.model
        several = np.isin(model.jnt_type, [int(mujoco.mjtJoint.mjJNT_BALL), int(mujoco.mjtJoint.mjJNT_FREE)])
        rows = {"jnt_stiffnesspoly": several, "dof_dampingpoly": several[model.dof_jntid], "jnt_springyield": np.ones(model.njnt, bool)}
        curves = [(getattr(model, name), lost) for name, lost in rows.items() if hasattr(model, name)]  # old versions of MuJoCo lack them
        left_out = {
            "fluid": [float(model.opt.density), float(model.opt.viscosity)],
            "gravity compensation": model.body_gravcomp,
            "tendons": [len(model.tendon_stiffness)],
            "actuators": [model.nu],
            "springs that yield, curves of balls and free bodies": [bool(np.any(values[lost])) for values, lost in curves],
        }
        model.opt.disableflags |= int(mujoco.mjtDisableBit.mjDSBL_CONTACT)
        model.opt.density = model.opt.viscosity = 0.0
        model.opt.wind[:] = 0.0
        model.body_gravcomp[:] = 0.0
        for name in ("stiffness", "damping", "frictionloss", "armature", "limited", "stiffnesspoly", "dampingpoly"):
            if hasattr(model, f"tendon_{name}"):
                getattr(model, f"tendon_{name}")[:] = 0
        for name in ("gainprm", "biasprm"):  # their dampers and armatures stay
            getattr(model, f"actuator_{name}")[:] = 0.0
        model.actuator_gaintype[:] = int(mujoco.mjtGain.mjGAIN_FIXED)
        model.actuator_biastype[:] = int(mujoco.mjtBias.mjBIAS_NONE)
        for values, lost in curves:
            values[lost] = 0
        model.jnt_margin[:] = 0.0
        types, dropped = mujoco.mjtEq, []
        for i in range(model.neq):
            kind = types(int(model.eq_type[i]))
            label = str(model.equality(i).name) or f"{kind.name[5:].lower()}_{i}"
            if model.eq_active0[i] and not (urdf or keeps(label)):  # a mimic joint of a URDF has no name there
                model.eq_active0[i] = 0
                dropped.append(label)
        self.left_out = [*(name for name, values in left_out.items() if np.any(values)), *(f"equality {label}" for label in dropped)]
        # MuJoCo's constraint forces do not know the dampers of its implicit step: a weld takes a base that a damper of 1e11 holds for one
        # that falls, and throws the arm, at any timestep. A mass as large holds the base in both.
        holding = np.asarray(model.dof_damping) >= HOLDING
        model.dof_armature[holding] = HOLDING
        model.opt.integrator = int(mujoco.mjtIntegrator.mjINT_IMPLICITFAST)
        model.opt.solver = int(mujoco.mjtSolver.mjSOL_NEWTON)
        model.opt.iterations, model.opt.tolerance, model.opt.ls_iterations = 200, 1e-14, 100
        model.opt.noslip_iterations = 0
        model.opt.jacobian = int(mujoco.mjtJacobian.mjJAC_DENSE)
        # Constraints to mocap bodies stay as soft as in the file, with one impedance, the largest, as ours have.
        self._hard = np.array([not led_by_mocap(model, i) for i in range(model.neq)], dtype=bool)
        model.eq_solimp[:, 0] = model.eq_solimp[:, 1]
        model.eq_solimp[self._hard] = HARD
        model.dof_solimp[:] = model.jnt_solimp[:] = HARD

    # -- the start -------------------------------------------------------------------------------------------------------------------------

    def start(self, seed: int) -> tuple[Array, Array]:
        """(qpos, qvel): hinges and slides near the file's pose and inside their limits, at small rates; closed where loops are closed."""
        mujoco, model, random = self.mujoco, self.model, np.random.default_rng(seed)
        qpos, qvel = np.array(model.qpos0), np.zeros(model.nv)
        for j in range(model.njnt):
            kind, adr, dof = int(model.jnt_type[j]), int(model.jnt_qposadr[j]), int(model.jnt_dofadr[j])
            if kind in (int(mujoco.mjtJoint.mjJNT_HINGE), int(mujoco.mjtJoint.mjJNT_SLIDE)):
                spread = SPREAD if kind == int(mujoco.mjtJoint.mjJNT_HINGE) else SPREAD * min(1.0, float(model.stat.extent)) / 5
                value = qpos[adr] + spread * random.uniform(-1, 1)
                if model.jnt_limited[j]:
                    low, high = (float(bound) for bound in model.jnt_range[j])
                    room = min(2 * spread, 0.3 * (high - low))
                    value = min(max(value, low + room), high - room)
                qpos[adr], qvel[dof] = value, RATE * spread / SPREAD * random.uniform(-1, 1)
            elif kind == int(mujoco.mjtJoint.mjJNT_BALL):
                mujoco.mju_quatIntegrate(qpos[adr : adr + 4], SPREAD * random.uniform(-1, 1, 3), 1.0)
                qvel[dof : dof + 3] = RATE * random.uniform(-1, 1, 3)
        return self._closed(qpos, qvel)

    def _closed(self, qpos: Array, qvel: Array) -> tuple[Array, Array]:
        """The configuration and the rates moved onto the equality constraints, by Gauss-Newton steps of least norm."""
        mujoco, model, data = self.mujoco, self.model, self.data
        for _ in range(50):
            gaps, rows = self._equalities(qpos)
            if not len(gaps):
                return qpos, qvel
            change = np.linalg.lstsq(rows, -gaps, rcond=1e-8)[0]
            mujoco.mj_integratePos(model, qpos, change, 1.0)
            if np.abs(change).max() < 1e-13:
                break
        gaps, rows = self._equalities(qpos)
        qvel = qvel - np.linalg.lstsq(rows, rows @ qvel, rcond=1e-8)[0]
        self.gap = float(np.abs(gaps).max())
        mujoco.mj_resetData(model, data)
        return qpos, qvel

    gap = 0.0  #: of the loops at the start [m, rad]
    limited = False  #: whether a limit has acted in a motion

    def _equalities(self, qpos: Array) -> tuple[Array, Array]:
        mujoco, model, data = self.mujoco, self.model, self.data
        mujoco.mj_resetData(model, data)
        data.qpos[:] = qpos
        mujoco.mj_forward(model, data)
        some = data.efc_type[: data.nefc] == int(mujoco.mjtConstraint.mjCNSTR_EQUALITY)
        return np.array(data.efc_pos[: data.nefc])[some], np.array(data.efc_J).reshape(-1, model.nv)[: data.nefc][some]

    # -- the motion ------------------------------------------------------------------------------------------------------------------------

    def links(self) -> dict[int, str]:
        """MuJoCo's bodies by id, without those that no joint carries, such as mocap bodies."""
        model, moving = self.model, [False]
        for b in range(1, self.model.nbody):
            moving.append(bool(model.body_jntnum[b]) or moving[int(model.body_parentid[b])])
        return {b: str(model.body(b).name) or f"body{b}" for b in range(1, model.nbody) if moving[b]}

    def falls(self, b: int) -> bool:
        """Whether a free joint carries the body."""
        model, root = self.model, int(self.model.body_rootid[b])
        adr = int(model.body_jntadr[root])
        return adr >= 0 and model.jnt_type[adr] == int(self.mujoco.mjtJoint.mjJNT_FREE)

    def move(self, qpos: Array, qvel: Array, h: float, times: Array, bodies: list[int]) -> Motion:
        """The motion at the given times [s], multiples of h; the bodies' own frames.

        Raises:
            ValueError: MuJoCo's simulation diverges.
        """
        mujoco, model, data = self.mujoco, self.model, self.data
        model.opt.timestep = h
        model.dof_solref[:] = model.jnt_solref[:] = (2 * h, 1.0)
        model.eq_solref[self._hard] = (2 * h, 1.0)
        mujoco.mj_resetData(model, data)
        data.qpos[:], data.qvel[:] = qpos, qvel
        positions, axes, step, limit = [], [], 0, int(mujoco.mjtConstraint.mjCNSTR_LIMIT_JOINT)
        for time in times:
            while step < round(time / h):
                mujoco.mj_step(model, data)
                self.limited |= bool((data.efc_type[: data.nefc] == limit).any())
                step += 1
            mujoco.mj_kinematics(model, data)
            positions.append(np.array(data.xpos[bodies]))
            axes.append(np.array(data.xmat[bodies]).reshape(-1, 3, 3))
        warnings = mujoco.mjtWarning
        if any(data.warning[int(kind)].number for kind in (warnings.mjWARN_BADQACC, warnings.mjWARN_BADQPOS, warnings.mjWARN_BADQVEL)):
            raise ValueError("MuJoCo's simulation diverges")
        return Motion(np.array(positions), np.array(axes))

    def unlimited(self) -> None:
        """Leave out all limits of joints."""
        self.model.jnt_limited[:] = 0

    @contextmanager
    def without(self, feature: str) -> Iterator[bool]:
        """MuJoCo without one law, to see which one makes the difference; yields whether the model has it."""
        model = self.model
        kept = {name: np.array(getattr(model, name)) for name in FEATURES[feature]}
        has = any(np.any(value) for value in kept.values())
        for name in kept:
            getattr(model, name)[:] = 0
        try:
            yield has
        finally:
            for name, value in kept.items():
                getattr(model, name)[:] = value


#: laws of joints, by the fields of MuJoCo's model that have them
FEATURES = {
    "frictionloss": ("dof_frictionloss",),
    "damping": ("dof_damping",),
    "stiffness": ("jnt_stiffness",),
    "limits": ("jnt_limited",),
    "armature": ("dof_armature",),
    "equality": ("eq_active0",),
}
