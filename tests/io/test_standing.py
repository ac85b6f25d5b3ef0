"""Every published robot, put on the ground: it stands, or falls and lies, 300 steps of 0.01 s. Arms do so without their mount."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import torchdojo as td
from conftest import SHARED, shared_path

pytestmark = pytest.mark.filterwarnings("ignore")  # what each file has that does not act

#: Files whose root is a frame or a rail on the world, and arms: the former ask for a ground, the latter for a free base or a ground. Meshes
#: that are not in the folder; inertias that no body can have.
RAILS = ("half_cheetah/halfcheetah.urdf", "hopper/hopper.urdf", "walker2d/walker.urdf")
OPTIONS: dict[str, dict[str, Any]] = {
    **{name: {"floating_base": False, "ground": True} for name in RAILS},
    "half_cheetah/halfcheetah.urdf": {"floating_base": False, "ground": True, "repair_inertia": True},
    "classic/inverted_pendulum.xml": {"ground": True},
    "fourbar/fourbar.urdf": {"floating_base": False},
    "fourbar/fourbar_open.urdf": {"floating_base": False},
    "youbot/youbot.urdf": {"floating_base": False, "mesh": "skip"},
    "franka_panda/dojo_panda_no_end_effector.urdf": {"mesh": "skip"},
    "franka_panda/panda.xml": {"mesh": "skip", "ground": True},
    "ur5/ur5_robot.urdf": {"mesh": "skip", "floating_base": True},
    "ur5/ur5e.xml": {"mesh": "skip", "ground": True},
    "xarm6/xarm6_robot.urdf": {"mesh": "skip", "repair_inertia": True, "floating_base": True},
    "uuv/mini_tortuga.urdf": {"mesh": "skip"},
}
#: Robots that `place` refuses: no contact with the world (their meshes are missing, or they have none), or a base on the world.
STAYS = {
    "atlas/atlas_armless.urdf": "has no contact",
    "atlas/atlas_fast.urdf": "has no contact",
    "atlas/atlas_simple.urdf": "has no contact",
    "atlas/atlas_v2.urdf": "has no contact",
    "classic/inverted_double_pendulum.xml": "has no contact",
    "classic/inverted_pendulum.xml": "joint 'slider' holds",
    "classic/reacher.xml": "has no contact",
    "classic/swimmer.xml": "has no contact",
    "exoskeleton/exoskeleton.urdf": "has no contact",
    "fourbar/fourbar.urdf": "has no contact",
    "fourbar/fourbar_open.urdf": "has no contact",
    "franka_panda/dojo_panda_no_end_effector.urdf": "has no contact",
    "franka_panda/mjx_panda_nohand.xml": "has no contact",
    "franka_panda/panda.xml": "joint 'joint1' holds",
    "ur5/ur5e.xml": "joint 'shoulder_pan_joint' holds",
    "uuv/mini_tortuga.urdf": "has no contact",
    "youbot/youbot.urdf": "holds|has no contact",
}
FILES = sorted(str(path.relative_to(SHARED / "models")) for end in ("xml", "urdf") for path in (SHARED / "models").glob(f"*/*.{end}"))


@pytest.mark.slow
@pytest.mark.parametrize("name", FILES)
def test_robots_stand_or_lie(name: str) -> None:
    mech = td.load(shared_path("models", *name.split("/")), timestep=0.01, **OPTIONS.get(name, {}))
    pose = next(iter(mech.poses), None)
    if name in STAYS:
        with pytest.raises(ValueError, match=STAYS[name]):
            mech.initial_state(pose=pose, on="ground")
        return
    z = mech.initial_state(pose=pose, on="ground")
    assert abs(float(mech.distances(z).min())) <= 1e-12
    with torch.no_grad():
        path = mech.rollout(z, steps=300)
    assert not path.status.any()
    assert float(path.z.unflatten(-1, (-1, 13))[..., 3:6].norm(dim=-1).max()) < 20
    assert float(mech.distances(path.z[1:]).min()) >= 0
