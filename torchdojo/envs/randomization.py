"""Domain randomization: physical parameters of a mechanism by name, drawn for each environment."""

from __future__ import annotations

import fnmatch
import functools
import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from torchdojo.mechanism import Mechanism
from torchdojo.parameters import PhysicalModule

__all__ = ["Randomization", "Ranges"]

Ranges = tuple[float, float]


class Randomization:
    """Factors of physical parameters, uniform in a range, one for each environment and name.

    A name may be a pattern, "contacts.*.friction": all parameters that it matches have the same factor in an environment. A parameter that
    two names match has the product of both factors. Parameters have a batch dimension afterwards: (B, ...).

    All parameters but the timestep can be named. Masses and inertias are parameters of their own. A denser body needs the same factor of
    both, "bodies.torso.*".

    Args:
        mech: whose parameters become those of B environments. ranges: {name: (low, high)}. generator: draws the factors.
        shard: as in `Env`.

    Attributes:
        factors: {name: (B,)}.
    """

    def __init__(
        self, mech: Mechanism, num_envs: int, ranges: Mapping[str, Ranges], generator: torch.Generator, shard: tuple[int, int] = (0, 1)
    ) -> None:
        self.mech, self.num_envs, self.generator, self.shard = mech, num_envs, generator, shard
        parameters = {name: parameter for name, parameter in mech.named_parameters() if name != "timestep"}  # control periods are the same
        self.ranges = {name: _checked(name, value) for name, value in ranges.items()}
        self.matches = {name: _matching(name, list(parameters)) for name in ranges}
        self.nominal = {name: parameters[name].detach().clone() for names in self.matches.values() for name in names}
        self.factors: dict[str, Tensor] = {name: torch.ones(num_envs, dtype=torch.float64) for name in ranges}
        self._drawn = {parameter: [name for name, names in self.matches.items() if parameter in names] for parameter in self.nominal}
        self._stored: dict[str, nn.Parameter | None] = {}  # what this object has put into the mechanism
        self._interval = {parameter for parameter in self.nominal if self._whole_range_is_valid(parameter)}
        self.draw(torch.ones(num_envs, dtype=torch.bool))

    def draw(self, where: Tensor) -> None:
        """New factors for the environments of a mask (B,)."""
        if not self.ranges:
            return
        rank, processes = self.shard
        for name, (low, high) in self.ranges.items():
            drawn = torch.rand(processes * self.num_envs, generator=self.generator, dtype=torch.float64)
            new = low + (high - low) * drawn[rank * self.num_envs :][: self.num_envs]
            self.factors[name] = torch.where(where, new, self.factors[name])
        self._apply()

    @property
    def in_place(self) -> bool:
        """Whether later draws write into the same tensors, without a check of what they write."""
        return self._interval == set(self.nominal)

    def _whole_range_is_valid(self, parameter: str) -> bool:
        """Whether the module takes both ends of the range as they are, and so what lies between: then later draws are not checked."""
        path, _, field = parameter.rpartition(".")
        module = self.mech.get_submodule(path)
        if not path or not isinstance(module, PhysicalModule):  # numbers of the mechanism itself are in graphs as they are, uncopied
            return False
        for end in (0, 1):
            value = self.nominal[parameter] * math.prod(self.ranges[name][end] for name in self._drawn[parameter])
            try:
                if not torch.equal(module.check_field(field, value), value):
                    return False
            except ValueError:
                return False
        return True

    def _apply(self) -> None:
        for parameter, value in self.nominal.items():
            product = functools.reduce(torch.mul, [self.factors[name] for name in self._drawn[parameter]])
            path, _, field = parameter.rpartition(".")
            module, new = self.mech.get_submodule(path), value * product.reshape(-1, *[1] * value.ndim)
            stored = self._stored.get(parameter)
            if stored is not None and stored is module._parameters.get(field) and not stored.requires_grad:
                with torch.no_grad():
                    stored.copy_(new)
                continue
            setattr(module, field, new)
            self._stored[parameter] = module._parameters.get(field) if parameter in self._interval else None

    def state_dict(self) -> dict[str, Tensor]:
        """The factors."""
        return {name: factor.clone() for name, factor in self.factors.items()}

    def load_state_dict(self, given: Mapping[str, Tensor]) -> None:
        """Use the factors of a `state_dict`.

        Raises:
            ValueError: those of other names or another number of environments.
        """
        if list(given) != list(self.factors) or any(len(factor) != self.num_envs for factor in given.values()):
            raise ValueError(
                f"randomize: got factors of {list(given)}; allowed: of {list(self.factors)}, each for {self.num_envs} environments"
            )
        if given:
            self.factors = {name: factor.clone() for name, factor in given.items()}
            self._apply()


def _checked(name: str, value: Any) -> Ranges:
    allowed = "a pair (low, high) of finite factors, 0 <= low <= high"
    try:
        low, high = (float(bound) for bound in value)
    except (TypeError, ValueError) as error:
        raise ValueError(f"randomize[{name!r}]: got {value!r}; allowed: {allowed}") from error
    if not (0 <= low <= high and math.isfinite(high)):
        raise ValueError(f"randomize[{name!r}]: got {value!r}; allowed: {allowed}")
    return low, high


def _matching(name: str, names: list[str]) -> list[str]:
    matched = fnmatch.filter(names, name)
    if not matched:
        near = [other for other in names if other.rsplit(".", 1)[-1] == name.rsplit(".", 1)[-1]] or names
        raise ValueError(
            f"randomize: no parameter {name!r}; there are, among {len(names)}: {', '.join(near[:12])}; patterns such as "
            "'contacts.*.friction' match several"
        )
    return matched
