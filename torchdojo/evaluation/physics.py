"""The experiments of `torchdojo evaluate physics`: one function each, in the order in which they run.

To add an experiment, write a function `Setting -> Outcome` and a line here. The command, its report and tests/evaluation follow.
"""

from __future__ import annotations

from torchdojo.evaluation import (
    chains,
    collisions,
    conservation,
    convergence,
    friction,
    holding,
    impact,
    joint_laws,
    robots,
    spinning,
)
from torchdojo.evaluation.experiment import Experiment

__all__ = ["EXPERIMENTS"]

EXPERIMENTS = (
    Experiment("three-link-loop", "A closed loop stays closed", conservation.three_link_loop),
    Experiment("double-pendulum", "Energy without drift", conservation.double_pendulum),
    Experiment("damped-pendulum", "Energy of a damped pendulum, long steps", conservation.damped_pendulum),
    Experiment("cube-drop", "A cube dropped on the floor", impact.cube_drop),
    Experiment("atlas-drop", "Atlas dropped, three step lengths", robots.atlas_drop),
    Experiment("torso-height", "A1 and Atlas come to rest at the same height at every rate", robots.torso_height),
    Experiment("bouncing-ball", "A ball leaves the floor at e times its speed", collisions.bouncing_ball),
    Experiment("newtons-cradle", "Newton's cradle: momentum passed on through balls at rest", collisions.newtons_cradle),
    Experiment("box-stack", "A stack of ten boxes stands", collisions.box_stack),
    Experiment("pinch", "Two fingers hold a capsule", holding.pinch),
    Experiment("grasp", "Two fingers hold a cube", holding.grasp),
    Experiment("sliding-box", "A box slides straight and stops where it should", friction.sliding_box),
    Experiment("slope", "A box on a slope: stiction and sliding", friction.slope),
    Experiment("joint-limit", "A pendulum falls into its limit and rests there", joint_laws.joint_limit),
    Experiment("joint-friction", "A joint sticks below its friction torque, and turns above it", joint_laws.joint_friction),
    Experiment("long-pendulums", "Pendulums of up to 100 links", chains.long_pendulums),
    Experiment("sphere-chains", "Chains of up to 100 balls on the ground", chains.sphere_chains),
    Experiment("four-bar-chains", "Chains of up to 20 loops of four rods", chains.four_bar_chain),
    Experiment("double-four-bar", "A linkage through its singular position", chains.double_four_bar),
    Experiment("scaled-pendulums", "Pendulums of three sizes over two decades of step lengths", chains.scaled_pendulums),
    Experiment("convergence", "Iterations and condition numbers", convergence.convergence),
    Experiment("dzhanibekov", "Flips about the intermediate axis", spinning.dzhanibekov),
    Experiment("tippe-top", "A top that turns over", spinning.tippe_top),
)
