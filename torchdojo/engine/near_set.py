"""Steps of mechanisms whose bodies touch at near terms (elements/near_contact.py): which terms are in the slots of each environment.

A step is solved for the terms that are near at its start. Then the terms that are near at its end and were in no slot are added, and the
step is solved again, from its last solution. So no near term is left out, and the step is one continuous function of its inputs: terms
beyond the reach weigh nothing, whether they are in slots or not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from torchdojo.elements.joints import Floating
from torchdojo.elements.near_contact import NearContact
from torchdojo.engine.backend import Backend, Trajectory
from torchdojo.engine.kernel import Kernel
from torchdojo.geometry.near_terms import CROSSING, NOTHING, PASSES, REACH, all_terms, near_term
from torchdojo.gradients.reference_step import StepOutput
from torchdojo.gradients.request import Request, StepInputs
from torchdojo.gradients.transforms import forward_mode
from torchdojo.native.execution import check_status, flat_problem
from torchdojo.native.near import NearFunction, NearProblem, NearRollout
from torchdojo.native.step import differentiates
from torchdojo.parameters import broadcast_shapes, stacked, transforming, warn_user
from torchdojo.solver.options import Status
from torchdojo.state.layout import STATE_SIZE
from torchdojo.structure import Structure

__all__ = ["NearPair", "NearSteps", "forget_other_terms", "near_pairs", "search_in_torch"]

BASE = 1 << 20  # more than a shape has features
NONE = torch.tensor((float(NOTHING), 0.0, 0.0), dtype=torch.float64)  # the term of an empty slot


class NearPair(NamedTuple):
    """A pair of convex shapes: its slots, by the number of their first contact, and the numbers of both bodies (−1: the world)."""

    slots: list[NearContact]
    contact: int
    bodies: tuple[int, int]


Search = Callable[[NearPair, Tensor, Tensor], tuple[Tensor, Tensor]]


def near_pairs(structure: Structure) -> list[NearPair]:
    """The pairs of a mechanism that touch at near terms, in the order of their first contacts."""
    number = {name: i for i, name in enumerate(structure.bodies)}
    pairs: dict[tuple[object, ...], NearPair] = {}
    for i, contact in enumerate(structure.contacts.values()):
        if isinstance(contact, NearContact):
            key = (contact.body, contact.other, *map(id, contact.shapes))
            bodies = number[contact.body], -1 if contact.other is None else number[contact.other]
            pairs.setdefault(key, NearPair([], i, bodies)).slots.append(contact)
    return list(pairs.values())


class NearSteps(Backend):
    """The steps of a request, by the backend that `select` gives for it once the slots have their terms.

    search: (pair, states (N, 13 nb), reach (N,) [m]) -> the nearest terms (N, slots, 3), and how many there are (N,).
    """

    def __init__(self, structure: Structure, request: Request, pairs: list[NearPair], select: Callable[[Request], Backend], search: Search):
        super().__init__(structure, (), request)
        self.pairs, self._select, self._search = pairs, select, search
        self._overflow = torch.zeros(0, dtype=torch.bool)  # which environments (N,) have more terms than slots, in the step of now

    def step(self, given: StepInputs) -> StepOutput:
        """One step. The slots keep its terms, for its derivatives and for the next step.

        The status of an environment with more near terms of a pair than slots is `MAX_ITERATIONS`, and a warning names the pair.

        Raises:
            RuntimeError: values are hidden by `torch.func` or `torch.compile`.
        """
        _check_seen()
        path = self._in_kernel(given._replace(u=given.u.unsqueeze(-2)), False)
        if path is not None:
            z, _, impulses, status, iterations, substeps, w = path
            counts = (count.select(-1, 0) for count in (status, iterations, substeps))
            status, iterations, substeps = counts
            after = z.select(-2, 1)
            # Backward keeps the trajectory, and callers may write to theirs.
            after = after.clone() if after.requires_grad else after
            return StepOutput(after, impulses.select(-2, 0), status, iterations, w.select(-2, 0), substeps)
        return self._step(given)

    def rollout(self, given: StepInputs, keep_solutions: bool = False) -> Trajectory:
        _check_seen()
        path = self._in_kernel(given, keep_solutions)
        return super().rollout(given, keep_solutions) if path is None else path

    def _in_kernel(self, given: StepInputs, keep_solutions: bool) -> Trajectory | None:
        """All steps of u (..., T, nu) in one call of the kernel; None where it does not have them, or their derivatives."""
        z, u, wrench, warm = given
        lead, slots = z.shape[:-1], [slot for slot in self.structure.contacts.values() if isinstance(slot, NearContact)]
        forget_other_terms(slots, lead)
        kernel = self._select(self.request)
        if not isinstance(kernel, Kernel) or forward_mode() or self.request.grad_kappa is not None or not z.numel() or not u.shape[-2]:
            return None
        parameters = kernel.parameters
        graph = torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in (z, u, wrench))
        if (torch.is_grad_enabled() and parameters.requires_grad) or (graph and not differentiates(self.request)):
            return None
        if broadcast_shapes(lead, parameters.batch, u.shape[:-2], *([] if wrench is None else [wrench.shape[:-1]])) != lead:
            return None

        def rows(tensor: Tensor, events: int) -> Tensor:
            event = tensor.shape[tensor.ndim - events :]
            return tensor.expand(*lead, *event).reshape(lead.numel(), *event).contiguous()

        data = rows(z, 1), rows(u, 2), None if wrench is None else rows(wrench, 1)
        problem = NearProblem(
            program=kernel.program,
            request=self.request,
            packed=parameters.rows(lead)[1],
            z=data[0].detach(),
            u=data[1].detach(),
            wrench=None if data[2] is None else data[2].detach(),
            warm=None if warm is None else rows(warm.detach(), 1),
            slots=len(slots),
            known=slots[0].term.shape[:-1] == lead,
            free=wrench is None and self._only_falls(),
        )
        out = NearRollout(*NearFunction.apply(problem, *data)) if graph else problem.solve(keep_solutions)
        if bool(out.status.any()):
            check_status(
                flat_problem(kernel.program, self.request, parameters.tensors, parameters, z, u, given.forces, None)[0], out.status
            )
            for contact, terms in out.overflow[out.overflow[:, 0] >= 0][:1].tolist():
                _warn_of_overflow(next(pair for pair in self.pairs if pair.contact == contact), terms)
        _keep(slots, out.terms[:, -1].unflatten(0, lead) if lead else out.terms[0, -1])
        w = out.w.detach() if keep_solutions else out.w[:, -1:].detach()
        states, impulses, status, iterations, substeps, w = (t.reshape(*lead, *t.shape[1:]) for t in (*out[:2], *out[3:6], w))
        return Trajectory(states, u.expand(*lead, *u.shape[-2:]), impulses, status, iterations, substeps, w)

    def _step(self, given: StepInputs) -> StepOutput:
        """`step` by calls of another backend."""
        z = given.z
        self._overflow = torch.zeros(z.shape[:-1].numel(), dtype=torch.bool)
        lead, flat = z.shape[:-1], z.detach().reshape(-1, z.shape[-1])
        found = [self._search(pair, flat, REACH + _travel(pair, flat, self.structure.timestep))[0] for pair in self.pairs]
        known = [_present(pair, lead) for pair in self.pairs]
        chosen = [_begin(old, new, given.warm is None) for old, new in zip(known, found, strict=True)]
        fresh, cold, bad = given.warm is None, given.warm is None, torch.ones(len(flat), dtype=torch.bool)
        restarted = False
        for _ in range(PASSES):
            if cold:
                # Without a start, impulses begin at gaps wider than the reach, where they would act on nothing.
                given = given._replace(warm=self._solve(given, chosen, 0.0).solution.detach())
            out = self._solve(given, chosen, 1.0)
            unsound = self._unsound(given, out).reshape(-1)
            astray = (out.status != int(Status.SUCCESS)) | (out.substeps > 1) | unsound.reshape(lead)
            if bool(astray.any()) and not (cold and fresh):
                # The start led astray: once more without it, and without the terms that were near before. Terms that a pass has added
                # since such a restart stay, lest they be found and dropped again and again.
                if not restarted:
                    chosen = [_merge(old, new) for old, new in zip(chosen, found, strict=True)]
                cold = fresh = restarted = True
                given = given._replace(warm=None)
                continue
            bad = self._complete(out, chosen)
            if not bool(bad.any()):
                bad = unsound & self._free(given)
                break
            cold, given = False, given._replace(warm=out.solution.detach())
        out = out._replace(impulses=self._of_terms(out.impulses, chosen))
        bad = bad | self._overflow
        if not bool(bad.any()):
            return out
        failed = bad.reshape(lead)
        kept = torch.where(failed[..., None], z.detach(), out.z), torch.where(failed[..., None], 0.0, out.impulses)
        late = torch.where(failed, int(Status.MAX_ITERATIONS), int(Status.SUCCESS)).to(out.status)
        return out._replace(z=kept[0], impulses=kept[1], status=torch.maximum(out.status, late))

    def _free(self, given: StepInputs) -> bool:
        """Whether gravity alone gives bodies energy: no input, wrench, spring or servo, and no overlap that is undone at once."""
        return self._only_falls() and not bool(given.u.any()) and given.wrench is None

    def _only_falls(self) -> bool:
        joints = all(isinstance(joint, Floating) for joint in self.structure.named_joints().values())
        return joints and self.request.options.depenetration_speed is not None

    @torch.no_grad()
    def _unsound(self, given: StepInputs, out: StepOutput) -> Tensor:
        """Environments (...,) whose bodies got energy from nothing: another root of the equations than the motion.

        Contacts take energy, but for what they give bodies that leave an overlap. So a step of free bodies adds no more than gravity does.
        The bound is generous, and a hundred times as wide where something else may add energy; there, a step is only solved again.
        """
        bodies = list(self.structure.named_bodies().values())
        masses, inertias = stacked([body.mass for body in bodies], 0), stacked([body.inertia for body in bodies], 2)

        def kinetic(z: Tensor) -> Tensor:
            state = z.unflatten(-1, (-1, STATE_SIZE))
            v, omega = state[..., 3:6], state[..., 10:13]
            spin = (inertias @ omega[..., None]).squeeze(-1)
            return 0.5 * ((masses * (v * v).sum(-1)).sum(-1) + (omega * spin).sum((-1, -2)))

        falls = torch.linalg.vector_norm(self.structure.gravity, dim=-1) * self.structure.timestep
        leaving = self.request.options.depenetration_speed or 0.0
        bound = 4 * kinetic(given.z) + masses.sum(-1) * (8 * falls * falls + 2 * leaving**2 + 1e-3)
        return kinetic(out.z) > (1 if self._free(given) else 100) * bound

    def _of_terms(self, impulses: Tensor, chosen: list[Tensor]) -> Tensor:
        """The impulses (..., ni) with zero for those of empty slots, which act on nothing."""
        layout, contacts = self.structure.impulse_layout, self.structure.named_contacts()
        place = {id(contact): layout[f"contacts.{name}"] for name, contact in contacts.items()}
        acts = torch.ones(impulses.shape[:-1].numel(), impulses.shape[-1], dtype=torch.bool)
        for pair, terms in zip(self.pairs, chosen, strict=True):
            for slot, kind in zip(pair.slots, terms[..., 0].unbind(-1), strict=True):
                acts[:, place[id(slot)]] = (kind != NOTHING)[:, None]
        return torch.where(acts.reshape(impulses.shape), impulses, 0.0)

    def _solve(self, given: StepInputs, chosen: list[Tensor], fading: float) -> StepOutput:
        """A solve with these terms (N, K, 3) of each pair, where impulses fade with the gap (1) or do not (0)."""
        lead = given.z.shape[:-1]
        for pair, terms in zip(self.pairs, chosen, strict=True):
            _put(pair, terms.reshape(*lead, *terms.shape[1:]), fading)
        with torch.set_grad_enabled(torch.is_grad_enabled() and fading > 0):
            out = self._select(self.request).step(given)
        if out.z.shape != given.z.shape:
            raise ValueError(f"near contacts: got z of batch {tuple(lead)}, but inputs of {tuple(out.z.shape[:-1])}; give z that batch")
        return out

    def _complete(self, out: StepOutput, chosen: list[Tensor]) -> Tensor:
        """Which environments (N,) lack terms that are near after a step. Their slots get these."""
        end = out.z.detach().reshape(-1, out.z.shape[-1])
        incomplete = torch.zeros(len(end), dtype=torch.bool)
        solved = out.status.reshape(-1) == int(Status.SUCCESS)
        for i, pair in enumerate(self.pairs):
            terms, counts = self._search(pair, end, torch.full((len(end),), REACH, dtype=torch.float64))
            over = counts > len(pair.slots)
            if bool(over.any()):
                _warn_of_overflow(pair, int(counts.max()))
                self._overflow = self._overflow | over
            new = _keys(terms)
            lacking = ((new[:, :, None] != _keys(chosen[i])[:, None, :]).all(-1) & (new >= 0)).any(-1) & solved
            if bool(lacking.any()):
                incomplete |= lacking
                chosen[i] = torch.where(lacking[:, None, None], _merge(chosen[i], terms, True), chosen[i])
        return incomplete & ~self._overflow

    def jacobian(self, given: StepInputs, out: Tensor | None = None) -> Tensor:
        solved = self.step(given)
        return self._select(self.request).jacobian(given._replace(warm=solved.solution), out)

    def having(self, parameters: Sequence[Tensor], request: Request) -> Backend:
        raise RuntimeError("near contacts: steps with stacked parameters of their own (adaptive=, randomized gradients) are not available")


def forget_other_terms(contacts: Iterable[object], lead: torch.Size) -> None:
    """Empty the slots that have terms of another batch than that of the dimensions `lead`."""
    for slot in contacts:
        if isinstance(slot, NearContact) and slot.term.shape[:-1] not in (lead, ()):
            slot.term = NONE.clone()


def _check_seen() -> None:
    if torch.compiler.is_compiling() or transforming():
        raise RuntimeError(
            "near contacts: terms are chosen by the values of states, which torch.func and torch.compile hide; use .backward(), "
            "mech.jacobians or mech.linearize"
        )


def _warn_of_overflow(pair: NearPair, most: int) -> None:
    slot = pair.slots[0]
    warn_user(
        f"near contacts of {slot.body!r} and {slot.other or 'world'!r}: got {most} terms within {1e3 * REACH:g} mm; allowed: as many "
        f"as slots, {len(pair.slots)}, so the status of such steps is MAX_ITERATIONS; give near_contacts(..., slots={most + 2})"
    )


def _keep(slots: Sequence[NearContact], terms: Tensor) -> None:
    """Give slots their terms (..., K, 3), those of the last step, where they have others."""
    before = [slot.term for slot in slots]
    if all([term.shape == before[0].shape for term in before]) and before[0].shape == terms.shape[:-2] + terms.shape[-1:]:
        changed = (torch.stack(before, -2) != terms).any(-1).reshape(-1, len(slots)).any(0).nonzero().squeeze(-1).tolist()
    else:
        changed = list(range(len(slots)))
    for k in changed:
        slots[k].term = terms[..., k, :].contiguous()


def _present(pair: NearPair, lead: torch.Size) -> Tensor:
    """The terms that the slots have, (N, K, 3); none where they belong to another batch."""
    terms = [slot.term.detach() for slot in pair.slots]
    if any(term.shape[:-1] != lead for term in terms):
        return NONE.expand(lead.numel(), len(terms), 3)
    return torch.stack([term.reshape(-1, 3) for term in terms], 1)


def _put(pair: NearPair, terms: Tensor, fading: float) -> None:
    """Give slots their terms (..., K, 3). Slots that have them stay as they are, so that packed parameters are used again."""
    for slot, term in zip(pair.slots, terms.unbind(-2), strict=True):
        if slot.term.shape != term.shape or not torch.equal(slot.term, term):
            slot.term = term.contiguous()
        if float(slot.fading) != fading:
            slot.fading = torch.tensor(fading, dtype=torch.float64)


def _travel(pair: NearPair, z: Tensor, timestep: Tensor) -> Tensor:
    """How far points of the pair may come nearer in a step (N,) [m], at the speeds before it."""
    velocity, way = torch.zeros(len(z), 3, dtype=torch.float64), torch.zeros(len(z), dtype=torch.float64)
    for body, shape, sign in zip(pair.bodies, pair.slots[0].shapes, (1, -1), strict=True):
        if body >= 0:
            state = z[:, STATE_SIZE * body : STATE_SIZE * (body + 1)]
            extent = torch.linalg.vector_norm(shape.vertices, dim=-1).max() + shape.radius
            velocity = velocity + sign * state[:, 3:6]
            way = way + extent * torch.linalg.vector_norm(state[:, 10:13], dim=-1)
    way = way + torch.linalg.vector_norm(velocity, dim=-1)
    return way * timestep.detach().reshape(-1).expand(len(z))


def search_in_torch(pair: NearPair, z: Tensor, reach: Tensor) -> tuple[Tensor, Tensor]:
    """The search of `NearSteps` without the kernel."""
    a, b = pair.slots[0].shapes
    terms = all_terms(a, b).double()
    one = torch.tensor([1.0, 0.0, 0.0, 0.0], dtype=torch.float64)
    poses = []
    for body in pair.bodies:
        state = z[:, STATE_SIZE * body : STATE_SIZE * (body + 1)] if body >= 0 else None
        x, q = (z.new_zeros(len(z), 3), one.expand(len(z), 4)) if state is None else (state[:, :3], state[:, 6:10])
        poses.append((x[:, None].expand(-1, len(terms), 3), q[:, None].expand(-1, len(terms), 4)))
    found = near_term(a, b, poses[0], poses[1], terms.expand(len(z), -1, 3), False)
    gap = torch.where(found.possible, found.gap, torch.inf)
    near = torch.maximum(gap, found.line) < reach[:, None]  # a blended gap of lines that are far apart is no sign that they come near
    least, order = torch.where(near, gap, torch.inf).sort(dim=-1, stable=True)
    slots = len(pair.slots)
    order, least = order[:, :slots], least[:, :slots]
    chosen = torch.where(torch.isfinite(least)[..., None], terms[order], float(NOTHING))
    if chosen.shape[1] < slots:
        chosen = torch.cat((chosen, chosen.new_full((len(z), slots - chosen.shape[1], 3), float(NOTHING))), 1)
    return chosen, near.sum(-1)


def _keys(terms: Tensor) -> Tensor:
    """A number for each term (..., 3); −1 for none."""
    kind, first, second = terms.long().unbind(-1)
    return torch.where(kind < 0, -1, (kind * BASE + first) * BASE + second)


def _begin(old: Tensor, found: Tensor, cold: bool) -> Tensor:
    """The slots (N, K, 3) at the start of a step. Where none is lacking, corners that are no longer near stay, since they weigh nothing.

    Crossings do not: lines of edges that are past each other would keep bodies where they are not. Nor do they in a cold start, in which
    impulses do not fade.
    """
    before, new = _keys(old), _keys(found)
    same = before[:, :, None] == new[:, None, :]
    lacking = ((new >= 0) & ~same.any(1)).any()
    past = ((old[..., 0] == CROSSING) & ~same.any(-1)).any()
    return _merge(old, found) if cold or bool(lacking | past) else old


def _merge(old: Tensor, found: Tensor, keep: bool = False) -> Tensor:
    """The terms found (N, K, 3), each in the slot that had it before, the others in slots that are free then.

    keep: whether slots that are not needed keep their terms, too. Else they have none.
    """
    before, new = _keys(old), _keys(found)
    stays = (before[:, :, None] == new[:, None, :]).any(-1) & (before >= 0)
    fresh = (new[:, :, None] != before[:, None, :]).all(-1) & (new >= 0)
    order = (~fresh).to(torch.int8).argsort(dim=-1, stable=True)  # fresh ones first, the nearest before the others
    choice = (stays.long() * 2 + (before >= 0).long()).argsort(dim=-1, stable=True)  # slots: empty ones first, then those of other terms
    rank = torch.empty_like(choice).scatter_(-1, choice, torch.arange(choice.shape[-1]).expand_as(choice))
    taken = torch.gather(order, 1, rank.clamp_max(order.shape[-1] - 1))
    enters = torch.gather(found, 1, taken[..., None].expand_as(found))
    free = ~stays & (rank < fresh.sum(-1, keepdim=True))
    rest = old if keep else torch.where(stays[..., None], old, NONE)
    return torch.where(free[..., None], enters, rest)
