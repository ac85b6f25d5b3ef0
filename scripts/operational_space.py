#!/usr/bin/env python
"""A Panda draws a circle with its hand under operational-space control: torques from the mass matrix and a Jacobian.

    scripts/operational_space.py                                       # prints the errors
    scripts/operational_space.py --html circle.html                    # and writes a page that shows the motion
    scripts/operational_space.py --load 1.0                            # a kilogram in the hand that the controller does not know

With the pose error e of the hand, its Jacobian J and the inertia Λ = (J M⁻¹ Jᵀ)⁻¹ that the hand feels (Khatib 1987), the torques are

    F = Λ (ẍ_wanted + kd ė + kp e − J̇ q̇)          τ = Jᵀ F + c + (1 − Jᵀ Λ J M⁻¹) M (−kp_null (q − q₀) − kd_null q̇)

The last part keeps the elbow in place without moving the hand. J̇ q̇ is a derivative of `mech.point_jacobian` along the motion. The robot
file lies in the folder $TORCHDOJO_SHARED.
"""

from __future__ import annotations

import argparse
import math
import os
import warnings
from pathlib import Path

import torch
from torch import Tensor

import torchdojo as td
from torchdojo import quaternion as quat

TIMESTEP = 0.002  # [s]
RADIUS, PERIOD = 0.1, 2.0  # of the circle [m], [s]
START = (0.0, -0.4, 0.0, -2.0, 0.0, 1.6, 0.8, 0.02, 0.02)  # [rad], and of the fingers [m]
STIFFNESS, ELBOW = 400.0, 10.0  # kp [1/s²], and that of the elbow; dampings are critical


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--load", type=float, default=0.0, help="mass in the hand that the controller does not know [kg]")
    parser.add_argument("--html", help="page to write")
    options = parser.parse_args()
    robot, model = panda(), panda()  # the world's, and what the controller knows
    hand = robot.joints["panda_joint7"].child
    robot.bodies[hand].mass = robot.bodies[hand].mass + options.load
    controller = Controller(model, hand)
    z, errors, states = robot.to_maximal(controller.start), [], []
    for step in range(round(options.seconds / TIMESTEP)):
        torque, error, angle = controller(*robot.to_minimal(z), step * TIMESTEP)
        errors.append((error, angle))
        states.append(z)
        z = robot.step(z, torque).z
    settled = errors[len(errors) // 2 :]
    print(f"circle of {100 * RADIUS:g} cm in {PERIOD:g} s, timestep {1000 * TIMESTEP:g} ms, unknown load {options.load:g} kg")
    print(f"largest error in the second half: {1000 * max(e for e, _ in settled):.3f} mm, {1000 * max(a for _, a in settled):.3f} mrad")
    if options.html:
        robot.animate(torch.stack(states), options.html)


def panda() -> td.Mechanism:
    """The robot with torques as inputs."""
    shared = Path(os.environ.get("TORCHDOJO_SHARED") or Path(__file__).resolve().parents[2] / "shared")
    path = shared / "models" / "franka_panda" / "panda_collision.urdf"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return td.load(path, timestep=TIMESTEP, floating_base=False, contacts=None, ignore=("panda_finger_joint2",))


class Controller:
    """Torques that move the hand along the circle."""

    def __init__(self, model: td.Mechanism, hand: str) -> None:
        self.model, self.hand = model, hand
        self.start = torch.tensor(START, dtype=torch.float64)
        state = model.body_state(model.to_maximal(self.start), hand)
        self.center, self.orientation = state.x - state.x.new_tensor((RADIUS, 0.0, 0.0)), state.q

    def wanted(self, time: float) -> tuple[Tensor, Tensor, Tensor]:
        """Position, velocity and acceleration of the hand, (3,) each."""
        rate = 2 * math.pi / PERIOD
        cosine, sine = math.cos(rate * time), math.sin(rate * time)
        away = RADIUS * self.center.new_tensor((cosine, sine, 0.0))
        return self.center + away, rate * RADIUS * self.center.new_tensor((-sine, cosine, 0.0)), -(rate**2) * away

    def __call__(self, q: Tensor, qd: Tensor, time: float) -> tuple[Tensor, float, float]:
        """Torques (9,), and the errors of position [m] and orientation [rad]."""
        model = self.model
        x, velocity, acceleration = self.wanted(time)
        state = model.body_state(model.to_maximal(q), self.hand)
        turn = quat.rotation_vector(quat.multiply(self.orientation, quat.conjugate(state.q)))
        mass, jacobian = model.mass_matrix(q), model.point_jacobian(q, self.hand)
        # Hinges and slides: rates are the derivatives of the coordinates.
        _, drift = torch.func.jvp(lambda q: model.point_jacobian(q, self.hand) @ qd, (q,), (qd,))
        gap = torch.cat((x - state.x, turn))
        slip = torch.cat((velocity, torch.zeros_like(velocity))) - jacobian @ qd
        aim = torch.cat((acceleration, torch.zeros_like(acceleration))) + STIFFNESS * gap + 2 * math.sqrt(STIFFNESS) * slip - drift
        mobility = torch.linalg.solve(mass, jacobian.mT)
        inertia = torch.linalg.inv(jacobian @ mobility)
        elbow = mass @ (-ELBOW * (q - self.start) - 2 * math.sqrt(ELBOW) * qd)
        torque = jacobian.mT @ (inertia @ aim) + model.bias(q, qd) + elbow - jacobian.mT @ (inertia @ (mobility.mT @ elbow))
        return torque, float(gap[:3].norm()), float(turn.norm())


if __name__ == "__main__":
    main()
