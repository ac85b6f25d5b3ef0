"""Rigid bodies: mass, inertia and shape."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from torchdojo.parameters import PhysicalModule, as_tensor, require

if TYPE_CHECKING:
    from torchdojo.geometry.shapes import Shape
    from torchdojo.geometry.visuals import Visual

__all__ = ["Body"]


class Body(PhysicalModule):
    """A rigid body. Its frame sits at its center of mass; the axes are the user's choice.

    Args:
        mass: [kg], (...,), positive.
        inertia: [kg·m²] about the center of mass, in body axes: (..., 3, 3) symmetric, or (..., 3) principal moments (the diagonal).
            Positive definite, and each principal moment at most the sum of the other two. None: computed from `shape`.
        shape: a `torchdojo.geometry.shapes.Shape`, or several; for the inertia above, for drawing, and for contacts built from geometry.
        visuals: `td.Visual` solids that are drawn in place of the shapes, such as the visual meshes of a robot file. Physics ignores them.

    Raises:
        ValueError: a mass that is not positive, an inertia that no rigid body can have, or neither inertia nor shape given.
    """

    fields: ClassVar[dict[str, int]] = {"mass": 0, "inertia": 2}
    mass: Tensor
    inertia: Tensor

    def __init__(
        self, mass: Any, inertia: Any = None, *, shape: Shape | Sequence[Shape] | None = None, visuals: Sequence[Visual] = ()
    ) -> None:
        super().__init__()
        self.visuals = tuple(visuals)
        self.shapes: tuple[Shape, ...] = () if shape is None else tuple(shape) if isinstance(shape, Sequence) else (shape,)
        self.mass = mass
        if inertia is None:
            if len(self.shapes) != 1:
                raise ValueError(
                    f"Body: got no inertia and {len(self.shapes)} shapes; give inertia=, or exactly one shape to compute it from"
                )
            inertia = self.shapes[0].inertia(as_tensor(mass, "Body.mass"))
        elif not isinstance(inertia, Tensor):
            inertia = as_tensor(inertia, "Body.inertia")
            # Three numbers are principal moments. A tensor of shape (3,) too; one of shape (3, 3) is the matrix, as nested lists are.
        self.inertia = inertia

    def check_field(self, name: str, value: Tensor) -> Tensor:
        if name == "mass":
            value = super().check_field(name, value)
            require(value > 0, self.label(name), value, "positive masses [kg]")
            return value
        if value.ndim == 0 or value.shape[-1] != 3 or (value.ndim >= 2 and value.shape[-2:] != (3, 3)):
            raise ValueError(
                f"{self.label(name)}: got shape {tuple(value.shape)}; allowed: (3,) principal moments or (..., 3, 3); "
                "batched principal moments: torch.diag_embed(moments)"
            )
        if value.ndim == 1:
            value = torch.diag_embed(value)
        value = super().check_field(name, value)
        detached = value.detach()
        scale = detached.abs().amax((-1, -2))
        require(
            (detached - detached.mT).abs().amax((-1, -2)) <= 1e-9 * scale, self.label(name), value, "symmetric matrices: (I + I.mT) / 2"
        )
        moments = torch.linalg.eigvalsh(detached)
        require(moments[..., 0] > 0, self.label(name), value, "positive definite matrices (all principal moments > 0)")
        # The slack admits flat bodies (equality) written with six digits, as robot files do.
        require(
            moments[..., 2] <= (moments[..., 0] + moments[..., 1]) * (1 + 1e-6),
            self.label(name),
            value,
            f"matrices whose largest principal moment is at most the sum of the others; these have {moments.tolist()}",
        )
        return value
