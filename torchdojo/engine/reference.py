"""The reference backend: steps of gradients/reference_step.py, in float64 or in float32."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from torchdojo.dynamics.system import System
from torchdojo.engine.backend import Backend
from torchdojo.gradients import reference_step
from torchdojo.gradients.reference_step import StepOutput
from torchdojo.gradients.request import Request, StepInputs
from torchdojo.parameters import result_tensor
from torchdojo.structure import Structure

__all__ = ["Reference", "SinglePrecision"]


class Reference(Backend):
    """The reference with these stacked parameters."""

    def __init__(self, structure: Structure, system: System, parameters: Sequence[Tensor], request: Request) -> None:
        super().__init__(structure, parameters, request)
        self.system, self.parameters = system, parameters

    def having(self, parameters: Sequence[Tensor], request: Request) -> Reference:
        return Reference(self.structure, self.system, parameters, request)

    def step(self, given: StepInputs) -> StepOutput:
        return reference_step.step(self.system, self.request, self.parameters, *given.data, given.warm)

    def jacobian(self, given: StepInputs, out: Tensor | None = None) -> Tensor:
        result = reference_step.jacobian(self.system, self.request, self.parameters, *given.data, given.warm)
        return result if out is None else result_tensor(out, result.shape, result).copy_(result)


class SinglePrecision(Reference):
    """The reference in float32, between inputs and results in float64. Its parameters become float32."""

    def __init__(self, structure: Structure, system: System, parameters: Sequence[Tensor], request: Request) -> None:
        super().__init__(structure, system, parameters, request)
        self.parameters = [_single(parameter) for parameter in parameters]

    def step(self, given: StepInputs) -> StepOutput:
        out = super().step(_lowered(given))
        return StepOutput(*(value.double() if value.is_floating_point() else value for value in out))

    def jacobian(self, given: StepInputs, out: Tensor | None = None) -> Tensor:
        result = super().jacobian(_lowered(given)).double()
        return result if out is None else result_tensor(out, result.shape, result).copy_(result)


def _lowered(given: StepInputs) -> StepInputs:
    return StepInputs(*(None if value is None else _single(value) for value in given))  # type: ignore[arg-type]  # z and u are no None


def _single(tensor: Tensor) -> Tensor:
    """Floating-point numbers as float32."""
    return tensor.float() if tensor.is_floating_point() else tensor
