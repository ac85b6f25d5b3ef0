"""The contact-free motion of a robot file beside MuJoCo's of the same file, and the law that makes a difference."""

from __future__ import annotations

import re
import tempfile
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray

from torchdojo import quaternion as quat
from torchdojo.elements.joints import Floating, StandardJoint
from torchdojo.evaluation.corpus_mujoco import FEATURES, Motion, Reference, bare_urdf
from torchdojo.io import load_mjcf, load_urdf, mjcf_state, read_mjcf
from torchdojo.io.robot import RobotInfo, clean_name
from torchdojo.io.urdf.description import read_urdf
from torchdojo.mechanism import Mechanism
from torchdojo.solver.options import SolverOptions

__all__ = ["compare_motion"]

Array = NDArray[np.float64]

SAMPLES = 4
LEVELS = ((0.2, 1e-3), (0.2, 2.5e-4), (0.05, 1e-4))  # horizons and timesteps [s], the next where steps, not laws, may make the error
FINE = 1e-4  # [s] of MuJoCo, at most
BOUND = 0.01
SMALLEST = 1e-3  # of the size of the robot, and [rad]: motions below do not count as motions
HARD = ((1e-13, 1e-12), (1e-11, 1e-11), (1e-9, 1e-9), (1e-7, 1e-9))  # kappa and residual_tol, the next where steps are flagged
WIDE = (1e3, 6.0, 3.1)  # limits that are out of the way: of slides [m], of single angles and of rotation vectors [rad]


class _FlaggedError(ValueError):
    """A step failed, so that there is no motion to compare."""


class _Ours:
    """The mechanism of a file without contacts, and its links by the names of MuJoCo's bodies."""

    unlimited = False
    hard = HARD[0]

    def __init__(self, path: Path, kind: str, folder: Path) -> None:
        self.kind, self.path = kind, path
        if kind == "urdf":
            self.path = folder / "bare.urdf"
            self.path.write_text(bare_urdf(path))
        self.info: RobotInfo = read_urdf(self.path) if kind == "urdf" else read_mjcf(path)
        self.mech = self.load(LEVELS[0][1])
        joints = dict(self.mech.joints.items())
        roots = [joint.child for joint in joints.values() if isinstance(joint, Floating) and joint.parent is None]
        self.base = next((name for name, joint in joints.items() if isinstance(joint, Floating) and joint.parent is None), None)
        self.free: str | None = None
        if kind == "urdf" and roots:
            self.free = next(name for name, link in self.info.links.items() if link.body == roots[0])  # links are in tree order

    def load(self, h: float) -> Mechanism:
        if self.kind == "urdf":
            mech = load_urdf(self.path, contacts=None, timestep=h)
        else:
            mech = load_mjcf(self.path, contacts=None, timestep=h, servos="explicit")
        mech.options = SolverOptions(kappa=self.hard[0], residual_tol=self.hard[1])
        if self.unlimited:
            for joint in cast(Iterable[StandardJoint], mech.joints.values()):
                if joint.limits is not None:
                    joint.limits = (-_widened(joint, joint.limits[0]), _widened(joint, joint.limits[1]))
        return mech

    def keeps(self, label: str) -> bool:
        name = clean_name(label)
        return name in self.info.joints or name in self.info.couplings

    def state(self, mech: Mechanism, reference: Reference, qpos: Array, qvel: Array) -> Any:
        if self.kind == "mjcf":
            return mjcf_state(mech, self.info, qpos=qpos, qvel=qvel)  # type: ignore[arg-type]
        model = reference.model
        values: dict[str, Any] = {}
        followers = {end.joint for coupling in mech.named_couplings().values() for end in coupling.ends if not end.leads}
        for j in range(model.njnt):
            name = clean_name(str(model.joint(j).name))
            if name in mech.joints and name not in followers and not isinstance(mech.joints[name], Floating):
                place, rate = int(model.jnt_qposadr[j]), int(model.jnt_dofadr[j])
                values[name] = {"q": float(qpos[place]), "qd": float(qvel[rate])}
        return mech.initial_state(**values)

    def move(self, reference: Reference, qpos: Array, qvel: Array, h: float, times: Array, names: list[str]) -> Motion:
        """The motion of the named links at the given times, the first of which is zero.

        Raises:
            _FlaggedError: a step fails.
        """
        mech = self.load(h)
        z = self.state(mech, reference, qpos, qvel)
        rows, states, last = [round(time / h) for time in times], [z], None
        for some in np.diff(rows):
            path = mech.rollout(z, steps=int(some), warm_start=last)
            flagged = int((path.status != 0).sum())
            if flagged:
                raise _FlaggedError(f"{flagged} of {some} steps of {h:g} s flagged at kappa {self.hard[0]:g}")
            z, last = path.z[-1], path.solution[-1]
            states.append(z)
        every = torch.stack(states).reshape(len(rows), -1, 13)
        bodies = list(mech.bodies)
        links = [self.info.links[name] for name in names]
        numbers = [bodies.index(str(link.body)) for link in links]
        x, q = every[:, numbers, :3], every[:, numbers, 6:10]
        offset = torch.as_tensor(np.stack([link.position for link in links]))
        turn = np.stack([link.rotation for link in links])
        positions = (x + quat.rotate(q, offset.expand_as(x))).numpy()
        return Motion(positions, quat.rotation_matrix(q).numpy() @ turn)


def compare_motion(mujoco: Any, path: Path, kind: str, seed: int = 0) -> dict[str, Any]:
    """Largest difference of a link from MuJoCo, relative to the largest motion; where it is above the bound, what makes it.

    Both motions are extrapolated from two step lengths (Richardson, first order), so that what differs is the law.
    """
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        ours = _Ours(path, kind, Path(folder))
        reference = Reference(mujoco, path, kind, free=ours.free, keeps=ours.keeps, moving=set(ours.info.joints))
        qpos, qvel = reference.start(seed)
        row = _refined(ours, reference, qpos, qvel)
        if row["error"] > BOUND and row["limited"]:  # an impact at a limit is no smooth motion: MuJoCo's is soft, and its time is all
            with_limits = {key: row[key] for key in ("error", "uncertainty", "horizon_s", "timestep_s", "worst")}
            ours.unlimited = True
            reference.unlimited()
            row = {**_refined(ours, reference, qpos, qvel), "with_limits": with_limits}
        row["left_out"], row["reason"] = reference.left_out, ""
        if row["error"] > BOUND or row["lost"]:
            row["reason"] = _reason(row)
        if row["error"] > BOUND:
            row["without"] = _Comparison(ours, reference, qpos, qvel, row["horizon_s"], row["timestep_s"]).ablate()
        return row


def _refined(ours: _Ours, reference: Reference, qpos: Array, qvel: Array) -> dict[str, Any]:
    """The comparison, in smaller steps and over less time until it says what is so."""
    row: dict[str, Any] = {}
    for horizon, h in LEVELS:
        row = _Comparison(ours, reference, qpos, qvel, horizon, h).row()
        if row["error"] <= BOUND or row["uncertainty"] < 0.1 * row["error"]:
            break
    return row


def _reason(row: dict[str, Any]) -> str:
    """The difference in words, from where it begins."""
    if row["lost"]:
        return "bodies that move in MuJoCo do not move here"
    if row["start_error"] > BOUND / 10:
        return "the start cannot be reached: poses differ at time zero"
    if row["uncertainty"] > row["error"] / 3:
        return "not resolved: steps, and not laws, may make the difference"
    kinds = row["worst_joints"][0].split("; ", 1)[1]
    return f"a law differs, first at {' + '.join(re.findall(r'free|ball|slide|hinge', kinds)) or 'no joint'}"


def _widened(joint: StandardJoint, bounds: torch.Tensor) -> torch.Tensor:
    """Sizes of bounds of the coordinates, slides first, that are out of the way; infinite where there are none."""
    slides = joint.num_coordinates - joint.free_rotations
    turn = WIDE[1] if joint.free_rotations == 1 else WIDE[2]
    wide = torch.tensor([WIDE[0] if i < slides else turn for i in range(joint.num_coordinates)], dtype=bounds.dtype)
    return torch.where(torch.isfinite(bounds), wide, torch.inf)


class _Comparison:
    def __init__(self, ours: _Ours, reference: Reference, qpos: Array, qvel: Array, horizon: float, h: float) -> None:
        self.reference, self.qpos, self.qvel, self.horizon, self.h = reference, qpos, qvel, horizon, h
        bodies = reference.links()
        named = {b: clean_name(name) for b, name in bodies.items()}
        known = {b: name for b, name in named.items() if name in ours.info.links and ours.info.links[name].body is not None}
        self.lost = [bodies[b] for b in bodies if b not in known]
        self.ids, self.names = list(known), list(known.values())
        self.times = np.linspace(0.0, horizon, SAMPLES + 1)
        for ours.hard in HARD:
            try:
                coarse, fine = (ours.move(reference, qpos, qvel, step, self.times, self.names) for step in (h, h / 2))
                break
            except _FlaggedError as error:
                reason = str(error)
        else:
            raise ValueError(reason)
        self.kappa = ours.hard[0]
        self.ours, self.apart = _extrapolate(coarse, fine), _difference(coarse, fine)
        self.theirs, self.their_apart = self._reference()

    def _reference(self) -> tuple[Motion, tuple[Array, Array]]:
        h = min(FINE, self.h / 4)
        coarse = self.reference.move(self.qpos, self.qvel, h, self.times, self.ids)
        fine = self.reference.move(self.qpos, self.qvel, h / 2, self.times, self.ids)
        return _extrapolate(coarse, fine), _difference(coarse, fine)

    def scales(self) -> tuple[float, float]:
        """The largest displacement beside the free fall [m], and the largest turn [rad]."""
        model = self.reference.model
        falls = np.array([self.reference.falls(b) for b in self.ids])
        path = self.theirs.positions - self.theirs.positions[0]
        gravity = np.zeros(3) if model.opt.disableflags & int(self.reference.mujoco.mjtDisableBit.mjDSBL_GRAVITY) else model.opt.gravity
        fall = 0.5 * self.times[:, None, None] ** 2 * gravity * falls[:, None]
        turn = _angles(np.broadcast_to(self.theirs.axes[0], self.theirs.axes.shape), self.theirs.axes)
        extent = float(np.ptp(self.theirs.positions[0], axis=0).max()) or 1.0
        return max(float(np.linalg.norm(path - fall, axis=-1).max()), SMALLEST * extent), max(float(turn.max()), SMALLEST)

    def row(self) -> dict[str, Any]:
        scales = self.scales()
        by_link = _by_link(_difference(self.ours, self.theirs), scales)
        worst = np.argsort(-by_link)[:3]
        return {
            "error": float(by_link.max()),
            "uncertainty": float(max(_by_link(apart, scales).max() for apart in (self.apart, self.their_apart))),
            "start_error": float(_by_link(tuple(part[:1] for part in _difference(self.ours, self.theirs)), scales).max()),
            "scales": scales,
            "horizon_s": self.horizon,
            "timestep_s": self.h,
            "limited": self.reference.limited,
            "kappa": self.kappa,
            "gap": self.reference.gap,
            "links": len(self.names),
            "lost": self.lost,
            "worst": [f"{self.names[i]} {by_link[i]:.2g}" for i in worst],
            "worst_joints": self._joints(),
            "times": [float(f"{value:.2g}") for value in _by_time(_difference(self.ours, self.theirs), scales)],
        }

    def _joints(self) -> list[str]:
        """The joints whose relative motion differs first, with their numbers."""
        model = self.reference.model
        place = {b: i for i, b in enumerate(self.ids)}
        apart = []
        for b, i in place.items():
            above = int(model.body_weldid[int(model.body_parentid[b])])
            relative = []
            for motion in (self.ours, self.theirs):
                axes, positions = motion.axes[:2, i], motion.positions[:2, i]
                if above in place:
                    carrier = motion.axes[:2, place[above]]
                    axes = np.swapaxes(carrier, -1, -2) @ axes
                    positions = np.einsum("tij,ti->tj", carrier, positions - motion.positions[:2, place[above]])
                relative.append(Motion(positions, axes))
            turn = float(_angles(relative[0].axes, relative[1].axes)[-1])
            moved = float(_angles(relative[1].axes[:1], relative[1].axes[1:])[0])
            shift = float(np.linalg.norm(relative[0].positions[-1] - relative[1].positions[-1]))
            apart.append((turn + shift, f"{self.names[i]}: {turn:.2g} rad of {moved:.2g}, {shift:.2g} m", b))
        apart.sort(key=lambda entry: -entry[0])
        return [f"{text}; {self._joint_numbers(b)}" for _, text, b in apart[:3]]

    def _joint_numbers(self, b: int) -> str:
        model, kinds = self.reference.model, ("free", "ball", "slide", "hinge")
        parts = []
        for j in range(int(model.body_jntadr[b]), int(model.body_jntadr[b]) + int(model.body_jntnum[b])):
            dof, adr = int(model.jnt_dofadr[j]), int(model.jnt_qposadr[j])
            numbers = {
                "k": model.jnt_stiffness[j], "d": model.dof_damping[dof], "f": model.dof_frictionloss[dof], "arm": model.dof_armature[dof],
            }  # fmt: skip
            text = " ".join(f"{key}={float(np.ravel(value)[0]):.3g}" for key, value in numbers.items() if np.any(value))
            limit = f" range=[{model.jnt_range[j][0]:.3g}, {model.jnt_range[j][1]:.3g}]" if model.jnt_limited[j] else ""
            start = f" q={self.qpos[adr]:.3g}" if model.jnt_type[j] >= 2 else ""
            parts.append(f"{kinds[int(model.jnt_type[j])]} {text}{limit}{start}".strip())
        return " + ".join(parts) or "no joint"

    def ablate(self) -> dict[str, float]:
        """The error where MuJoCo leaves one law out: a law that is missing here makes it small."""
        errors = {}
        for feature in FEATURES:
            with self.reference.without(feature) as has:
                if not has:
                    continue
                try:
                    theirs, _ = self._reference()
                except ValueError:
                    continue
            errors[feature] = float(f"{_by_link(_difference(self.ours, theirs), self.scales()).max():.2g}")
        return errors


def _extrapolate(coarse: Motion, fine: Motion) -> Motion:
    """The limit of steps of length zero of a method of first order, from steps h and h / 2."""
    axes = 2 * fine.axes - coarse.axes
    left, _, right = np.linalg.svd(axes)
    return Motion(2 * fine.positions - coarse.positions, left @ right)


def _difference(one: Motion, other: Motion) -> tuple[Array, Array]:
    """Distances [m] and angles [rad], each (times, links)."""
    return np.linalg.norm(one.positions - other.positions, axis=-1), _angles(one.axes, other.axes)


def _by_link(difference: tuple[Array, ...], scales: tuple[float, float]) -> Array:
    return np.asarray(np.maximum(*(np.nan_to_num(part / scale, nan=np.inf).max(0) for part, scale in zip(difference, scales, strict=True))))


def _by_time(difference: tuple[Array, ...], scales: tuple[float, float]) -> Array:
    return np.asarray(np.maximum(*(np.nan_to_num(part / scale, nan=np.inf).max(1) for part, scale in zip(difference, scales, strict=True))))


def _angles(one: Array, other: Array) -> Array:
    """Angles between axes (..., 3, 3) [rad], by the chord, which is exact for small ones."""
    chord = np.linalg.norm(one - other, axis=(-2, -1)) / (2 * np.sqrt(2))
    return np.asarray(2 * np.arcsin(np.clip(chord, 0.0, 1.0)))
