"""Corrections: a small network, trained through the step, adds the forces or distances that a mechanism lacks.

    model = ResidualWrench(cube_model(dt, ("friction",)))
    loss = WindowLoss(model, training)          # as for the parameters alone; any optimizer of torch
    open_loop(model, validation)                # against open_loop of the pure model, on throws held back

In a description of a fit, the key `residual` of a stage asks for a network (`Residual`; configs/residual_cube.yaml). The literature calls
this residual physics.

A network sees each body in the body's own frame, so that place and heading of a throw make no difference. Its output is a wrench, or an
addition to the signed distances of the body's contacts. The wrench follows Zeng et al. 2020, "TossingBot", and for contact Ajay et al.
2018. The distances follow Pfrommer, Halm and Posa 2020, "ContactNets".
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from torch import Tensor, nn

from torchdojo import quaternion as quat
from torchdojo.elements.bodies import Body
from torchdojo.elements.contact import Contact
from torchdojo.engine.backend import Stepper
from torchdojo.gradients.request import StepInputs
from torchdojo.identification.parameters import ParametricMechanism
from torchdojo.mechanism import StepOutput, Trajectory
from torchdojo.state.layout import ORIENTATION, STATE_SIZE

__all__ = ["CorrectedMechanism", "Residual", "ResidualDistance", "ResidualWrench"]


class _Corrected(Stepper):
    """The steps of a `CorrectedMechanism` with the parameters `raw`, as a rollout takes them."""

    def __init__(self, model: CorrectedMechanism, raw: Tensor | None) -> None:
        self.structure, self.model, self.raw = model.mechanism, model, raw

    def step(self, given: StepInputs) -> StepOutput:
        return self.model.step(given.z, self.raw, u=given.u, warm_start=given.warm)


class CorrectedMechanism(ParametricMechanism):
    """A `ParametricMechanism` whose every step a network corrects. `ResidualWrench` and `ResidualDistance` say what it corrects.

    The last layer starts at zero, so that an untrained network changes nothing. Optimizers of torch train it; `gauss_newton` moves the
    parameters of the mechanism alone and leaves the network as it is.

    Args:
        model: is copied. hidden: widths of the hidden layers. inputs, outputs: numbers per body or contact.
        units: divisors of the inputs, and meaning of an output of 1, by name.
    """

    def __init__(self, model: ParametricMechanism, hidden: Sequence[int], inputs: int, outputs: int, units: Mapping[str, float]) -> None:
        nn.Module.__init__(self)
        self.__dict__.update({key: value for key, value in copy.deepcopy(model).__dict__.items()})
        self.hidden, self.units = list(hidden), dict(units)
        layers = list[nn.Module]()
        for width in hidden:
            layers += nn.Linear(inputs, width), nn.Tanh()
            inputs = width
        last = nn.Linear(inputs, outputs)
        nn.init.zeros_(last.weight)
        nn.init.zeros_(last.bias)
        self.network = nn.Sequential(*layers, last).double()

    def correct(self, z: Tensor) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """At states z (..., 13 nb): arguments of `Mechanism.step`, and additions to fields, by path."""
        raise NotImplementedError

    def step(self, z: Tensor, raw: Tensor | None = None, **kwargs: Any) -> StepOutput:
        """`Mechanism.step` with these parameters and the network's correction."""
        arguments, added = self.correct(z)
        return cast(StepOutput, self.call("step", z, raw=raw, added=added, **arguments, **kwargs))

    def rollout(self, z: Tensor, steps: int, raw: Tensor | None = None, u: Tensor | None = None) -> Trajectory:
        u = z.new_zeros(steps, self.mechanism.num_inputs) if u is None else u
        return _Corrected(self, raw).rollout(StepInputs(z, u))

    @property
    def description(self) -> Residual:
        """The network as plain values, from which it can be built again."""
        kind = next(name for name, cls in KINDS.items() if isinstance(self, cls))
        weights = {name: weight.tolist() for name, weight in self.network.state_dict().items()}
        return Residual(kind=kind, hidden=self.hidden, units=self.units, weights=weights)


class ResidualWrench(CorrectedMechanism):
    """An external wrench on every body, from the direction of gravity, its velocities and its height, all in the body frame.

    Args:
        model, hidden: as in `CorrectedMechanism`.
        force, torque: meaning of an output of 1 [N, N·m]; default: a tenth of the mean weight of the bodies, and this force at 5 cm.
        speed, spin, height: divisors of the inputs [m/s, rad/s, m].
    """

    def __init__(
        self,
        model: ParametricMechanism,
        hidden: Sequence[int] = (32, 32),
        *,
        force: float | None = None,
        torque: float | None = None,
        speed: float = 1.0,
        spin: float = 10.0,
        height: float = 0.1,
    ) -> None:
        with torch.no_grad():
            masses = torch.stack([cast(Body, body).mass.mean() for body in model.mechanism.bodies.values()])
            weight = float(masses.mean() * torch.linalg.vector_norm(model.mechanism.gravity))
        force = 0.1 * weight if force is None else force
        torque = 0.05 * force if torque is None else torque
        super().__init__(model, hidden, 10, 6, {"force": force, "torque": torque, "speed": speed, "spin": spin, "height": height})

    def wrench(self, z: Tensor) -> Tensor:
        """Force (world frame) and torque (body frame) on each body at states z (..., 13 nb), (..., 6 nb) [N, N·m]."""
        x, v, q, omega = z.unflatten(-1, (-1, STATE_SIZE)).split((3, 3, 4, 3), dim=-1)
        units = self.units
        down = quat.inverse_rotate(q, z.new_tensor((0.0, 0.0, -1.0)).expand(x.shape))
        seen = torch.cat((down, quat.inverse_rotate(q, v) / units["speed"], omega / units["spin"], x[..., 2:] / units["height"]), dim=-1)
        push, turn = self.network(seen).split(3, dim=-1)
        return torch.cat((units["force"] * quat.rotate(q, push), units["torque"] * turn), dim=-1).flatten(-2)

    def correct(self, z: Tensor) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        return {"wrench": self.wrench(z)}, {}


class ResidualDistance(CorrectedMechanism):
    """An addition to the signed distance between each contact point and the half-space below: the shape of the body near the point.

    Inputs are the place of the point on the body and the direction of the half-space, at the beginning of a step. Both are in the body
    frame. The point at which forces act stays.

    Args:
        model, hidden: as in `CorrectedMechanism`.
        length: meaning of an output of 1 [m].

    Raises:
        ValueError: no contacts with half-spaces of the world.
    """

    def __init__(self, model: ParametricMechanism, hidden: Sequence[int] = (32, 32), *, length: float = 1e-3) -> None:
        super().__init__(model, hidden, 6, 1, {"length": length})
        contacts = cast(Mapping[str, Contact], self.mechanism.contacts)
        plain = {
            name: contact
            for name, contact in contacts.items()
            if contact.other is None and "offset" in contact.fields and type(contact).signed_distance is Contact.signed_distance
        }
        if not plain:
            raise ValueError(
                "ResidualDistance: the mechanism has no contact with a half-space of the world; allowed: one or more. Others have no "
                "number that could be corrected from step to step"
            )
        names = list(self.mechanism.bodies)
        self._offsets = [f"contacts.{name}.offset" for name in plain]
        self._bodies = [names.index(contact.body) for contact in plain.values()]
        self._normals = torch.stack([nn.functional.normalize(contact.normal.detach(), dim=-1) for contact in plain.values()])
        points = torch.stack([contact.point.detach() for contact in plain.values()])
        self._points = points / torch.linalg.vector_norm(points, dim=-1).max().clamp_min(1e-9)

    def distance(self, z: Tensor) -> Tensor:
        """Additions (..., contacts) [m] to the distances at states z (..., 13 nb)."""
        q = z.unflatten(-1, (-1, STATE_SIZE))[..., self._bodies, ORIENTATION]
        toward = quat.inverse_rotate(q, -self._normals.expand(*q.shape[:-1], 3))
        seen = torch.cat((toward, self._points.expand(*q.shape[:-1], 3)), dim=-1)
        return cast(Tensor, self.units["length"] * self.network(seen)[..., 0])

    def correct(self, z: Tensor) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        return {}, dict(zip(self._offsets, (-self.distance(z)).unbind(-1), strict=True))


KINDS: dict[str, type[ResidualWrench] | type[ResidualDistance]] = {"wrench": ResidualWrench, "distance": ResidualDistance}


@dataclass(frozen=True, kw_only=True)
class Residual:
    """Description of a network of corrections.

    Args:
        kind: "wrench" or "distance", for `ResidualWrench` or `ResidualDistance`. hidden: widths of its hidden layers.
        units: keywords of the class, positive numbers. weights: of a trained network, by name; None: a new network.

    Raises:
        ValueError: kinds and units that do not exist, numbers that are not positive.
    """

    kind: str = "wrench"
    hidden: list[int] = field(default_factory=lambda: [32, 32])
    units: dict[str, float] = field(default_factory=dict)
    weights: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"Residual.kind: got {self.kind!r}; allowed: {', '.join(map(repr, KINDS))}")
        if not self.hidden or min(self.hidden) < 1:
            raise ValueError(f"Residual.hidden: got {self.hidden}; allowed: a list of one or more widths, each 1 or more, as in [32, 32]")
        signature = inspect.signature(KINDS[self.kind]).parameters.values()
        units = [p.name for p in signature if p.kind is p.KEYWORD_ONLY]
        for name, value in self.units.items():
            if name not in units:
                raise ValueError(f"Residual.units: a {self.kind} has no {name}; it has: {', '.join(units)}")
            if not value > 0:
                raise ValueError(f"Residual.units: got {name}={value}; allowed: positive numbers")

    def build(self, model: ParametricMechanism, seed: int = 0) -> CorrectedMechanism:
        """`model`, corrected by this network. A network without weights is drawn with the seed.

        Raises:
            ValueError: a mechanism without anything to correct, or weights of another network.
        """
        with torch.random.fork_rng(devices=()):
            torch.manual_seed(seed)
            corrected = KINDS[self.kind](model, self.hidden, **self.units)
        if self.weights is not None:
            try:
                corrected.network.load_state_dict({name: torch.tensor(w, dtype=torch.float64) for name, w in self.weights.items()})
            except (RuntimeError, TypeError, ValueError) as error:
                raise ValueError(f"Residual.weights: not those of a network with hidden layers {self.hidden}: {error}") from error
        return corrected
