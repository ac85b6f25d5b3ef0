"""Copies of the modules of a mechanism under other names, which share the numbers that require grad.

Joints, contacts, couplings and tendons refer to bodies and joints by name, so a part of a scene needs modules of its own.
A tensor that requires grad is the same in both, so that gradients reach the original. All other numbers are copied.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from typing import Any

from torch import Tensor, nn

from torchdojo.elements.bodies import Body
from torchdojo.elements.contacts import Contact
from torchdojo.elements.coupling import Coupling
from torchdojo.elements.joints import Joint
from torchdojo.elements.string_coupling import StringCoupling
from torchdojo.elements.tendon_paths import FixedTendon, SpatialTendon
from torchdojo.parameters import differentiated

__all__ = ["Renamer", "copied"]

Name = str | None


def copied(modules: Iterable[nn.Module]) -> list[Any]:
    """Copies of modules that share tensors which require grad, shapes and visuals. What the modules share, the copies share, too."""
    originals = list(modules)
    memo: dict[int, Any] = {}
    for module in originals:
        for one in module.modules():
            tensors = [*one.parameters(recurse=False), *one.buffers(recurse=False)]
            tensors += [value for value in vars(one).values() if isinstance(value, Tensor)]
            memo |= {id(tensor): tensor for tensor in tensors if differentiated(tensor)}
        if isinstance(module, Body):  # values, which nobody changes
            memo |= {id(value): value for value in (*module.shapes, *module.visuals)}
        if isinstance(module, (Coupling, FixedTendon)):  # the joints of the other mechanism, which it refers to
            memo[id(module.joints)] = ()
    return [copy.deepcopy(module, memo) for module in originals]


class Renamer:
    """Names of a part in its scene. `body`, `joint`: old name -> new name."""

    def __init__(self, body: Callable[[str], str], joint: Callable[[str], str]) -> None:
        self.body, self.joint = body, joint

    def rename(self, element: Any, label: str) -> None:
        """Let a copied joint, contact, coupling or tendon refer to the bodies and joints of the scene.

        Raises:
            ValueError: an element of a user's own that names its bodies in another way.
        """
        if isinstance(element, StringCoupling):
            element.rename(self.body)
            return
        if isinstance(element, Coupling):
            element.rename(self.joint)
            return
        if isinstance(element, FixedTendon):
            element.places = tuple((self.joint(name), coordinate) for name, coordinate in element.places)
            return
        expected = tuple(None if name is None else self.body(name) for name in element.body_names)
        if isinstance(element, Joint):
            if element.parent is not None:
                element.parent = self.body(element.parent)
            element.child = self.body(element.child)
        elif isinstance(element, Contact):
            element.body = self.body(element.body)
            if element.other is not None:
                element.other = self.body(element.other)
        elif isinstance(element, SpatialTendon):
            element.bodies = expected
        if element.body_names != expected:
            raise ValueError(
                f"{label}: a {type(element).__name__} has the bodies {element.body_names} after they were renamed to {expected}; its "
                "`body_names` must come from the attributes of its base class"
            )
