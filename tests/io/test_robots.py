"""Real robots dropped on the ground from their URDF files, 200 steps of 0.01 s, as the command line does it."""

import json

import pytest

from conftest import shared_path
from torchdojo.commands.main import main

# The corners of the soles, where the file draws its heel and toe spheres (radius 1 cm).
ATLAS_SOLES = [
    f"{foot}:{x},{y},-0.07645,0.01"
    for foot, ys in (("l_foot", (0.066, -0.0626)), ("r_foot", (0.0626, -0.066)))
    for x in (-0.0876, 0.1728)
    for y in ys
]
ROBOTS = {  # the meshes of UR5 are not in the shared data
    "atlas": (("atlas", "atlas_simple.urdf"), [a for sole in ATLAS_SOLES for a in ("--contact", sole)], 31),
    "a1": (("unitree_a1", "a1.urdf"), [], 13),
    "h1": (("unitree_h1", "h1.urdf"), [], 20),
    "panda": (("franka_panda", "panda_collision.urdf"), ["--fixed-base", "--ground"], 9),
    "ur5": (("ur5", "ur5_robot.urdf"), ["--mesh", "skip", "--no-fixed-base"], 7),
    # The tool of the fixed arm starts 10.5 mm deep: at this speed the exact law acts, and the first step takes it out.
    "ur5_fixed": (("ur5", "ur5_robot.urdf"), ["--ground", "--mesh", "skip", "--depenetration-speed", "100"], 6),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", ROBOTS)
def test_robot_falls_without_a_flagged_step(capsys, name):
    parts, options, bodies = ROBOTS[name]
    assert main(["simulate", str(shared_path("models", *parts)), "--steps", "200", "--timestep", "0.01", *options, "--json"]) == 0
    report = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert report["bodies"] == bodies
    assert report["flagged_steps"] == 0
    assert report["steps"] == 200
    assert report["smallest_distance_m"] >= 0
    assert report["largest_joint_error"] <= 1e-8
