"""The places that drives act on, the laws of their activations, and their numbers, as the kernel has them."""

from __future__ import annotations

import enum

from torchdojo.native.layouts import numbers

__all__ = ["DRIVE_NUMBERS", "MUSCLE_BIAS", "MUSCLE_GAIN", "DriveDynamics", "DriveTarget"]


class DriveTarget(enum.IntEnum):
    """The place that a drive acts on."""

    JOINT = 0
    SITE = 1
    TENDON = 2
    SITES = 3  #: a site relative to another
    CRANK = 4
    BODY = 5  #: adhesion at its contacts
    FLOATING = 6  #: a body that floats in the world, as SITES without a length


class DriveDynamics(enum.IntEnum):
    """The laws by which activations follow controls, by the names of `DYNAMICS` (elements/actuator_laws.py)."""

    NONE = 0
    INTEGRATOR = 1
    FILTER = 2
    FILTEREXACT = 3
    MUSCLE = 4


#: The ranges of the control, force and activation of each drive, and the numbers of its laws. At a site, push and turn are the wrench per
#: force, in body axes. Between two sites they are gears in the axes of the other body, `arm` and `other_arm` the sites, and `offset` turns
#: one frame into the other at the angle zero; `own_turn` is a torque in the axes of a body that floats. The push of a crank is the axis of
#: its slider. The reach is that of adhesion. Numbers of a muscle are those of its curves, with reciprocals (`muscle_numbers` in
#: driving.py).
DRIVE_NUMBERS = numbers(
    gear=1, length0=1, ctrlrange=2, forcerange=2, actrange=2, dynamics=3, gain=15, bias=6, push=3, turn=3,
    arm=3, other_arm=3, offset=4, rod=1, reach=1, own_turn=3,
)  # fmt: skip
MUSCLE_GAIN = numbers(
    peak=1, low=1, shortest=1, per_length=1, per_speed=1, lmin=1, left_bend=1, right_bend=1, lmax=1, fvmax=1,
    per_left=1, per_rise=1, per_fall=1, per_right=1, per_yield=1,
)  # fmt: skip
MUSCLE_BIAS = numbers(peak=1, low=1, shortest=1, per_length=1, right_bend=1, per_width=1)
