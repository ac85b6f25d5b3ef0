"""The contract of backends: they take steps, and have what follows from steps.

A `Stepper` takes periods of rollouts: its `step` is all that it must have. A `Backend` takes the steps that a `Request` asks for, and has
their Jacobians. There are four: `Reference`, the compiled `Kernel`, `Randomized`, which samples another one, and `Staging`, which brings
another one the data of a GPU. Everything else has a default here that is made of steps and Jacobians. A backend overrides what it does
better, and no caller asks which backend it has.

Another device is one more subclass, and a line in `Backends.select`. `tests/engine/test_backend_contract.py` has the tests that every
backend inherits.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchdojo.elements.actuators import Actuators
from torchdojo.engine.composed import minimal_linearization
from torchdojo.engine.feedback import Law
from torchdojo.gradients.reference_step import StepOutput
from torchdojo.gradients.request import Request, StepInputs
from torchdojo.native.program import Program
from torchdojo.native.tape import Tape
from torchdojo.state import minimal
from torchdojo.state.layout import TWIST_SIZE
from torchdojo.structure import Structure

__all__ = ["Backend", "Policy", "Stepper", "Trajectory", "check_given", "visiting"]

Policy = Callable[[Tensor], Tensor]


class Trajectory(NamedTuple):
    """Result of a rollout of T periods, each of `repeat` steps, which is one step if not given.

    z: (..., T+1, 13 nb) states at the start and after each period.
    u: (..., T, nu) inputs [N, N·m], or the controls (..., T, number of actuators) where `ctrl` is given.
    impulses: (..., T, n) sums over the steps of a period [N·s, N·m·s].
    status: (..., T) the worst of the steps of a period, which is the largest value. iterations, substeps: (..., T) their sums.
    solution: (..., 1, num_unknowns) of the last step, or (..., T, num_unknowns) of the last step of each period with `keep_solutions`. So
        ``solution[..., -1, :]`` is the `warm_start` that continues the rollout.
    """

    z: Tensor
    u: Tensor
    impulses: Tensor
    status: Tensor
    iterations: Tensor
    substeps: Tensor
    solution: Tensor


def check_given(
    structure: Structure, law: Actuators | None, z: Tensor, given: Any, wrench: Tensor | None, warm: Tensor | None = None
) -> StepInputs:
    """The checked inputs of a period, or its controls with a law; zeros for None. Controls out of their range are counted."""
    like = visiting(structure, z)
    structure.check_state(z, like=like)
    if law is None:
        if given is None:
            given = torch.zeros(structure.num_inputs, dtype=z.dtype, device=z.device)  # z.new_zeros would be mapped by vmap
        else:
            structure.check_tensor("u", given, structure.num_inputs, like)
    else:
        law.check(given, like)
        law.count(given if like is None else given.detach().to(structure.gravity.device))
    if wrench is not None:
        structure.check_tensor("wrench", wrench, TWIST_SIZE * structure.num_bodies, like)
    return StepInputs(z, given, wrench, warm)


def visiting(structure: Structure, z: Any) -> Tensor | None:
    """z, if it is on a GPU while the mechanism is on the CPU, as steps allow for data of one device. Else None."""
    return z if isinstance(z, Tensor) and z.is_cuda and structure.gravity.device.type == "cpu" else None


class Stepper(abc.ABC):
    """An object that takes the periods of rollouts: a backend, `Periods`, `AdaptiveSteps`, or a fitted model.

    Attributes:
        structure: whose steps they are. law: turns the controls that are given into inputs; None: inputs are given.
        in_one_call: whether `rollout` is one call, in which steps may have a budget of iterations (`Request.budget`).
    """

    structure: Structure
    law: Actuators | None = None
    in_one_call: bool = False

    @abc.abstractmethod
    def step(self, given: StepInputs) -> StepOutput:
        """One step, or one period."""

    def batch_shapes(self) -> list[torch.Size]:
        """Batch dimensions that results get from the stepper itself, beside those of the inputs, as far as they are known before a step."""
        return []

    def rollout(self, given: StepInputs, keep_solutions: bool = False) -> Trajectory:
        """The T periods of u (..., T, nu)."""
        return self.follow(lambda t, z: given.u[..., t, :], given.u.shape[-2], given, keep_solutions)

    def rollout_feedback(self, given: StepInputs, law: Law, keep_solutions: bool = False) -> Trajectory:
        """The periods of a feedback law, without a graph. given: z has the batch dimensions of all, u is that of the law."""
        return self.follow(law.at, law.inputs.shape[-2], given, keep_solutions)

    def follow(
        self,
        policy: Callable[[int, Tensor], Tensor],
        steps: int,
        given: StepInputs,
        keep_solutions: bool = False,
        wrench: Callable[[int, Tensor], Tensor | None] | None = None,
    ) -> Trajectory:
        """Periods one by one, each warm-started from the one before. given.u is not read.

        policy: (number of the period, z) -> its u. wrench: the same for a wrench, in place of the one that is given.
        """
        z, _, held, warm = given
        states, inputs = [z], []
        outputs: list[StepOutput] = []
        solutions: list[Tensor] = []
        for t in range(steps):
            u = policy(t, z)
            out = self.step(check_given(self.structure, self.law, z, u, held if wrench is None else wrench(t, z), warm))
            z, warm = out.z, out.solution.detach()
            states.append(z)
            inputs.append(u)
            if not keep_solutions:
                solutions.clear()
            solutions.append(warm)
            outputs.append(out._replace(solution=z[..., :0].detach()))
        batch = z.shape[:-1]

        def stack(values: Sequence[Tensor]) -> Tensor:
            return torch.stack([value.expand(*batch, value.shape[-1]) for value in values], dim=-2)

        return Trajectory(
            stack(states),
            stack(inputs),
            stack([o.impulses for o in outputs]),
            torch.stack([o.status for o in outputs], -1),
            torch.stack([o.iterations for o in outputs], -1),
            torch.stack([o.substeps for o in outputs], -1),
            stack(solutions),
        )

    def tape(self, horizon: int, count: int) -> Tape | None:
        """Memory for `horizon` periods of `count` environments, for loops that differentiate by themselves; None: there is none."""
        return None


class Backend(Stepper):
    """An object that takes the steps of a request.

    Attributes:
        request: of the call. stacked: the physical numbers, stacked over equal elements (`System.stack_parameters`), float64.
        program: the system as the compiled kernel reads it; None where another backend takes the steps.
    """

    program: Program | None = None

    def __init__(self, structure: Structure, stacked: Sequence[Tensor], request: Request) -> None:
        self.structure, self.stacked, self.request = structure, stacked, request

    @abc.abstractmethod
    def jacobian(self, given: StepInputs, out: Tensor | None = None) -> Tensor:
        """(..., 12 nb, 12 nb + nu) of a step on the tangent space, written into `out` if given. It is not differentiable."""

    @abc.abstractmethod
    def having(self, parameters: Sequence[Tensor], request: Request) -> Backend:
        """A backend of this kind with other stacked parameters, and another request."""

    def kept(self, batch: torch.Size) -> Tensor | None:
        """The numbers (*batch, k), beside the solution, from which a step of this batch goes on; None: the solution is all."""
        return None

    def keep(self, kept: Tensor | None) -> None:
        """Let the next step go on from these numbers. None: from those that there are."""

    def linearize(self, given: StepInputs, out: Tensor | None = None) -> tuple[StepOutput, Tensor]:
        """A step and its Jacobian."""
        solved = self.step(given)
        return solved, self.jacobian(given._replace(warm=solved.solution), out)

    def minimal_jacobian(self, given: StepInputs, out: Tensor | None = None) -> Tensor:
        """(..., 2n, 2n + nu) of a step between coordinates. given.z are coordinates and rates (..., 2n)."""
        return self.minimal_linearize(given, out)[1]

    def minimal_linearize(self, given: StepInputs, out: Tensor | None = None) -> tuple[StepOutput, Tensor]:
        """A step and its `minimal_jacobian`."""
        return minimal_linearization(self.structure, self.lift, self.linearize, given, out)

    def lift(self, q: Tensor, qd: Tensor) -> Tensor:
        """The states at coordinates and rates, all of them finite."""
        structure = self.structure
        return minimal.to_maximal(structure.tree_order(), structure.num_bodies, q, qd, structure.timestep)
