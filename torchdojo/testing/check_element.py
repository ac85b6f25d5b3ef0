"""The suite that a user's joint, contact or coupling inherits: `check_element` builds a small mechanism around it and tries everything."""

from __future__ import annotations

import copy
import functools
import inspect
import pickle
from collections.abc import Mapping
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from torchdojo.elements.bodies import Body
from torchdojo.elements.contacts import Contact
from torchdojo.elements.coupling import Coupling
from torchdojo.elements.element import Pose
from torchdojo.elements.joints import Joint
from torchdojo.elements.tendon import Tendon
from torchdojo.gradients.reference_step import StepOutput
from torchdojo.mechanism import Mechanism
from torchdojo.native import loader
from torchdojo.parameters import PhysicalModule
from torchdojo.quaternion import cross, rotate
from torchdojo.solver.options import Backend, SolverOptions
from torchdojo.state.layout import POSITION, STATE_SIZE, VELOCITY
from torchdojo.testing import differences
from torchdojo.testing.check_gradients import compare
from torchdojo.testing.comparison import Comparison
from torchdojo.testing.conditioning import step_problem

__all__ = ["Check", "ElementReport", "check_element"]

KINDS: dict[type[PhysicalModule], str] = {Joint: "joints", Contact: "contacts", Coupling: "couplings", Tendon: "tendons"}
STATES = 2
GAPS = (1e-4, 0.05)  # [m] at which the states of a contact start: within reach of a step, and in flight
NEAR_LIMIT = 1e-3  # [m, rad] from a joint limit, at which its states start
REACH = 20  # Newton steps toward the gap of a contact
DIRECTIONS = 3


class Check(NamedTuple):
    """The measured value of a check, and the largest value that it allows."""

    value: float
    allowed: float


class ElementReport(NamedTuple):
    """One entry per check of an element, None where it does not apply.

    coordinates: of joints with coordinates, `displace` against `coordinates` and `constraint` [m, rad].
    momentum: linear and angular impulse that the element exerts on all its bodies together, the world included, relative to its impulses.
        Contacts with the world only push on their body, and are left out.
    batch: next states of several environments together and one by one.
    vmap: the same, with a value of every parameter per environment.
    copies: next states of copies and of unpickled mechanisms; they are the same to the last bit.
    float32: next state in single precision, at a larger kappa, against that in double precision.
    gradients: with respect to the state, the input and the element's own parameters, along random directions, against differences.
    kernel: next state of the kernel against the reference, where the element is built in.
    fields: how many fields accept numbers that are not finite.
    """

    coordinates: Check | None
    momentum: Check | None
    batch: Check | None
    vmap: Check | None
    copies: Check | None
    float32: Check | None
    gradients: Check | None
    kernel: Check | None
    fields: Check | None


def check_element(
    element: Joint | Contact | Coupling | Tendon, *, joints: Mapping[str, Joint] | None = None, z: Tensor | None = None, seed: int = 0
) -> ElementReport:
    """Try everything that an element has to do in a mechanism, at several random states next to where it acts.

    The mechanism has the bodies that the element names, of different masses and inertias, at h = 0.01 s. A joint starts near its assembled
    configuration and its limits, a contact near touching, with a velocity that slides and approaches.

    Args:
        element: a joint, contact, coupling or tendon, built in or written by a user; it is copied, and stays as it is.
        joints: further joints by name, such as the joints that a coupling or a tendon names.
        z: states to use in place of random ones, (n, 13 nb), n >= 2, bodies in the order in which elements name them.

    Returns:
        What each check measured and allows (`ElementReport`).

    Raises:
        AssertionError: a check that fails. It names the check, what it got and what is allowed.
        ValueError: a contact for which no state near touching is found; then give z.
    """
    trial = _Trial(element, joints or {}, z, seed)
    results: dict[str, Check | None] = {}
    for name in ElementReport._fields:
        try:
            results[name] = check = getattr(trial, name)()
        except Exception as error:
            raise AssertionError(f"check_element: {name}: got {type(error).__name__}: {error}; allowed: no error") from error
        if check is not None and not check.value <= check.allowed:
            meaning = inspect.getdoc(ElementReport) or ""  # from Python 3.13 on, __doc__ has no indentation
            text = " ".join(meaning.partition(f"\n{name}: ")[2].partition(".")[0].split())
            raise AssertionError(
                f"check_element: {name}: got {check.value:.3g}; allowed: {check.allowed:.3g} for {type(element).__name__} ({text})"
            )
    return ElementReport(**results)


class _Trial:
    """An element in a mechanism of its own, and states of it."""

    def __init__(self, element: PhysicalModule, joints: Mapping[str, Joint], z: Tensor | None, seed: int) -> None:
        kind = next((word for cls, word in KINDS.items() if isinstance(element, cls)), None)
        if kind is None:
            raise TypeError(f"check_element: got {type(element).__name__}; allowed: a Joint, a Contact, a Coupling or a Tendon")
        self.element = copy.deepcopy(element).to(torch.float64)
        modules: dict[str, dict[str, Any]] = {word: {} for word in KINDS.values()}
        modules["joints"] |= {name: copy.deepcopy(joint).to(torch.float64) for name, joint in joints.items()}
        modules[kind]["element"] = self.element
        named = [getattr(module, "body_names", ()) for part in modules.values() for module in part.values()]
        names = list(dict.fromkeys(name for group in named for name in group if name is not None))
        bodies = {name: Body(1.0 / (1 + i), (0.1 / (1 + i), 0.12 / (1 + i), 0.15 / (1 + i))) for i, name in enumerate(names)}
        self.options = SolverOptions(kappa=1e-6, backend=Backend.REFERENCE)
        self.mech = Mechanism(bodies, **modules, timestep=0.01, options=self.options)
        self.prefix = f"{kind}.element"
        self.generator = torch.Generator().manual_seed(seed)
        self.z = self._states() if z is None else z.detach()
        self.u = self._random(len(self.z), self.mech.num_inputs)

    def _random(self, *shape: int) -> Tensor:
        return torch.randn(*shape, generator=self.generator, dtype=torch.float64)

    def _states(self) -> Tensor:
        mech = self.mech
        q, qd = 0.3 * self._random(STATES, mech.num_coordinates), 0.5 * self._random(STATES, mech.num_coordinates)
        for entry in mech.tree_order():
            place, joint = entry.coordinates, entry.joint
            if joint.limits is None:
                continue
            lower, upper = (bound.detach() for bound in joint.limits)
            q[:, place] = torch.minimum(torch.maximum(q[:, place], lower + NEAR_LIMIT), upper - NEAR_LIMIT)
            for sign, bound, side in ((1, lower, joint.limited[0]), (-1, upper, joint.limited[1])):
                for i in side:  # the first state is about to reach it
                    q[0, place.start + i], qd[0, place.start + i] = bound[..., i] + sign * NEAR_LIMIT, -0.5 * sign
        z = mech.close_loops(mech.to_maximal(q, qd)).detach()
        return self._touching(z) if isinstance(self.element, Contact) else z

    def _touching(self, z: Tensor) -> Tensor:
        """States in which the contact is open by `GAPS`, and slides and approaches."""
        start = STATE_SIZE * list(self.mech.bodies).index(cast(Contact, self.element).body)
        position, velocity = (slice(start + part.start, start + part.stop) for part in (POSITION, VELOCITY))
        gaps = z.new_tensor(GAPS)
        slope = torch.zeros_like(z[:, position])
        for _ in range(REACH):
            leaf = z.requires_grad_()
            distance = self.mech.distances(leaf)[:, 0]
            slope = torch.autograd.grad(distance.sum(), leaf)[0][:, position]
            z = leaf.detach().clone()
            z[:, position] -= ((distance.detach() - gaps) / slope.square().sum(-1))[:, None] * slope
        gap = self.mech.distances(z)[:, 0]
        if not bool((gap - gaps).abs().max() < 1e-6):
            raise ValueError(f"check_element: found no states in which the contact is nearly closed, but gaps of {gap.tolist()} m; give z=")
        along = 0.5 * self._random(STATES, 3)
        z[:, velocity] = along - ((along * slope).sum(-1, keepdim=True) + 0.2) * slope
        return z

    def _step(self, mech: Mechanism, z: Tensor, u: Tensor, kappa: float = 1e-6) -> StepOutput:
        mech.options = SolverOptions(kappa=kappa, backend=mech.options.backend, on_failure="raise", dtype=z.dtype)
        if z.dtype != torch.float64:
            return mech.step(z, u)
        with differences.converged(mech):
            return mech.step(z, u)

    @functools.cached_property
    def out(self) -> StepOutput:
        """One step of all states."""
        return self._step(self.mech, self.z, self.u)

    @property
    def _own(self) -> list[str]:
        """Names of the element's own parameters."""
        return [name for name, _ in self.mech.named_parameters() if name.startswith(f"{self.prefix}.")]

    # -- checks, by the names of the report ----------------------------------------------------------------------------------------------

    def coordinates(self) -> Check | None:
        joint = self.element
        if not isinstance(joint, Joint) or not joint.num_coordinates:
            return None
        q, parent = 0.3 * self._random(STATES, joint.num_coordinates), Pose(self._random(STATES, 3), self._random(STATES, 4))
        parent = Pose(parent.x, parent.q / parent.q.norm(dim=-1, keepdim=True))
        child, earlier = joint.place_child((parent, parent), q, torch.zeros_like(q))
        apart = [joint.coordinates(parent, child) - q, joint.coordinates(parent, earlier) - q, joint.constraint(parent, child)]
        return Check(_worst(*apart), 1e-10)

    def momentum(self) -> Check | None:
        total, size = 0.0, 0.0
        for z, u, solution in zip(self.z, self.u, self.out.solution, strict=True):
            problem = step_problem(self.mech, z, u)
            w = self._random(1, problem.system.num_unknowns)
            moving = 6 * self.mech.num_bodies
            w[:, :moving] = solution[:moving]  # with impulses of any kind
            twists = problem.body_twists(w)
            for group, element in zip(problem.system.groups, problem.elements, strict=True):
                if group.body_index.shape[1] == 1:
                    continue
                wrench, _ = problem.element_residual(element, *problem.gather(group, w, twists))
                x, q = problem.pose.x[:, group.body_index], problem.pose.q[:, group.body_index]
                force, torque = wrench.unflatten(-1, (-1, 2, 3)).unbind(-2)
                angular = cross(x, force) + rotate(q, torque)
                total = max(total, _worst(force.sum(-2), angular.sum(-2)))
                size = max(size, _worst(force, angular))
        return Check(total / size, 1e-9) if size else None

    def batch(self) -> Check:
        single = [self._step(self.mech, z, u).z for z, u in zip(self.z, self.u, strict=True)]
        return self._apart(self.out.z, torch.stack(single))

    def vmap(self) -> Check:
        names = self._own
        values = {name: self.mech.get_parameter(name).detach() for name in names}
        count = len(self.z)
        scale = 1 + 1e-3 * torch.arange(count, dtype=torch.float64)
        varied = {name: torch.stack([value * factor for factor in scale]) for name, value in values.items()}

        def run(z: Tensor, u: Tensor, parameters: dict[str, Tensor]) -> Tensor:
            return cast(Tensor, torch.func.functional_call(self.mech, parameters, (z, u)))

        with differences.converged(self.mech):
            mapped = torch.func.vmap(run)(self.z, self.u, varied)
            single = [run(self.z[i], self.u[i], {name: value[i] for name, value in varied.items()}) for i in range(count)]
        return self._apart(mapped, torch.stack(single))

    def copies(self) -> Check:
        others = [copy.deepcopy(self.mech), pickle.loads(pickle.dumps(self.mech))]
        return Check(max(_worst(self._step(other, self.z, self.u).z - self.out.z) for other in others), 0.0)

    def float32(self) -> Check:
        double = self._step(self.mech, self.z, self.u, kappa=1e-4).z
        single = self._step(copy.deepcopy(self.mech), self.z.float(), self.u.float(), kappa=1e-4).z
        if single.dtype != torch.float32:
            raise TypeError(f"the next state is {single.dtype}")
        # Velocities are impulses over masses of a kilogram and less; float32 solves for impulses to 1e-5.
        return self._apart(single.double(), double, 1e-2)

    def gradients(self) -> Check:
        names = [name for name in self._own if self.mech.get_parameter(name).numel()]
        with differences.converged(self.mech, grad_kappa=None):
            compared = Comparison("check_element", self.mech, self.z[0], self.u[0], None, seed=0)
            report = compare(compared, {"parameters": names} if names else {}, DIRECTIONS)
        return Check(report.max_relative_error, 1e-5)

    def kernel(self) -> Check | None:
        if self.mech.backends.program is None or not loader.available():
            return None
        native = copy.deepcopy(self.mech)
        native.options = SolverOptions(backend=Backend.NATIVE)
        return self._apart(self._step(native, self.z, self.u).z, self.out.z)

    def fields(self) -> Check | None:
        accepted, filled = 0, [name for name in self.element.fields if getattr(self.element, name).numel()]
        for name in filled:
            other = copy.deepcopy(self.element)
            try:
                setattr(other, name, torch.full_like(getattr(other, name), torch.nan))
            except (ValueError, TypeError):
                continue
            accepted += 1
        return Check(accepted, 0) if filled else None

    def _apart(self, z: Tensor, other: Tensor, allowed: float = 1e-7) -> Check:
        """Difference of states, relative where they are large."""
        return Check(_worst(z - other) / max(1.0, _worst(other)), allowed)


def _worst(*values: Tensor) -> float:
    """The largest magnitude, not a number where one is not."""
    every = torch.cat([value.detach().abs().flatten() for value in values])
    return float(every.max()) if len(every) else 0.0
