"""MuJoCo within a control step: normal impulses of contacts with the world, in the layout of a mechanism, and work of the motors.

A contact of MuJoCo counts for the contact of ours on the same body whose point is nearest. Bodies that have none here, such as shins of an
environment whose feet alone touch the ground, are left out.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchdojo import quaternion as quat
from torchdojo.io.mjcf.model import import_mujoco
from torchdojo.learning.ground import ground_contacts
from torchdojo.mechanism import Mechanism

__all__ = ["Measured"]


class Measured:
    """Sums over the timesteps of a control step, for B robots.

    Args:
        mech: whose contacts count. model: of MuJoCo. bodies: (nb,) its body for each of ours. count: B.
        levers, turns: (nb, 3) [m], (nb, 4), our frames in those of MuJoCo's bodies.
    """

    def __init__(self, mech: Mechanism, model: Any, bodies: Any, levers: Tensor, turns: Tensor, count: int) -> None:
        names, layout = list(mech.bodies), mech.impulse_layout
        self.pyramids = bool(model.opt.cone == import_mujoco().mjtCone.mjCONE_PYRAMIDAL)
        self.sums = np.zeros((count, max((piece.stop for piece in layout.values()), default=0)))
        self.done = np.zeros((count, 2))
        #: of each fixed group of MuJoCo's bodies: columns, MuJoCo's body, and points in its frame
        self.own: dict[int, list[tuple[int, int, np.ndarray[Any, Any]]]] = {}
        for name, contact in ground_contacts(mech).items():
            i = names.index(str(contact.body_names[0]))
            center = getattr(contact, "point", torch.zeros(3)).detach().double().reshape(-1, 3)[0]
            place = (levers[i] + quat.rotate(turns[i], center)).numpy()
            group = self.own.setdefault(int(model.body_weldid[bodies[i]]), [])
            group.append((layout[f"contacts.{name}"].start, int(bodies[i]), place))

    def add(self, model: Any, data: Any, number: int) -> None:
        """The forces of the timestep that MuJoCo just took, of one robot."""
        power = data.actuator_force * data.actuator_velocity
        self.done[number] += model.opt.timestep * np.array([np.maximum(power, 0.0).sum(), np.abs(power).sum()])
        if not data.ncon:
            return
        contacts, force = data.contact, data.efc_force
        groups = model.body_weldid[model.geom_bodyid[contacts.geom]].tolist()
        for (one, other), address, size, place in zip(
            groups, contacts.efc_address.tolist(), contacts.dim.tolist(), contacts.pos, strict=True
        ):
            near = self.own.get(one or other)
            if address < 0 or near is None or (one and other):
                continue
            normal = force[address : address + 2 * (size - 1)].sum() if self.pyramids and size > 1 else force[address]
            column = near[0][0]
            if len(near) > 1:
                places = [data.xpos[body] + data.xmat[body].reshape(3, 3) @ point for _, body, point in near]
                column = near[int(((np.stack(places) - place) ** 2).sum(-1).argmin())][0]
            self.sums[number, column] += normal * model.opt.timestep

    def take(self) -> tuple[Tensor, Tensor]:
        """Impulses (B, n) [N·s], and positive and absolute work (B, 2) [J]. The sums begin again at zero."""
        result = torch.from_numpy(self.sums.copy()), torch.from_numpy(self.done.copy())
        self.sums[:], self.done[:] = 0.0, 0.0
        return result
