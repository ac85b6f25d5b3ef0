"""MuJoCo's side of the experiments: models written here, stepped with MuJoCo's defaults except for the named settings."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

__all__ = [
    "actuated_box_scene",
    "ant_step_us",
    "box_scene",
    "free_bodies_scene",
    "geom_distances",
    "hinge_scene",
    "pendulum_scene",
    "simulate",
    "total_energy",
]


def ant_step_us(mujoco: ModuleType | None, steps: int = 1500, repeats: int = 5) -> float | None:
    """Processor time [µs] of one `mj_step` (0.01 s) of Gymnasium's ant under random actions: the speed of a machine, in one number.

    It is the fastest of `repeats`, since other processes only slow it down. None where mujoco or gymnasium is not installed.
    """
    try:
        import gymnasium
    except ImportError:
        return None
    if mujoco is None:
        return None
    model = mujoco.MjModel.from_xml_path(str(Path(gymnasium.__file__).parent / "envs" / "mujoco" / "assets" / "ant.xml"))
    data, actions = mujoco.MjData(model), np.random.default_rng(0).uniform(-1.0, 1.0, (steps, model.nu))
    seconds = []
    for _ in range(repeats):
        mujoco.mj_resetData(model, data)
        start = time.process_time()
        for action in actions:
            data.ctrl[:] = action
            mujoco.mj_step(model, data)
        seconds.append(time.process_time() - start)
    return min(seconds) / steps * 1e6


def simulate(
    mujoco: ModuleType, xml: str, steps: int, *, qpos: Any = None, qvel: Any = None, torque: Any = None
) -> tuple[Any, np.ndarray, np.ndarray]:
    """Simulate MJCF text: (model, qpos (steps + 1, nq), qvel (steps + 1, nv)). `torque` (nv,) acts on the joints in every step."""
    model = mujoco.MjModel.from_xml_string(xml)
    data = mujoco.MjData(model)
    for target, value in ((data.qpos, qpos), (data.qvel, qvel), (data.qfrc_applied, torque)):
        if value is not None:
            target[:] = value
    positions, velocities = [data.qpos.copy()], [data.qvel.copy()]
    for _ in range(steps):
        mujoco.mj_step(model, data)
        positions.append(data.qpos.copy())
        velocities.append(data.qvel.copy())
    return model, np.array(positions), np.array(velocities)


def total_energy(mujoco: ModuleType, model: Any, qpos: np.ndarray, qvel: np.ndarray) -> np.ndarray:
    """Kinetic and potential energy [J] of each sample, (n,)."""
    data, energies = mujoco.MjData(model), []
    for q, v in zip(qpos, qvel, strict=True):
        data.qpos[:], data.qvel[:] = q, v
        mujoco.mj_forward(model, data)
        mujoco.mj_energyPos(model, data)
        mujoco.mj_energyVel(model, data)
        energies.append(float(data.energy.sum()))
    return np.array(energies)


def geom_distances(mujoco: ModuleType, model: Any, qpos: np.ndarray) -> np.ndarray:
    """Smallest distance [m] of all detected contacts in each sample, (n,): infinite without a contact, negative where geoms overlap."""
    data, distances = mujoco.MjData(model), []
    for q in qpos:
        data.qpos[:] = q
        mujoco.mj_fwdPosition(model, data)
        distances.append(float(data.contact.dist.min()) if data.ncon else np.inf)
    return np.array(distances)


def box_scene(
    *, half: tuple[float, float, float], mass: float, friction: float, timestep: float, gravity: tuple[float, float, float], cone: str
) -> str:
    """MJCF of a box over the plane z = 0 with plain friction (condim 3) and the cone "pyramidal" or "elliptic"."""
    size, pull = " ".join(map(str, half)), " ".join(map(str, gravity))
    return f"""<mujoco>
      <option timestep="{timestep}" gravity="{pull}" cone="{cone}"/>
      <worldbody>
        <geom name="floor" type="plane" size="0 0 1" friction="{friction} 0 0" condim="3"/>
        <body name="box" pos="0 0 {half[2]}">
          <freejoint/>
          <geom type="box" size="{size}" mass="{mass}" friction="{friction} 0 0" condim="3"/>
        </body>
      </worldbody>
    </mujoco>"""


def actuated_box_scene(*, half: tuple[float, float, float], mass: float, friction: float, timestep: float) -> str:
    """`box_scene` under gravity, with six motors: forces along the axes of the world [N], torques about those of the box [N·m]."""
    scene = box_scene(half=half, mass=mass, friction=friction, timestep=timestep, gravity=(0.0, 0.0, -9.81), cone="pyramidal")
    gears = (" ".join("1" if i == j else "0" for j in range(6)) for i in range(6))
    motors = "".join(f'<motor joint="base" gear="{gear}"/>' for gear in gears)
    return scene.replace("<freejoint/>", '<freejoint name="base"/>').replace("</worldbody>", f"</worldbody><actuator>{motors}</actuator>")


def pendulum_scene(links: int, *, width: float, length: float, mass: float, timestep: float, integrator: str) -> str:
    """MJCF of a chain of boxes hinged about x, hanging at coordinate zero. The integrator is "Euler" or "RK4"."""
    inner = ""
    for i in reversed(range(links)):
        place = f"0 0 {-length}" if i else "0 0 0"
        inner = f"""<body pos="{place}"><joint type="hinge" axis="1 0 0"/>
          <geom type="box" size="{width / 2} {width / 2} {length / 2}" pos="0 0 {-length / 2}" mass="{mass}"/>{inner}</body>"""
    return f"""<mujoco>
      <option timestep="{timestep}" integrator="{integrator}"><flag contact="disable" energy="enable"/></option>
      <worldbody>{inner}</worldbody>
    </mujoco>"""


def free_bodies_scene(
    bodies: Iterable[tuple[Sequence[float], str]],
    *,
    timestep: float,
    gravity: Sequence[float],
    cone: str = "pyramidal",
    floor: str | None = None,
) -> str:
    """MJCF of floating bodies, each (position, attributes of the geom). `floor` has the attributes of the plane z = 0; None omits it."""
    plane = "" if floor is None else f'<geom type="plane" size="0 0 1" {floor}/>'
    free = "".join(f'<body pos="{" ".join(map(str, place))}"><freejoint/><geom {geom}/></body>' for place, geom in bodies)
    return f"""<mujoco>
      <option timestep="{timestep}" gravity="{" ".join(map(str, gravity))}" cone="{cone}"/>
      <worldbody>{plane}{free}</worldbody>
    </mujoco>"""  # fmt: skip


def hinge_scene(joint: str, *, width: float, length: float, mass: float, timestep: float, gravity: float) -> str:
    """MJCF of a box hinged about x at its upper end, hanging at coordinate zero. `joint` has further attributes of the hinge."""
    return f"""<mujoco>
      <compiler angle="radian"/>
      <option timestep="{timestep}" gravity="0 0 {-gravity}"><flag contact="disable"/></option>
      <worldbody><body><joint type="hinge" axis="1 0 0" {joint}/>
        <geom type="box" size="{width / 2} {width / 2} {length / 2}" pos="0 0 {-length / 2}" mass="{mass}"/></body></worldbody>
    </mujoco>"""
