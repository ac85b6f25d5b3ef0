"""Sensors of forces: between a body and what carries it, and of contacts in a zone."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from torchdojo import quaternion as quat
from torchdojo.sensors.kind import Kind, Sensor, register
from torchdojo.sensors.rays import distances
from torchdojo.sensors.reading import Reading

__all__: list[str] = []


class Interaction(Kind):
    """Force or torque that its parent puts on the body of the site, and through it on all that hangs on the body, in axes of the site."""

    needs, needs_step = ("site",), True

    def __init__(self, torque: bool) -> None:
        self.torque = torque

    def read(self, sensors: Sequence[Sensor], at: Reading) -> Tensor:
        if at.structure.has_loops:
            raise ValueError(
                "sensors: force and torque at a site follow from the bodies that hang on it; this mechanism has closed loops or couplings, "
                "which share the load; allowed: trees; mech.impulse_layout has the impulses of joints"
            )
        sites = [at.site(sensor.site) for sensor in sensors]
        for site in sites:
            if site.body is None:
                raise ValueError("sensors: a sensor of force is on a site of the world, which nothing carries; put the site on a body")
        frames, below = at.frames(sites), at.subtrees([site.body for site in sites])
        force, torque = (below @ value for value in at.carried)
        value = torque - quat.cross(frames.pose.x, force) if self.torque else force
        return quat.inverse_rotate(frames.pose.q, value)


class Touch(Kind):
    """Sum of the normal forces on the body of the site of all contacts whose normal passes through the zone of the site, on its way in."""

    size, needs, needs_step, clamp = 1, ("site",), True, "above"

    def read(self, sensors: Sequence[Sensor], at: Reading) -> Tensor:
        sites, total = [at.site(sensor.site) for sensor in sensors], at.zeros(len(sensors))
        frames = at.frames(sites)
        for body, sign, place, push in at.contact_forces():
            normal = sign * at.report.normals  # into the body
            along = (sign * push * normal).sum(-1)
            columns = []
            for i, site in enumerate(sites):
                origin, axes = frames.pose.x[..., i, None, :], frames.pose.q[..., i, None, :]
                start, way = quat.inverse_rotate(axes, place - origin), quat.inverse_rotate(axes, normal)
                inside = torch.isfinite(distances(site.shape, site.size.to(at.z), start, way).detach())
                mine = inside & (body == frames.body[i])
                columns.append(torch.where(mine, along, 0.0).sum(-1))
            total = total + torch.stack(columns, dim=-1)
        return total[..., None]


register("force", Interaction(False))
register("torque", Interaction(True))
register("touch", Touch())
