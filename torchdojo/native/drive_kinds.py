"""The places that drives act on, and the laws of their activations, as the kernel counts them."""

from __future__ import annotations

import enum

__all__ = ["DriveDynamics", "DriveTarget"]


class DriveTarget(enum.IntEnum):
    """The place that a drive acts on."""

    JOINT = 0
    SITE = 1
    TENDON = 2


class DriveDynamics(enum.IntEnum):
    """The laws by which activations follow controls, by the names of `DYNAMICS` (elements/actuator_laws.py)."""

    NONE = 0
    INTEGRATOR = 1
    FILTER = 2
    FILTEREXACT = 3
    MUSCLE = 4
