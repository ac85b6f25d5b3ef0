"""Steps of the host for data on another device: the kernel steps on the CPU while states, inputs, policies and gradients live on a GPU.

A call has three parts: inputs travel to pinned memory of the host, the host steps, and results travel back. A call with large results is
cut into chunks, so that copies of one chunk run while the host steps another, and pinned memory stays small:

    copies    in 0 | in 1 | in 2 |            out 0 |            out 1 |            out 2
    host             wait | step 0           | step 1           | step 2

Chunks gain where results are large beside the work, as Jacobians are. Steps lose: each call of the kernel ends with its slowest environment
alone, which takes longer than all copies (`scripts/bench_staging.py`).

All copies are on the current stream of the caller. They begin after the work that makes the inputs, and work that comes later finds the
results. The host waits for the inputs of a chunk before it steps. It waits for nothing else: results arrive while the caller goes on.

The graph of a step stays on the host, a graph of its own for each chunk. Backward sends gradients there and back in the same chunks. Where
PyTorch has to see a single graph, tensors travel by `Tensor.to`, and the host waits for each: in transforms, forward mode, compiled code,
under hooks of saved tensors (`checkpoint=`), and for steps of the reference.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar, cast

import torch
from torch import Tensor

from torchdojo.engine.backend import Backend, Stepper, Trajectory
from torchdojo.engine.copies import HOST, Copies, Event
from torchdojo.engine.feedback import Law
from torchdojo.gradients.reference_step import StepOutput
from torchdojo.gradients.request import Request, StepInputs
from torchdojo.gradients.transforms import LastDerivative, forward_mode, hooked
from torchdojo.native import memory
from torchdojo.native.forward_mode import NO_SECOND_DERIVATIVE
from torchdojo.parameters import broadcast_shapes, result_tensor, transforming
from torchdojo.state.layout import TANGENT_SIZE

__all__ = ["Staged", "Staging", "moved"]

LARGE = 128 * 2**20  #: [bytes] of the largest result of a chunk
ALIGNED = 64  #: chunks have a multiple of so many environments, so that the lanes of the kernel are full

_T = TypeVar("_T")
Rows = slice | None  # the environments of a chunk; None: all, whatever their batch dimensions
Take = Callable[[Any, StepInputs], Sequence[Tensor]]  # a stepper of the host and its inputs -> results, first the differentiable two


class Chunk(NamedTuple):
    """Tensors of the host, which may be read after `ready`. A tensor that all chunks share is one tensor."""

    rows: Rows
    values: list[Tensor | None]
    ready: Event


class Results:
    """Tensors of the device that arrive chunk by chunk, for `total` environments."""

    def __init__(self, copies: Copies, total: int, target: Tensor | None = None) -> None:
        """target: memory for the first result."""
        self.copies, self.total = copies, total
        self.targets: dict[int, Tensor] = {} if target is None else {0: target}

    @property
    def tensors(self) -> list[Tensor]:
        """All results, in order."""
        return [self.targets[place] for place in range(len(self.targets))]

    def put(self, place: int, value: Tensor, rows: Rows) -> None:
        """Begin to copy a result of a chunk."""
        whole = self.targets.get(place)
        if whole is None:
            shape = value.shape if rows is None else (self.total, *value.shape[1:])
            whole = self.targets[place] = self.copies.empty(shape, value.dtype)
        if not value.is_contiguous():
            value = self.copies.host(value.shape, dtype=value.dtype).copy_(value)
        self.copies.to_device(value, whole if rows is None else whole[rows])

    def put_all(self, values: Sequence[Tensor], rows: Rows) -> None:
        """Begin to copy all results of a chunk. Counts are small, and travel together."""
        counts = [place for place, value in enumerate(values) if rows is None and not value.is_floating_point()]
        for place, value in enumerate(values):
            if place not in counts:
                self.put(place, value.detach(), rows)
        if counts:
            first = values[counts[0]]
            together = self.copies.host((len(counts), *first.shape), dtype=first.dtype)
            torch.stack([values[place] for place in counts], out=together)
            whole = self.copies.empty(together.shape, together.dtype)
            self.copies.to_device(together, whole)
            for place, value in zip(counts, whole, strict=True):
                self.targets[place] = value


class Call(NamedTuple):
    """A call of a stepper of the host, and its chunks. split: whether z, u, wrench and warm start have rows of their own in each chunk."""

    host: Stepper
    copies: Copies
    take: Take
    rows: list[Rows]
    split: list[bool]
    total: int

    def send(self, tensors: Sequence[Tensor | None], split: Sequence[bool]) -> list[Chunk]:
        """Begin to copy tensors to the host, chunk by chunk."""
        chunks: list[Chunk] = []
        shared: dict[int, Tensor] = {}
        for rows in self.rows:
            values: list[Tensor | None] = []
            for place, (tensor, apart) in enumerate(zip(tensors, split, strict=True)):
                value = shared.get(place)
                if tensor is not None and value is None:
                    source = tensor.detach()[rows] if apart and rows is not None else tensor.detach()
                    value = self.copies.host(source.shape, dtype=source.dtype)
                    self.copies.to_host(source, value)
                    if not apart:
                        shared[place] = value
                values.append(value)
            chunks.append(Chunk(rows, values, self.copies.event()))
        return chunks


class StagedCall(torch.autograd.Function):
    """(call, warm start, z, u, wrench or None, *stacked parameters that may require grad) -> the results of the call on the device."""

    @staticmethod
    def forward(ctx: Any, call: Call, warm: Tensor | None, *tensors: Tensor | None) -> tuple[Tensor, ...]:
        needs = ctx.needs_input_grad[2:]
        z, u, wrench, *numbers = tensors
        host: Any = call.host
        chunks = call.send((z, u, wrench, warm), call.split)
        host_numbers = [cast(Tensor, t).detach().to(HOST).requires_grad_(need) for t, need in zip(numbers, needs[3:], strict=True)]
        if host_numbers:
            host = host.having(host_numbers, host.request)
        results, ctx.parts = Results(call.copies, call.total), []
        for rows, values, ready in chunks:
            ready.synchronize()
            data, start = values[:3], values[3]
            leaves = [t if t is None or not need else t.detach().requires_grad_() for t, need in zip(data, needs[:3], strict=True)]
            with torch.enable_grad(), memory.results_in(call.copies.host):
                inputs = StepInputs(cast(Tensor, leaves[0]), cast(Tensor, leaves[1]), leaves[2], start)
                out = call.take(host, inputs)
            results.put_all(out, rows)
            ctx.parts.append((leaves, out[:2]))
        ctx.call, ctx.own = call, host_numbers
        ctx.places = [None if t is None else t.device for t in tensors]
        ctx.save_for_backward(*tensors)
        ctx.set_materialize_grads(False)
        whole = results.tensors
        ctx.mark_non_differentiable(*whole[2:])
        return tuple(whole)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        with torch.no_grad():
            by_tensors = StagedCall.gradients(ctx, *grads)
        if not torch.is_grad_enabled():
            return by_tensors
        # With `create_graph=True`, a second derivative has to raise. Without this node, it would miss terms.
        wanted = [place for place, grad in enumerate(by_tensors) if grad is not None]
        rest = [t for t in (*grads, *ctx.saved_tensors) if t is not None]
        nodes = iter(LastGradients.apply(len(wanted), *(by_tensors[place] for place in wanted), *rest))
        return tuple(None if grad is None else next(nodes) for grad in by_tensors)

    @staticmethod
    def gradients(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        """Gradients of all tensors. The host sums gradients of tensors that all chunks share."""
        call, needs, upstream_grads = ctx.call, ctx.needs_input_grad[2:], grads[:2]
        if all(grad is None for grad in upstream_grads) or not any(needs):
            return (None,) * (2 + len(needs))
        results = Results(call.copies, call.total)
        sums: dict[int, Tensor] = {}
        for (leaves, out), chunk in zip(ctx.parts, call.send(upstream_grads, [True, True]), strict=True):
            sources = [*leaves, *ctx.own]
            wanted = [place for place, need in enumerate(needs) if need]
            pairs = [(value, grad) for value, grad in zip(out, chunk.values, strict=True) if grad is not None and value.requires_grad]
            outputs, upstream = [value for value, _ in pairs], [grad for _, grad in pairs]
            chunk.ready.synchronize()
            with memory.results_in(call.copies.host):
                by_sources = torch.autograd.grad(outputs, [sources[i] for i in wanted], upstream, retain_graph=True, allow_unused=True)
            for place, grad in zip(wanted, by_sources, strict=True):
                grad = torch.zeros_like(sources[place]) if grad is None else grad
                if place < 3 and call.split[place]:
                    results.put(place, grad, chunk.rows)
                else:
                    sums[place] = sums[place] + grad if place in sums else grad
        for place, total in sums.items():
            if ctx.places[place] == HOST:
                results.targets[place] = total
            else:
                results.put(place, total, None)
        return None, None, *(results.targets.get(place) for place in range(len(needs)))


class LastGradients(LastDerivative):
    """(n, n gradients, tensors on which they depend) -> the gradients, which are not differentiated further."""

    refusal = NO_SECOND_DERIVATIVE

    @staticmethod
    def forward(count: int, *tensors: Tensor) -> tuple[Tensor, ...]:
        return tuple(t.view_as(t) for t in tensors[:count])


class Staged(Stepper):
    """A stepper of the host, for data on the device of `copies`, where results arrive, too."""

    def __init__(self, host: Stepper, copies: Copies) -> None:
        self.host, self.copies = host, copies
        self.structure, self.law, self.in_one_call = host.structure, host.law, host.in_one_call

    def batch_shapes(self) -> list[torch.Size]:
        return self.host.batch_shapes()

    def step(self, given: StepInputs) -> StepOutput:
        return StepOutput(*self._results(given, 1, lambda host, given: host.step(given)))

    def rollout(self, given: StepInputs, keep_solutions: bool = False) -> Trajectory:
        def take(host: Stepper, given: StepInputs) -> Sequence[Tensor]:
            path = host.rollout(given, keep_solutions)
            return path.z, path.impulses, path.status, path.iterations, path.substeps, path.solution

        z, impulses, *rest = self._results(given, 2, take, given.u.shape[-2] + 1)
        return Trajectory(z, given.u.expand(*z.shape[:-2], *given.u.shape[-2:]), impulses, *rest)

    def rollout_feedback(self, given: StepInputs, law: Law, keep_solutions: bool = False) -> Trajectory:
        return moved(self.host.rollout_feedback(moved(given, HOST), moved(law, HOST), keep_solutions), self.copies.device)

    def _numbers(self) -> Sequence[Tensor]:
        """The stacked parameters, where they are, if one requires grad."""
        numbers = self.host.stacked if isinstance(self.host, Backend) else ()
        return numbers if torch.is_grad_enabled() and any(t.requires_grad for t in numbers) else ()

    def _results(self, given: StepInputs, ndim: int, take: Take, states: int = 1) -> Sequence[Tensor]:
        """The results of the host on the device, in which an environment has so many `states`. ndim: dimensions of an input u."""
        numbers = self._numbers()
        if not self._in_chunks() or (numbers and self.law is not None):
            return cast(Sequence[Tensor], moved(tuple(take(self.host, moved(given, HOST))), self.copies.device))
        call = self._call(given, ndim, take, states * max(given.z.shape[-1], self.structure.layout.num_unknowns))
        z, u, wrench, warm = given
        if torch.is_grad_enabled() and (numbers or any(t is not None and t.requires_grad for t in (z, u, wrench))):
            return cast(Sequence[Tensor], StagedCall.apply(call, warm, z, u, wrench, *numbers))
        return _staged_results(call, given, Results(self.copies, call.total))

    def _in_chunks(self) -> bool:
        """Whether copies run beside the kernel; elsewhere PyTorch moves tensors, and follows them."""
        kernel = isinstance(self.host, Backend) and self.host.program is not None
        return kernel and not (torch.compiler.is_compiling() or transforming() or forward_mode() or hooked())

    def _call(self, given: StepInputs, ndim: int, take: Take, size: int) -> Call:
        """A call in chunks of `LARGE`, where an environment has a result of `size` numbers.

        It has one chunk if environments are not the rows of all tensors, or if errors name environments by number.
        """
        lead = given.z.shape[:-1]
        total, request = (lead[0] if lead else 1), cast(Backend, self.host).request
        length = max(1, LARGE // (8 * size * max(1, lead[1:].numel())))
        length = -(-length // ALIGNED) * ALIGNED
        if length < total and request.grad_kappa is None and not request.raises_invalid:
            batches = [None if t is None else t.shape[:-n] for t, n in zip(given, (1, ndim, 1, 1), strict=True)]
            alike = all(batch is None or (len(batch) <= len(lead) and batch[:1] in ((), (1,), lead[:1])) for batch in batches)
            if alike and all(shape.numel() == 1 for shape in self.host.batch_shapes()):
                split = [batch is not None and len(batch) == len(lead) and batch[0] == total for batch in batches]
                rows: list[Rows] = [slice(i, min(i + length, total)) for i in range(0, total, length)]
                return Call(self.host, self.copies, take, rows, split, total)
        return Call(self.host, self.copies, take, [None], [True] * 4, total)


def _staged_results(call: Call, given: StepInputs, results: Results) -> list[Tensor]:
    """The tensors of a call without a graph, on their way into `results`."""
    for rows, values, ready in call.send(given, call.split):
        ready.synchronize()
        with torch.no_grad(), memory.results_in(call.copies.host):
            out = call.take(call.host, StepInputs(*cast(Any, values)))
        results.put_all(out, rows)
    return results.tensors


class Staging(Staged, Backend):
    """A backend of the host, for data on another device. Its numbers may be there, too.

    Args:
        stacked: the stacked parameters, on their device; None: the parameters of the host.
    """

    def __init__(self, host: Backend, copies: Copies, stacked: Sequence[Tensor] | None = None) -> None:
        Staged.__init__(self, host, copies)
        Backend.__init__(self, host.structure, host.stacked if stacked is None else stacked, host.request)
        self.host: Backend = host

    def having(self, parameters: Sequence[Tensor], request: Request) -> Staging:
        there = request.at(HOST)
        return Staging(self.host.having([t.to(HOST) for t in parameters], there), self.copies, parameters)

    def _numbers(self) -> Sequence[Tensor]:
        return self.stacked if torch.is_grad_enabled() and any(t.requires_grad for t in self.stacked) else ()

    def jacobian(self, given: StepInputs, out: Tensor | None = None) -> Tensor:
        size = TANGENT_SIZE * self.structure.num_bodies
        return self._matrices(given, size, out, lambda host, given, out: (host.jacobian(given, out),))[0]

    def minimal_jacobian(self, given: StepInputs, out: Tensor | None = None) -> Tensor:
        return self._matrices(given, given.z.shape[-1], out, lambda host, given, out: (host.minimal_jacobian(given, out),))[0]

    def linearize(self, given: StepInputs, out: Tensor | None = None) -> tuple[StepOutput, Tensor]:
        size = TANGENT_SIZE * self.structure.num_bodies
        jacobian, *solved = self._matrices(given, size, out, lambda host, given, out: _jacobian_first(*host.linearize(given, out)))
        return StepOutput(*solved), jacobian

    def minimal_linearize(self, given: StepInputs, out: Tensor | None = None) -> tuple[StepOutput, Tensor]:
        size = given.z.shape[-1]
        jacobian, *solved = self._matrices(given, size, out, lambda host, given, out: _jacobian_first(*host.minimal_linearize(given, out)))
        return StepOutput(*solved), jacobian

    def lift(self, q: Tensor, qd: Tensor) -> Tensor:
        if self.structure.gravity.device.type != "cpu":
            return super().lift(q, qd)
        return self.host.lift(q.to(HOST), qd.to(HOST)).to(self.copies.device)

    def _matrices(
        self, given: StepInputs, size: int, out: Tensor | None, take: Callable[[Any, StepInputs, Tensor | None], Sequence[Tensor]]
    ) -> Sequence[Tensor]:
        """Jacobians (..., size, size + nu) by `take`, and its other results. They are not differentiable."""
        device, columns = self.copies.device, size + self.structure.num_inputs
        if not self._in_chunks():
            jacobian, *rest = moved(tuple(take(self.host, moved(given, HOST), None)), device)
            return [jacobian if out is None else result_tensor(out, jacobian.shape, jacobian).copy_(jacobian), *rest]

        def batch(given: StepInputs) -> torch.Size:
            return broadcast_shapes(*(t.shape[:-1] for t in given[:3] if t is not None), *self.host.batch_shapes())

        def into(host: Backend, given: StepInputs) -> Sequence[Tensor]:
            return take(host, given, self.copies.host((*batch(given), size, columns)))

        call = self._call(given, 1, into, size * columns)
        target = None if out is None else result_tensor(out, (*batch(given), size, columns), given.z)
        return _staged_results(call, given, Results(self.copies, call.total, target))


def _jacobian_first(solved: StepOutput, jacobian: Tensor) -> Sequence[Tensor]:
    return jacobian, *solved


def moved(value: _T, device: torch.device) -> _T:
    """A tensor, or a tuple of tensors, on a device; anything else as it is."""
    if isinstance(value, Tensor):
        return cast(_T, value.to(device))
    if not isinstance(value, tuple):
        return value
    parts = (moved(part, device) for part in value)
    return cast(_T, type(value)(*parts) if hasattr(value, "_fields") else tuple(parts))
