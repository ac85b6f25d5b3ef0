"""An MJCF file while it is written: its elements, what is left out, and the inertia that soft constraints are measured by."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any
from xml.etree import ElementTree

import torch
from torch import Tensor

from torchdojo.engine.drive_targets import on_coordinate
from torchdojo.mechanism import Mechanism
from torchdojo.parameters import as_tensor

__all__ = ["Writing", "number_of", "range_of", "text_of"]

IMPEDANCE = 0.95  # of soft constraints, MuJoCo's default at large errors
BOUND = 1e300  # MJCF has no range that is open on one side


class Writing:
    """The file of a mechanism.

    Attributes:
        root: `<mujoco>`. bodies: the element of each body; None: of the world.
        coordinates: (joint, coordinate) -> joint of the file; free joints and rotations of balls have none.
        balls: joints whose rotations are a ball in the file, which has the name of the joint. actuators: names of those that are written.
        left_out: names of what the file lacks, in the form of `write_mjcf`.
    """

    def __init__(self, mech: Mechanism, name: str, may_have_balls: bool = True) -> None:
        self.mech, self.root, self.may_have_balls = mech, ElementTree.Element("mujoco", model=name), may_have_balls
        self.bodies: dict[str | None, ElementTree.Element] = {}
        self.coordinates: dict[tuple[str, int], str] = {}
        self.balls = set[str]()
        self.actuators: list[str] = []
        self.left_out: list[str] = []
        self._taken = set(mech.sites)

    def section(self, tag: str) -> ElementTree.Element:
        """The element of this tag under the root, made where there is none."""
        element = self.root.find(tag)
        return ElementTree.SubElement(self.root, tag) if element is None else element

    def site(self, name: str, body: str | None, position: Tensor, **more: Any) -> str:
        """Add a site that the mechanism has not named. position: (3,), in the frame of the body [m]. The result is its name."""
        while name in self._taken:
            name += "_"
        self._taken.add(name)
        ElementTree.SubElement(self.bodies[body], "site", name=name, pos=text_of(position), **more)
        return name

    @cached_property
    def single(self) -> set[tuple[str, int]]:
        """(joint, coordinate) of all coordinates on which an actuator, a drive, a tendon or a coupling acts alone."""
        mech = self.mech
        places = set[tuple[str, int]]()
        if mech.actuators is not None:
            places |= set(zip(mech.actuators.joints, mech.actuators.coordinates, strict=True))
        drives = () if mech.drives is None else mech.drives.drives.values()
        places |= {(str(drive.joint), drive.coordinate) for drive in drives if drive is not None and on_coordinate(drive)}
        for tendon in mech.named_tendons().values():
            places |= set(getattr(tendon, "places", ()))
        for coupling in mech.named_couplings().values():
            places |= {(end.joint, end.coordinate) for end in coupling.ends}
        return places

    @cached_property
    def inverse_mass(self) -> Tensor:
        """The inverse of the mass matrix with all coordinates at zero, (n, n), as MuJoCo has it at qpos0."""
        return torch.linalg.inv(self.mech.mass_matrix(torch.zeros(self.mech.num_coordinates, dtype=torch.float64)))

    def softness(self, inverse: float, stiffness: float, damping: float, suffix: str = "") -> dict[str, str]:
        """solref and solimp of a spring and a damper along an error: the inverse of the law in `softness.py`, at one impedance.

        inverse: of the mass that the error moves at qpos0 [1/kg, 1/(kg·m²)]. stiffness [N/m, N·m/rad]. damping [N·s/m, N·m·s/rad].
        """
        scale = inverse * (1 - IMPEDANCE)
        numbers = torch.tensor([-stiffness * scale, -damping * scale], dtype=torch.float64)
        return {f"solref{suffix}": text_of(numbers), f"solimp{suffix}": f"{IMPEDANCE:g} {IMPEDANCE:g} 0.001"}


def number_of(value: Any, label: str) -> float:
    """A single number.

    Raises:
        ValueError: several numbers, of several environments.
    """
    tensor = as_tensor(value, label).detach()
    if tensor.numel() != 1:
        raise ValueError(f"write_mjcf: got {label} of shape {tuple(tensor.shape)}; allowed: one number for each parameter, no environments")
    return float(tensor)


def range_of(bounds: Sequence[Any] | Tensor | None, label: str) -> str | None:
    """(lower, upper) as text, a far number where one side is open; None where both are."""
    if bounds is None:
        return None
    lower, upper = (number_of(bound, label) for bound in bounds)
    if lower == -torch.inf and upper == torch.inf:
        return None
    return f"{max(lower, -BOUND):.17g} {min(upper, BOUND):.17g}"


def text_of(values: Any) -> str:
    """Numbers with all their digits."""
    return " ".join(f"{number:.17g}" for number in as_tensor(values, "write_mjcf").detach().double().reshape(-1).tolist())
