"""What takes the steps of a mechanism: the compiled kernel, or the reference in PyTorch."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import NoReturn

import torch
from torch import Tensor

from torchdojo.dynamics.system import System
from torchdojo.engine.smoothing import Differentiation, randomized_jacobian, randomized_stepper, sampled_options
from torchdojo.gradients import reference_step as stepping
from torchdojo.gradients.implicit import StepSettings, forward_mode, transforming
from torchdojo.gradients.reference_step import StepOutput
from torchdojo.native import ops
from torchdojo.native.cache import ParameterCache, Parameters
from torchdojo.native.loader import library
from torchdojo.native.program import Program, program, supported, unsupported
from torchdojo.parameters import PhysicalModule, result_tensor
from torchdojo.solver.options import Backend, SolverOptions

__all__ = ["Backends"]


class Backends(PhysicalModule):
    """The part of a mechanism that hands its steps to the kernel, or to the reference where the kernel cannot take them."""

    timestep: Tensor
    gravity: Tensor
    options: SolverOptions
    _system: System
    _program: Program | None
    _cache: ParameterCache

    def _lower(self, system: System) -> None:
        """Keep the layout of the mechanism's elements, and what the kernel makes of it."""
        self._system = system
        self._program = program(system) if supported(system) else None
        self._cache = ParameterCache()

    def _stepper(
        self, how: Differentiation | None = None, raise_invalid: bool = False
    ) -> Callable[[Tensor, Tensor, Tensor, Tensor | None], StepOutput]:
        """(z, u, wrench, warm_start) -> output, on the backend that the options ask for."""
        options, kappas = how or Differentiation(self.options)
        smoothing = options.randomized
        if smoothing is not None:
            take = self._stepper(Differentiation(sampled_options(options), kappas), raise_invalid)
            return randomized_stepper(take, smoothing, any(p.requires_grad for p in self._stacked()))
        native = self._native(how, raise_invalid)
        if native is not None:
            return functools.partial(ops.step, native, self._known(native))
        return functools.partial(stepping.step, self._settings(how, raise_invalid), self._stacked())

    def _native(self, how: Differentiation | None = None, raise_invalid: bool = False) -> ops.Settings | None:
        """Settings for the kernel, or None where the reference takes the step.

        Raises:
            RuntimeError: `backend="native"` where the kernel cannot be used.
        """
        options, kappas = how or Differentiation(self.options)
        if options.backend is Backend.REFERENCE:
            return None
        lowered, number = self._program, self.gravity
        if lowered is None or number.dtype != torch.float64 or number.device.type != "cpu" or not ops.available():
            if options.backend is Backend.NATIVE:
                self._refuse_native()
            return None
        return ops.Settings(lowered, options, raise_invalid, kappas)

    def _refuse_native(self) -> NoReturn:
        number, reason = self.gravity, unsupported(self._system)
        if reason is None and number.dtype != torch.float64:
            reason = f"it computes in float64, the mechanism has {number.dtype}; use mech.to(torch.float64)"
        if reason is None and number.device.type != "cpu":
            reason = f"it runs on the CPU, the mechanism is on {number.device}; use mech.to('cpu')"
        if reason is None:
            library()  # raises, and says what is the matter
        raise RuntimeError(f'SolverOptions(backend="native"): the kernel cannot be used: {reason}; or use backend="auto"')

    def _known(self, native: ops.Settings) -> Parameters:
        if torch.compiler.is_compiling() or transforming() or forward_mode():
            return Parameters(native.program, self._stacked())
        return self._cache.get(native.program, self, self._stacked)

    def _settings(self, how: Differentiation | None = None, raise_invalid: bool = False) -> StepSettings:
        system, (options, kappas) = self._system, how or Differentiation(self.options)
        device = self.gravity.device
        return StepSettings(system if device.type == "cpu" else system.to(device), options, raise_invalid, kappas)

    def _stacked(self) -> list[Tensor]:
        return self._system.stack_parameters(self.timestep, self.gravity)

    def _jacobian(
        self, how: Differentiation, z: Tensor, u: Tensor, wrench: Tensor, warm_start: Tensor | None, out: Tensor | None = None
    ) -> Tensor:
        """(..., 12 nb, 12 nb + nu)"""
        native = self._native(how)
        if native is not None and how.options.randomized is None:
            return ops.jacobian(native, self._known(native), z, u, wrench, warm_start, out)
        if how.options.randomized is not None:
            sample = how._replace(options=sampled_options(how.options))
            result = randomized_jacobian(functools.partial(self._jacobian, sample), how.options.randomized, z, u, wrench, warm_start)
        else:
            result = stepping.jacobian(self._settings(how), self._stacked(), z, u, wrench, warm_start)
        return result if out is None else result_tensor(out, result.shape, result).copy_(result)
