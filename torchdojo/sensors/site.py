"""Sites: frames fixed to bodies, which sensors are mounted on. They have no mass, and no step sees them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from torchdojo import quaternion as quat
from torchdojo.parameters import as_tensor, require

__all__ = ["Site"]

SHAPES = {"sphere": 1, "ellipsoid": 3, "box": 3, "capsule": 2, "cylinder": 2}


class Site:
    """A frame fixed to a body, ``mech.sites["imu"] = td.Site("trunk", (0.1, 0.0, 0.0))``.

    Args:
        body: name of a body; None or "world": fixed in the world.
        position: (3,) of the origin in the frame of the body, from its center of mass; in the world frame without body [m].
        orientation: (4,) unit quaternion wxyz, site to body.
        size: of the zone in which a touch sensor feels contacts [m]: the radius of a sphere, three half axes of an ellipsoid or half edges
            of a box, radius and half length of a capsule or cylinder along z.
        shape: "sphere", "ellipsoid", "box", "capsule" or "cylinder".

    Position and orientation may be tensors that carry a graph.

    Raises:
        ValueError: numbers that are not finite, other shapes, a quaternion that is not a unit one.
    """

    def __init__(
        self,
        body: str | None,
        position: Any = (0.0, 0.0, 0.0),
        orientation: Any = (1.0, 0.0, 0.0, 0.0),
        *,
        size: Any = (0.005,),
        shape: str = "sphere",
    ) -> None:
        self.body = None if body == "world" else body
        self.position: Tensor = _vector(position, 3, "position")
        quaternion = _vector(orientation, 4, "orientation")
        norm = torch.linalg.vector_norm(quaternion, dim=-1)
        require((norm - 1.0).abs() <= 1e-6, "Site orientation", quaternion, "unit quaternions wxyz (within 1e-6); divide by the norm")
        self.orientation: Tensor = quat.normalize(quaternion)
        if shape not in SHAPES:
            raise ValueError(f"Site shape: got {shape!r}; allowed: {', '.join(SHAPES)}")
        self.shape = shape
        self.size: Tensor = _vector([size] if isinstance(size, (int, float)) else size, SHAPES[shape], "size")
        require(self.size > 0, "Site size", self.size, "positive lengths [m]")

    def __repr__(self) -> str:
        return f"Site({self.body!r}, {self.position.tolist()}, {self.orientation.tolist()})"


def _vector(value: Any, size: int, name: str) -> Tensor:
    vector = as_tensor(value, f"Site {name}").double()
    if vector.shape != (size,):
        raise ValueError(f"Site {name}: got shape {tuple(vector.shape)}; allowed: ({size},)")
    require(torch.isfinite(vector), f"Site {name}", vector, "finite numbers")
    return vector
