"""An arm with four muscles that reaches for a place in the plane of a table.

A muscle only pulls, and its activation follows the control with a lag of 10 to 40 ms. So a policy has to begin to brake before it arrives,
and it sees the activations beside the joints.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from torchdojo.elements.bodies import Body
from torchdojo.elements.joints import Revolute
from torchdojo.engine.drives import Drive, Drives
from torchdojo.envs.env import Env
from torchdojo.envs.motion import Motion
from torchdojo.geometry.shapes import Capsule
from torchdojo.mechanism import Mechanism

__all__ = ["MuscleArm"]

LINKS = {"upper": (0.31, 0.04, 1.9), "fore": (0.34, 0.03, 1.5)}  # length, radius [m], mass [kg]
JOINTS = {"shoulder": (-0.9, 2.2), "elbow": (0.1, 2.4)}  # limits [rad]
MUSCLES = {"shoulder": (0.04, 600.0), "elbow": (0.03, 500.0)}  # moment arm [m] and peak force [N] of flexor and extensor
HEIGHT = 0.9  # of the table [m]
MARGIN = 0.4  # of starts and goals from the limits [rad]
DAMPER = 0.2  # of the joints [N·m·s/rad]
ROUND = 0.01  # below this distance from the goal the reward is flat [m]


class MuscleArm(Env):
    """Upper arm and forearm on hinges about the vertical, with a flexor and an extensor at each: ``td.envs.MuscleArm(num_envs=64)``.

    Actions are controls of "shoulder_flexor", "shoulder_extensor", "elbow_flexor", "elbow_extensor" from none (-1) to full excitation (1).
    The goal is a place of the hand (x, y) [m], that of a random posture. The observation has sines and cosines of the angles, rates / 5,
    goal, hand − goal in units of 0.1 m, and the activations. With the distance d of the hand from its goal and the activations a, the
    reward is −(√(d² + 1 cm²) − 1 cm) in units of 0.1 m − 0.02 Σ a².

    Args:
        options: of `Env`.
    """

    name = "muscle_arm"
    timestep, repeat, episode_length = 0.01, 2, 75

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"observe_activations": True, **options})

    def build(self) -> Mechanism:
        """Two links and four muscles, whose operating range is that of the joint's limits."""
        along = (math.sqrt(0.5), 0.0, math.sqrt(0.5), 0.0)  # capsules lie along x
        bodies = {
            name: Body(mass, shape=Capsule(radius=radius, length=length - 2 * radius, orientation=along))
            for name, (length, radius, mass) in LINKS.items()
        }
        half = {name: 0.5 * length for name, (length, *_) in LINKS.items()}
        joints, parents = {}, {"shoulder": (None, (0.0, 0.0, HEIGHT)), "elbow": ("upper", (half["upper"], 0.0, 0.0))}
        for (joint, limits), body in zip(JOINTS.items(), LINKS, strict=True):
            parent, anchor = parents[joint]
            end = (-half[body], 0.0, 0.0)
            joints[joint] = Revolute(
                parent, body, axis=(0.0, 0.0, 1.0), parent_anchor=anchor, child_anchor=end, limits=limits, damper=DAMPER
            )
        mech = Mechanism(bodies, joints, timestep=0.01 if self.timestep is None else self.timestep)
        mech.drives = _muscles(mech)
        return mech

    def _random_postures(self, count: int) -> Tensor:
        low, high = torch.tensor([*JOINTS.values()], dtype=torch.float64).mT
        return low + MARGIN + (high - low - 2 * MARGIN) * self.random(count, len(JOINTS), low=0.0)

    def starts(self, count: int) -> tuple[Tensor, Tensor]:
        """Random postures, nearly at rest."""
        return self._random_postures(count), 0.1 * self.noise * self.normal(count, len(JOINTS))

    def activations(self, start: Motion) -> Tensor:
        """A little tone, as of a waking arm."""
        return 0.1 * self.random(len(start.z), len(self.action_names), low=0.0)

    def goals(self, count: int) -> Tensor:
        """Places of the hand in random postures, (count, 2) [m]."""
        return self._hand(self._random_postures(count))

    @staticmethod
    def _hand(q: Tensor) -> Tensor:
        angles = torch.stack((q[..., 0], q.sum(-1)), -1)
        lengths = q.new_tensor([length for length, *_ in LINKS.values()])
        return torch.stack(((lengths * angles.cos()).sum(-1), (lengths * angles.sin()).sum(-1)), -1)

    def distance(self, motion: Motion) -> Tensor:
        """The distance of the hand from its goal [m], (B,)."""
        return (self._hand(motion.q) - motion.goal).norm(dim=-1)

    def observe(self, motion: Motion) -> Tensor:
        """See the class."""
        miss = self._hand(motion.q) - motion.goal
        return torch.cat((motion.q.sin(), motion.q.cos(), 0.2 * motion.qd, motion.goal, 10.0 * miss), -1)

    def reward(self, before: Motion, after: Motion, action: Tensor) -> Mapping[str, Tensor]:
        """See the class."""
        square = (self._hand(after.q) - after.goal).square().sum(-1)
        return {
            "distance": -10.0 * ((square + ROUND**2).sqrt() - ROUND),
            "effort": -0.02 * after.activation.square().sum(-1),
        }


def _muscles(mech: Mechanism) -> Drives:
    """A flexor and an extensor at each joint."""
    drives: dict[str, Drive | None] = {}
    for joint, (arm, force) in MUSCLES.items():
        for name, gear in (("flexor", -arm), ("extensor", arm)):
            low, high = sorted(gear * end for end in JOINTS[joint])
            drives[f"{joint}_{name}"] = Drive.muscle(joint=joint, gear=gear, lengths=(low, high), force=force)
    return Drives(mech, drives)
