#!/usr/bin/env python
"""A quadrotor hovers by what its IMU tells, without any look at where it is.

    scripts/hover_by_imu.py                                # prints how far it is from its place, and from where it believes to be
    scripts/hover_by_imu.py --noise 1                      # with the noise of a cheap IMU: it drifts away, slowly
    scripts/hover_by_imu.py --html hover.html              # and writes a page that shows the motion

It starts tilted, turning and moving, and knows that start. From there on it integrates gyro and accelerometer (Titterton and Weston 2004,
"Strapdown Inertial Navigation Technology", chapter 3), with the specific force f and the spin ω in the axes of the body:

    q⁺ = q ⊗ exp(h ω)          v⁺ = v + h (R(q) f + g)          x⁺ = x + h v⁺

The controller sees the estimate alone: a wanted acceleration from position and velocity, a thrust along it, and torques that turn the body
there (Lee et al. 2010, "Geometric tracking control of a quadrotor UAV on SE(3)").
"""

from __future__ import annotations

import argparse

import torch
from torch import Tensor

import torchdojo as td
from torchdojo import quaternion as quat

TIMESTEP = 0.005  # [s]
PLACE = (0.0, 0.0, 1.5)  # where it is to hover [m]
START = {"position": (0.4, -0.3, 1.2), "velocity": (0.5, 0.3, -0.4), "angular_velocity": (0.8, -0.6, 0.3)}
TILT = (0.3, -0.2, 0.1)  # rotation vector at the start [rad]
PULL, BRAKE = 4.0, 3.6  # wanted acceleration per distance [1/s²] and per speed [1/s]
TURN, DAMP = 60.0, 14.0  # wanted angular acceleration per angle [1/s²] and per spin [1/s]
NOISE = {"gyro": 0.002, "accelerometer": 0.02}  # standard deviations of a reading [rad/s], [m/s²], of --noise 1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--noise", type=float, default=0.0, help="of the IMU, 1: a gyro of 0.002 rad/s, an accelerometer of 0.02 m/s²")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--html", help="page to write")
    options = parser.parse_args()
    states, estimates, robot = hover(options.seconds, options.noise, options.seed)
    places, last = place_of(robot, states), len(states) // 4
    apart, lost = (places - states.new_tensor(PLACE)).norm(dim=-1), (places - estimates).norm(dim=-1)
    print(f"hovering for {options.seconds:g} s by an IMU alone, timestep {1000 * TIMESTEP:g} ms, noise {options.noise:g}")
    print(f"from its place: {100 * float(apart[0]):.0f} cm at the start, {100 * float(apart[-last:].max()):.2f} cm in the last quarter")
    print(f"from where it believes to be: {1000 * float(lost.max()):.2f} mm at most")
    if options.html:
        robot.animate(states, options.html)


def place_of(robot: td.Mechanism, z: Tensor) -> Tensor:
    """The position of the IMU [m], (..., 3)."""
    body = robot.body_state(z, "x2")
    return body.x + quat.rotate(body.q, robot.sites["imu"].position.expand_as(body.x))


def hover(seconds: float, noise: float = 0.0, seed: int = 0) -> tuple[Tensor, Tensor, td.Mechanism]:
    """States (T+1, 13), places where the robot believed its IMU to be (T+1, 3) [m], and the robot."""
    robot, generator = td.models.quadrotor(timestep=TIMESTEP, contact=False), torch.Generator().manual_seed(seed)
    turn = quat.exp(torch.tensor(TILT, dtype=torch.float64))
    z = robot.initial_state(x2={**START, "orientation": turn})
    pilot = Pilot(robot, z)
    deviation = noise * torch.tensor([NOISE["gyro"]] * 3 + [NOISE["accelerometer"]] * 3, dtype=torch.float64)
    states, estimates, warm = [z], [pilot.x], None
    with torch.no_grad():
        for _ in range(round(seconds / TIMESTEP)):
            before, out = z, robot.step(z, ctrl=pilot.ctrl(), warm_start=warm)
            z, warm = out.z, out.solution
            # The gyro of the state that the step leads to, and the mean specific force in the step, at the configuration before it.
            reading = torch.cat((robot.read_sensors(z, names=["body_gyro"]), robot.read_sensors(before, out, names=["body_linacc"])))
            reading = reading + deviation * torch.randn(6, generator=generator, dtype=torch.float64)
            pilot.feel(*reading.split(3))
            states.append(z)
            estimates.append(pilot.x)
    return torch.stack(states), torch.stack(estimates), robot


class Pilot:
    """An estimate of the motion of the IMU, and controls of the four rotors that follow from it."""

    def __init__(self, robot: td.Mechanism, z: Tensor) -> None:
        body, rotors = robot.bodies["x2"], robot.actuators
        start = robot.body_state(z, "x2")
        self.gravity, self.mass, self.inertia = robot.gravity, body.mass, body.inertia
        lever = robot.sites["imu"].position
        self.q, self.spin = start.q, start.omega
        self.x = start.x + quat.rotate(start.q, lever)
        self.v = start.v + quat.rotate(start.q, quat.cross(start.omega, lever))
        # Thrust and torques are linear in the controls; two points of each tell how.
        zero = z.new_zeros(len(rotors.names))
        upright = robot.initial_state(x2={"position": PLACE})
        rest = rotors(zero, upright)
        map_ = torch.stack([rotors(zero.index_fill(0, torch.tensor([i]), 1.0), upright) - rest for i in range(len(zero))], -1)
        self.rest, self.inverse = rest[2:], torch.linalg.inv(map_[2:])  # force along z, and torques

    def feel(self, gyro: Tensor, force: Tensor) -> None:
        """Take a reading of the IMU."""
        self.v = self.v + TIMESTEP * (quat.rotate(self.q, force) + self.gravity)
        self.x = self.x + TIMESTEP * self.v
        self.q, self.spin = quat.normalize(quat.multiply(self.q, quat.exp(TIMESTEP * gyro))), gyro

    def ctrl(self) -> Tensor:
        """Controls of the rotors, (4,)."""
        wanted = PULL * (self.x.new_tensor(PLACE) - self.x) - BRAKE * self.v - self.gravity
        up = wanted / wanted.norm()
        axes = quat.rotation_matrix(self.q)
        thrust = self.mass * wanted @ axes[:, 2]
        ahead = torch.linalg.cross(up.new_tensor((0.0, 1.0, 0.0)), up)
        ahead = ahead / ahead.norm()
        aim = torch.stack((ahead, torch.linalg.cross(up, ahead), up), -1)
        skew = 0.5 * (aim.mT @ axes - axes.mT @ aim)
        error = torch.stack((skew[2, 1], skew[0, 2], skew[1, 0]))
        torque = self.inertia @ (-TURN * error - DAMP * self.spin) + torch.linalg.cross(self.spin, self.inertia @ self.spin)
        return (self.inverse @ (torch.cat((thrust[None], torque)) - self.rest)).clamp(-1.0, 1.0)


if __name__ == "__main__":
    main()
