"""Steps of mechanisms whose bodies touch at near terms (elements/near_contact.py): the terms in the slots of each environment.

A step is solved for the terms that are near at its start. Then the terms that are near at its end and were in no slot are added, and the
step is solved again, from its last solution. So no near term is left out, and the step is one continuous function of its inputs: terms
beyond the reach weigh nothing, whether they are in slots or not.

Large steps may have other solutions than the motion: bodies inside or beyond each other, or with energy from nothing. Where a step finds
one of these, or none, two steps of half the length replace it, and so on down to `SolverOptions.max_halvings`. Each has terms of its own.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from torchdojo.dynamics.system import select_rows
from torchdojo.elements.joints import Floating
from torchdojo.engine.backend import Backend, Trajectory
from torchdojo.engine.kernel import Kernel
from torchdojo.engine.near_bounces import Bounces
from torchdojo.engine.near_memory import NearMemory
from torchdojo.engine.near_overlap import any_pierced
from torchdojo.engine.near_parts import Numbers, Part, StackedNumbers, Taken, TermsOfParts, check_seen, rows_of, system_of, without_terms
from torchdojo.engine.near_sizes import with_graph
from torchdojo.engine.near_slots import (
    NONE,
    NearPair,
    keys,
    merge,
    near_pairs,
    numbers,
    plain,
    present,
    put,
    reach_of_step,
    rested,
    search_in_torch,
    terms_of,
    warn_of_overflow,
)  # fmt: skip
from torchdojo.engine.reference import Reference
from torchdojo.geometry.near_terms import FADINGS, HALVES, NOTHING, PASSES, REACH
from torchdojo.gradients.batching import flatten_batch
from torchdojo.gradients.checks import check_solved
from torchdojo.gradients.reference_step import StepOutput
from torchdojo.gradients.request import Request, StepInputs
from torchdojo.gradients.transforms import forward_mode
from torchdojo.native.execution import check_status, flat_problem
from torchdojo.native.near import NearFunction, NearProblem, NearRollout
from torchdojo.native.step import differentiates
from torchdojo.parameters import broadcast_shapes
from torchdojo.solver.interior_point import Attempts
from torchdojo.solver.options import OnFailure, Status
from torchdojo.state.layout import STATE_SIZE, TANGENT_SIZE
from torchdojo.state.unknowns import NUM_DATA, TIMESTEP
from torchdojo.structure import Structure

__all__ = ["NearPair", "NearSteps", "keys", "near_pairs", "search_in_torch"]


Search = Callable[[NearPair, Tensor, Tensor], tuple[Tensor, Tensor]]


class NearSteps(Backend):
    """The steps of a request, by the backend that `select` gives for it once the slots have their terms.

    bare: the kernel with parameters that have no terms, or another backend. memory: the terms after steps of the kernel.
    search: (pair, states (N, 13 nb), reach (N,) [m]) -> the nearest terms (N, slots, 3), and how many there are (N,).
    sizes: whether sizes of shapes are differentiated. given: parameters in place of those that the mechanism has, whose
        slots then stay as they are.
    """

    def __init__(
        self,
        structure: Structure,
        request: Request,
        pairs: list[NearPair],
        select: Callable[[Request], Backend],
        bare: Callable[[Request], Backend],
        memory: NearMemory | TermsOfParts,
        search: Search,
        sizes: bool = False,
        given: StackedNumbers | None = None,
    ):
        self.structure, self.request = structure, request
        self.pairs, self._select, self._bare, self._memory, self._search, self._given = pairs, select, bare, memory, search, given
        self._sizes = sizes
        # Solves take whole steps, since halves have terms of their own. Halves come before continuation, which holds on to the terms.
        # Solves that only give a start to others may split: without that, 19 of 161 steps of a stack are taken in halves.
        options = dataclasses.replace(request.options, on_failure=OnFailure.FLAG)
        self._start = dataclasses.replace(request, options=options, raise_invalid=False)
        self._whole = dataclasses.replace(
            self._start,
            options=dataclasses.replace(options, max_halvings=0),
            budget=options.max_total_iterations,
            attempts=Attempts.FIRST,
        )
        self._chosen: list[Tensor] = []  # terms (N, K, 3) of each pair, in the present step
        self._bounces = Bounces(structure, pairs, torch.Size((0,)))
        self._taken: list[Taken] | None = None  # the parts of steps that are taken now, in their order, where they are wanted

    @functools.cached_property
    def stacked(self) -> Sequence[Tensor]:  # type: ignore[override]
        """The parameters, with empty slots."""
        return without_terms(self._bare(self.request)) if self._given is None else self._given.parameters

    def step(self, given: StepInputs) -> StepOutput:
        """One step. The slots keep its terms, for its derivatives and for the next step.

        The status of an environment with more near terms of a pair than slots is `MAX_ITERATIONS`, and a warning names the pair.

        Raises:
            RuntimeError: values are hidden by `torch.func` or `torch.compile`.
        """
        check_seen()
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
        check_seen()
        path = self._in_kernel(given, keep_solutions)
        return super().rollout(given, keep_solutions) if path is None else path

    def _in_kernel(self, given: StepInputs, keep_solutions: bool) -> Trajectory | None:
        """All steps of u (..., T, nu) in one call of the kernel; None where it does not have them, or their derivatives."""
        z, u, wrench, warm = given
        lead, memory = z.shape[:-1], self._memory
        memory.forget_others(lead)
        if self._by_sizes or forward_mode() or self.request.grad_kappa is not None or not z.numel() or not u.shape[-2]:
            return None
        known = memory.take(lead)
        kernel = self._bare(self.request)
        if not isinstance(kernel, Kernel):
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
            slots=len(memory.slots),
            known=None if known is None else known.reshape(-1, len(memory.slots)),
            free=_is_zero(wrench) and self._only_falls(),
        )
        out = NearRollout(*NearFunction.apply(problem, *data)) if graph else problem.solve(keep_solutions)
        if bool(out.status.any()):
            check_status(
                flat_problem(kernel.program, self.request, parameters.tensors, parameters, z, u, given.forces, None)[0], out.status
            )
            for contact, terms in out.overflow[out.overflow[:, 0] >= 0][:1].tolist():
                warn_of_overflow(next(pair for pair in self.pairs if pair.contact == contact), terms)
        memory.put(out.terms[:, -1].reshape(*lead, *out.terms.shape[2:]).contiguous())
        w = out.w.detach() if keep_solutions else out.w[:, -1:].detach()
        states, impulses, status, iterations, substeps, w = (t.reshape((*lead, *t.shape[1:])) for t in (*out[:2], *out[3:6], w))
        return Trajectory(states, u.expand(*lead, *u.shape[-2:]), impulses, status, iterations, substeps, w)

    def _step(self, given: StepInputs) -> StepOutput:
        """`step` by calls of another backend."""
        lead, halvings = given.z.shape[:-1], self.request.options.max_halvings
        self._chosen = self._present(lead)
        self._bounces = Bounces(self.structure, self.pairs, lead)
        if given.warm is not None and isinstance(self._select(self.request), Reference):
            given = given._replace(warm=rested(self.structure, self.pairs, given.warm.detach(), self.request.options.kappa))
        part = Part(lead, torch.arange(lead.numel()), 1.0, torch.full((lead.numel(),), self._budget))
        out = self._part(part, given, halvings)
        if self.request.raises_invalid and bool((out.status == int(Status.INVALID_INPUT)).any()):
            self._select(self.request).step(given)  # raises
        if self.request.options.on_failure is OnFailure.RAISE:
            check_solved(out.status)
        if self._given is not None:
            terms = torch.cat(self._bounces.flagged(self._chosen), 1)
            self._memory.put(numbers(terms[:, torch.cat(self._places).argsort()]).reshape(*lead, -1))
        return out

    @functools.cached_property
    def _places(self) -> list[Tensor]:
        """Places of the slots of each pair among all slots as they are declared."""
        number = {id(slot): i for i, slot in enumerate(self._memory.slots)}
        return [torch.tensor([number[id(slot)] for slot in pair.slots]) for pair in self.pairs]

    def _present(self, lead: torch.Size) -> list[Tensor]:
        """The terms (N, K, 3) that the slots of each pair have before a step."""
        if self._given is None:
            return [present(pair, lead).clone() for pair in self.pairs]
        terms = self._memory.take(lead)
        if terms is None:
            return [NONE.repeat(lead.numel(), len(pair.slots), 1) for pair in self.pairs]
        terms = plain(terms_of(terms.reshape(lead.numel(), -1)))
        return [terms[:, places] for places in self._places]

    @property
    def _by_sizes(self) -> bool:
        """Whether derivatives by sizes are asked for: then solves have no graph, and each step gets one once it is solved."""
        return self._sizes and torch.is_grad_enabled()

    @property
    def _budget(self) -> int:
        return PASSES * self.request.options.max_total_iterations

    @property
    def _budget_of_halves(self) -> int:
        return HALVES * self.request.options.max_total_iterations

    def _part(self, part: Part, given: StepInputs, halvings: int) -> StepOutput:
        """A step of a part, in halves where it fails."""
        out, overflow = self._attempt(part, given)
        failed = (out.status != int(Status.SUCCESS)).reshape(-1) & ~overflow
        if part.share < 1:
            failed &= out.iterations.reshape(-1) < part.most
        if self._taken is not None:
            good = (out.status == int(Status.SUCCESS)).nonzero().squeeze(-1)
            terms = [pair_terms.clone() for pair_terms in self._bounces.flagged(self._chosen)]
            self._taken.append(Taken(part.at(good), rows_of(given, good), out.solution[good].detach(), terms))
        if not halvings or not bool(failed.any()) or not self._has_parts():
            return out
        index, lead, n = failed.nonzero().squeeze(-1), given.z.shape[:-1], len(part.rows)
        made = out.iterations.reshape(n)[index]
        most = torch.full_like(made, self._budget_of_halves) if part.share == 1 else part.most[index] - made
        both = self._halves(part.at(index)._replace(most=most), rows_of(given, index), halvings - 1)
        both = both._replace(iterations=made + both.iterations)
        if self._given is None:
            self._put(part.lead, self._chosen, 1.0)
        flat = (t.reshape(n, *t.shape[len(lead) :]).index_copy(0, index, new) for t, new in zip(out, both, strict=True))
        return StepOutput(*(t.reshape((*lead, *t.shape[1:])) for t in flat))

    def _halves(self, part: Part, given: StepInputs, halvings: int) -> StepOutput:
        """Two steps of half the length in place of one. Only environments whose first half succeeds take the second."""
        half = part._replace(share=0.5 * part.share)
        z = given.z
        for terms in self._chosen:
            terms[half.rows] = NONE
        first = self._part(half, given, halvings)
        good = (first.status == int(Status.SUCCESS)).nonzero().squeeze(-1)
        if not len(good):
            return first
        acted = [terms[half.rows[good]] for terms in self._chosen]
        rest = half.at(good)._replace(most=half.most[good] - first.iterations[good])
        second = self._part(rest, rows_of(given._replace(z=first.z), good)._replace(warm=first.solution[good]), halvings)
        self._bounces.keep_acting(rest.rows, acted, first.impulses[good].detach(), self._chosen, self.request.options.kappa)
        solved = second.status == int(Status.SUCCESS)
        return StepOutput(
            first.z.index_copy(0, good, torch.where(solved[:, None], second.z, z[good].detach())),
            first.impulses.index_copy(0, good, torch.where(solved[:, None], first.impulses[good] + second.impulses, 0.0)),
            first.status.index_copy(0, good, second.status),
            first.iterations.index_add(0, good, second.iterations),
            first.solution.index_copy(0, good, second.solution),
            first.substeps.index_copy(0, good, torch.where(solved, first.substeps[good] + second.substeps, 1)),
        )

    def _attempt(self, part: Part, given: StepInputs) -> tuple[StepOutput, Tensor]:
        """A step of a part at once, flagged where it finds no motion, and whether environments (n,) have more terms than slots."""
        z = given.z
        lead, flat = z.shape[:-1], z.detach().reshape(-1, z.shape[-1])
        timestep = part.share * part.of(self._numbers.timestep.detach(), 0).expand(len(flat))
        nearest = [self._search(pair, flat, reach_of_step(pair, flat, timestep))[0] for pair in self.pairs]
        chosen = [merge(previous[part.rows], new) for previous, new in zip(self._chosen, nearest, strict=True)]
        self._bounces.forget(part.rows)
        fresh, cold, bad = given.warm is None, given.warm is None, torch.ones(len(flat), dtype=torch.bool)
        restarted, bounced, overflow, made = False, False, torch.zeros_like(bad), torch.zeros(len(flat), dtype=torch.int64)
        for _ in range(PASSES):
            if cold:
                # Without a start, impulses begin at gaps wider than the reach, where they would act on nothing.
                start = self._solve(given, chosen, 0.0, part)
                made += start.iterations.reshape(-1)
                given = given._replace(warm=start.solution.detach())
                if restarted:
                    given, more = self._narrow(given, start, chosen, part)
                    made += more
            out = self._solve(given, chosen, 1.0, part)
            made += out.iterations.reshape(-1)
            solved = (out.status == int(Status.SUCCESS)).reshape(-1)
            unsound = self._unsound(given, out, part)
            through = any_pierced(self.pairs, flat, out.z, solved & ~unsound, timestep)
            if bool((~solved | unsound | through).any()) and not (cold and fresh) and bool((made < part.most).all()):
                # The start led astray: once more without it, and without the terms that were near before. Terms that a pass has added
                # since such a restart stay, lest they be found and dropped again and again.
                if not restarted:
                    chosen = [merge(old, new) for old, new in zip(chosen, nearest, strict=True)]
                cold = fresh = restarted = True
                given = given._replace(warm=None)
                continue
            lacks = self._complete(out, chosen, overflow)
            bad = lacks | through | (unsound & self._free(given))
            if not bool((lacks & (made < part.most)).any()):
                if bounced:
                    break
                # The step is solved once more, with the law of restitution for terms that bear an impact.
                bounced = True
                impact = self._bounces.begin(part.rows, out.impulses.detach().reshape(len(flat), -1), chosen, flat, timestep)
                impact &= solved & ~bad
                bad |= impact
                if not bool((impact & (made < part.most)).any()):
                    break
            cold, given = False, given._replace(warm=out.solution.detach())
        for kept, terms in zip(self._chosen, chosen, strict=True):
            kept[part.rows] = terms
        if self._by_sizes:
            out = with_graph(lambda good: self._of_part(good, self._chosen, 1.0), part, given, out)
        out = out._replace(iterations=made.reshape(lead), impulses=self._of_terms(out.impulses, chosen))
        failed = (bad | overflow).reshape(lead)
        if not bool(failed.any()):
            return out, overflow
        kept_z, none = torch.where(failed[..., None], z.detach(), out.z), torch.where(failed[..., None], 0.0, out.impulses)
        late = torch.where(failed, int(Status.MAX_ITERATIONS), int(Status.SUCCESS)).to(out.status)
        return out._replace(z=kept_z, impulses=none, status=torch.maximum(out.status, late)), overflow

    def _put(self, lead: torch.Size, terms: list[Tensor], fading: float) -> None:
        """Give all slots of the batch these terms (N, K, 3), in which those that bounce say so."""
        for pair, pair_terms in zip(self.pairs, self._bounces.flagged(terms), strict=True):
            put(pair, pair_terms.reshape(*lead, *pair_terms.shape[1:]), fading)

    @torch.no_grad()
    def _narrow(self, given: StepInputs, start: StepOutput, chosen: list[Tensor], part: Part) -> tuple[StepInputs, Tensor]:
        """Starts closer to the faded solution, from solves with longer reaches, and the iterations (n,) that these took.

        Where one fails, the solution before it stays the start.
        """
        assert given.warm is not None
        warm, good = given.warm, start.status == int(Status.SUCCESS)
        made = torch.zeros_like(start.iterations)
        for fading in FADINGS:
            out = self._solve(given._replace(warm=warm), chosen, fading, part)
            made += torch.where(good, out.iterations, 0)
            good &= out.status == int(Status.SUCCESS)
            warm = torch.where(good[..., None], out.solution, warm)
        return given._replace(warm=warm), made.reshape(-1)

    def _of_terms(self, impulses: Tensor, chosen: list[Tensor]) -> Tensor:
        """The impulses (..., ni), with zeros for empty slots, which act on nothing."""
        layout, contacts = self.structure.impulse_layout, self.structure.named_contacts()
        place = {id(contact): layout[f"contacts.{name}"] for name, contact in contacts.items()}
        acts = torch.ones(impulses.shape[:-1].numel(), impulses.shape[-1], dtype=torch.bool)
        for pair, terms in zip(self.pairs, chosen, strict=True):
            for slot, kind in zip(pair.slots, terms[..., 0].unbind(-1), strict=True):
                acts[:, place[id(slot)]] = (kind != NOTHING)[:, None]
        return torch.where(acts.reshape(impulses.shape), impulses, 0.0)

    def _free(self, given: StepInputs) -> bool:
        """Whether gravity alone gives bodies energy: no input, wrench, spring or servo, and no overlap that is undone at once."""
        return self._only_falls() and not bool(given.u.any()) and _is_zero(given.wrench)

    def _only_falls(self) -> bool:
        joints = all(isinstance(joint, Floating) for joint in self.structure.named_joints().values())
        pulled = len(self.structure.named_couplings()) + len(self.structure.named_tendons())
        return joints and not pulled and self.request.options.depenetration_speed is not None

    def _unsound(self, given: StepInputs, out: StepOutput, part: Part) -> Tensor:
        """Whether bodies of environments (n,) got energy from nothing: another root of the equations than the motion.

        The bound is a hundred times as wide where something else may add energy; there, a step is only solved again.
        """
        leaving = self.request.options.depenetration_speed or 0.0
        return self._numbers.gain(part, given.z, out.z, leaving, 1 if self._free(given) else 100)

    def _solve(self, given: StepInputs, chosen: list[Tensor], fading: float, part: Part | None = None) -> StepOutput:
        """A solve with these terms (n, K, 3) of each pair, where impulses fade with the gap (1) or do not (0)."""
        if part is not None and part.share < 1:
            terms = [previous.index_copy(0, part.rows, new) for previous, new in zip(self._chosen, chosen, strict=True)]
            with torch.set_grad_enabled(torch.is_grad_enabled() and fading > 0 and not self._sizes):
                return self._of_part(part, terms, fading).step(given)
        lead = given.z.shape[:-1]
        with torch.set_grad_enabled(torch.is_grad_enabled() and fading > 0 and not self._sizes):
            out = self._backend(lead, chosen, fading).step(given)
        if out.z.shape != given.z.shape:
            raise ValueError(f"near contacts: got z of batch {tuple(lead)}, but inputs of {tuple(out.z.shape[:-1])}; give z that batch")
        return out

    def _has_parts(self) -> bool:
        return isinstance(self._select(self._whole), Kernel | Reference)

    @property
    def _numbers(self) -> Numbers:
        return Numbers.of_structure(self.structure) if self._given is None else self._given.numbers

    def _backend(self, lead: torch.Size, terms: list[Tensor], fading: float) -> Backend:
        """The backend of solves in which the slots of a batch have these terms (N, K, 3)."""
        request = self._whole if fading else self._start
        if self._given is not None:
            return self._given.backend(request, lead, self._bounces.flagged(terms), fading)
        self._put(lead, terms, fading)
        return self._select(request)

    def _of_part(self, part: Part, terms: list[Tensor], fading: float) -> Backend:
        """The backend that takes steps of a part, where the slots of the batch have these terms (N, K, 3)."""
        backend = self._backend(part.lead, terms, fading)
        system = system_of(backend)
        nb = len(self.structure.named_bodies())
        data = [self.structure.gravity.new_zeros(*part.lead, size) for size in (STATE_SIZE * nb, system.num_inputs, 6 * nb)]
        flat, batch = flatten_batch(system.step_specs(), [*data, *backend.stacked])
        parameters = select_rows(flat[NUM_DATA:], part.rows)
        parameters[TIMESTEP] = part.share * parameters[TIMESTEP]
        return backend.having(parameters, backend.request.select(batch, part.rows))

    def _complete(self, out: StepOutput, chosen: list[Tensor], overflow: Tensor) -> Tensor:
        """Whether environments (n,) lack terms that are near after a step. Their slots get these terms; `overflow` marks too many terms."""
        end = out.z.detach().reshape(len(overflow), -1)
        incomplete = torch.zeros(len(end), dtype=torch.bool)
        solved = out.status.reshape(-1) == int(Status.SUCCESS)
        for i, pair in enumerate(self.pairs):
            terms, counts = self._search(pair, end, torch.full((len(end),), REACH, dtype=torch.float64))
            over = counts > len(pair.slots)
            if bool(over.any()):
                warn_of_overflow(pair, int(counts.max()))
                overflow |= over
            new = keys(terms)
            lacking = ((new[:, :, None] != keys(chosen[i])[:, None, :]).all(-1) & (new >= 0)).any(-1) & solved
            if bool(lacking.any()):
                incomplete |= lacking
                chosen[i] = torch.where(lacking[:, None, None], merge(chosen[i], terms, True), chosen[i])
        return incomplete & ~overflow

    def jacobian(self, given: StepInputs, out: Tensor | None = None) -> Tensor:
        return self.linearize(given, out)[1]

    def linearize(self, given: StepInputs, out: Tensor | None = None) -> tuple[StepOutput, Tensor]:
        solved = self.step(given)
        split = (solved.substeps > 1).reshape(-1).nonzero().squeeze(-1)
        backend = self._select(self.request)
        if self._given is not None:
            lead = given.z.shape[:-1]
            backend = self._given.backend(self.request, lead, self._present(lead), 1.0)
        result = backend.jacobian(given._replace(warm=solved.solution), out)
        if len(split):
            result.view(-1, *result.shape[-2:])[split] = self._through_halves(given, split)
        return solved, result

    @torch.no_grad()
    def _through_halves(self, given: StepInputs, split: Tensor) -> Tensor:
        """Jacobians of the steps that were taken in halves. These are taken once more."""
        lead, n = given.z.shape[:-1], given.z.shape[:-1].numel()
        slots = [slot for pair in self.pairs for slot in pair.slots]
        kept = [slot.term for slot in slots]
        part = Part(lead, split, 1.0, torch.full((len(split),), self._budget_of_halves))
        self._chosen, self._taken = [NONE.expand(n, len(pair.slots), 3).clone() for pair in self.pairs], []
        self._bounces = Bounces(self.structure, self.pairs, lead)
        inputs = rows_of(given, split)
        self._halves(part, inputs, self.request.options.max_halvings - 1)
        records, self._taken = self._taken, None
        self._bounces.forget()  # the terms that were taken say it themselves
        size, place = TANGENT_SIZE * len(self.structure.named_bodies()), torch.zeros(n, dtype=torch.int64)
        place[split] = torch.arange(len(split))
        chained = inputs.z.new_zeros(len(split), size, size + inputs.u.shape[-1])
        chained[:, :, :size] = torch.eye(size, dtype=inputs.z.dtype)
        for each in records:
            if not len(each.part.rows):
                continue
            after = self._of_part(each.part, each.terms, 1.0).jacobian(each.given._replace(warm=each.solution))
            rows = place[each.part.rows]
            chained[rows] = after[..., :size] @ chained[rows] + torch.nn.functional.pad(after[..., size:], (size, 0))
        for slot, term in zip(slots, kept, strict=True):
            slot.term = term
        return chained

    def having(self, parameters: Sequence[Tensor], request: Request) -> NearSteps:
        bare = self._bare(request)

        def with_numbers(_: Request) -> Backend:
            return bare.having(parameters, request)

        given, terms = StackedNumbers(self._select, self.pairs, parameters), TermsOfParts(self._memory.slots)
        return NearSteps(self.structure, request, self.pairs, self._select, with_numbers, terms, self._search, self._sizes, given)

    def kept(self, batch: torch.Size) -> Tensor | None:
        terms = self._memory.take(batch)
        return None if terms is None else terms.double()  # whole numbers, exact

    def keep(self, kept: Tensor | None) -> None:
        if kept is not None:
            self._memory.take(kept.shape[:-1])  # slots give theirs up
            self._memory.put(kept.detach().long().contiguous())


def _is_zero(wrench: Tensor | None) -> bool:
    return wrench is None or not bool(wrench.any())
