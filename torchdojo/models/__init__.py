"""Built-in mechanisms: functions that build a `Mechanism`, and a table of them with a state to start from.

`td.models.quadruped(friction=0.6)` and `td.models.make("quadruped", friction=0.6)` are the same. The numbers are those of the mechanisms of
Dojo (Howell et al. 2025; DojoEnvironments, MIT licence), and for half-cheetah, ant and humanoid those of Gymnasium (MIT licence), written
down here in our own code.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from torch import Tensor

from torchdojo.mechanism import Mechanism
from torchdojo.models import basic, locomotion
from torchdojo.models import quadruped as _quadruped
from torchdojo.models.basic import box, cartpole, npendulum, pendulum, snake, sphere
from torchdojo.models.locomotion import ant, half_cheetah, humanoid
from torchdojo.models.quadruped import quadruped

__all__ = [
    "ant",
    "box",
    "cartpole",
    "half_cheetah",
    "humanoid",
    "initial_state",
    "make",
    "names",
    "npendulum",
    "pendulum",
    "quadruped",
    "snake",
    "sphere",
]


class Model(NamedTuple):
    """build(**options) -> Mechanism; start(mechanism, batch_shape) -> z, a state worth simulating from."""

    build: Callable[..., Mechanism]
    start: Callable[[Mechanism, Sequence[int]], Tensor]


_MODELS = {
    "pendulum": Model(pendulum, basic.pendulum_start),
    "npendulum": Model(npendulum, basic.npendulum_start),
    "cartpole": Model(cartpole, basic.cartpole_start),
    "box": Model(box, basic.box_start),
    "sphere": Model(sphere, basic.sphere_start),
    "quadruped": Model(quadruped, _quadruped.quadruped_start),
    "snake": Model(snake, basic.snake_start),
    "half_cheetah": Model(half_cheetah, locomotion.half_cheetah_start),
    "ant": Model(ant, locomotion.ant_start),
    "humanoid": Model(humanoid, locomotion.humanoid_start),
}


def names() -> list[str]:
    """Names of the built-in mechanisms."""
    return list(_MODELS)


def make(name: str, **options: Any) -> Mechanism:
    """Build a mechanism by name; `options` are the keywords of `td.models.<name>`.

    Raises:
        ValueError: no mechanism of this name, or an option that it does not have.
    """
    build = _find(name).build
    allowed = list(inspect.signature(build).parameters)
    unknown = [option for option in options if option not in allowed]
    if unknown:
        raise ValueError(f"{name!r} has no option {', '.join(map(repr, unknown))}; its options: {', '.join(allowed)}")
    return build(**options)


def initial_state(name: str, mechanism: Mechanism, batch_shape: Sequence[int] = ()) -> Tensor:
    """A state worth simulating from, (*batch_shape, 13 nb): tilted pendulums, a thrown box, a standing robot.

    Args:
        name: of the model. mechanism: `make(name, ...)` with any options.

    Raises:
        ValueError: no mechanism of this name.
    """
    return _find(name).start(mechanism, tuple(batch_shape))


def _find(name: str) -> Model:
    if name not in _MODELS:
        raise ValueError(f"no built-in mechanism {name!r}; there are: {', '.join(_MODELS)}")
    return _MODELS[name]
