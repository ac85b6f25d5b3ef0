"""The choice of a backend: `Backends.select` gives the one for a request, and `Backends.stepper` one for requests with periods."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NoReturn, cast

import torch
from torch import Tensor

from torchdojo.dynamics.system import System
from torchdojo.elements.actuators import Actuators
from torchdojo.elements.joint_cones import KINEMATIC_FIELDS
from torchdojo.elements.near_contact import NearContact
from torchdojo.engine.backend import Backend, Stepper
from torchdojo.engine.copies import HOST, Copies, copies_for
from torchdojo.engine.kernel import Kernel
from torchdojo.engine.near_memory import NearMemory
from torchdojo.engine.near_set import NearPair, NearSteps, near_pairs, search_in_torch
from torchdojo.engine.near_sizes import have_sizes
from torchdojo.engine.near_slots import Balls
from torchdojo.engine.periods import Periods
from torchdojo.engine.reference import Reference, SinglePrecision
from torchdojo.engine.smoothing import Randomized, sampled
from torchdojo.engine.staging import Staged, Staging
from torchdojo.gradients.hard_limit import SMALL_KAPPA
from torchdojo.gradients.request import Request
from torchdojo.gradients.transforms import forward_mode
from torchdojo.native import live, loader
from torchdojo.native.cache import ParameterCache, Parameters, modules_of
from torchdojo.native.mirror import Mirror
from torchdojo.native.near import near_terms
from torchdojo.native.program import Program, program, unsupported
from torchdojo.parameters import PhysicalModule, transforming, warn_user
from torchdojo.solver import options as solver_options
from torchdojo.solver.options import GradientMode, SolverOptions
from torchdojo.structure import Structure

__all__ = ["Backends"]

is_exporting = getattr(torch.compiler, "is_exporting", bool)  # PyTorch 2.6 has none, and bool() is False
PLACES = ("cpu", "cuda")  # devices for the numbers of a mechanism whose steps the kernel takes


class Backends:
    """The backends of one structure, with its elements lowered once, and its parameters packed as long as they stay."""

    def __init__(self, structure: Structure) -> None:
        self.structure = structure
        self.system = System(structure.named_bodies(), structure.elements(), structure.layout)
        self.program = program(self.system) if unsupported(self.system) is None else None
        self._cache, self._mirror = ParameterCache(), Mirror()
        self.near = near_pairs(structure)
        self._bare = ParameterCache(chosen=False) if self.near else self._cache  # parameters without the terms of near contacts
        self._warned = False  # whether the user knows that the reference takes the steps
        self._provide()

    def __getstate__(self) -> dict[str, Any]:
        self._settle()
        return {name: value for name, value in self.__dict__.items() if name != "_memory"}  # a copy has slots of its own

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._provide()

    def _provide(self) -> None:
        if self.program is not None:
            live.provide(self.program, self)

    def select(self, request: Request) -> Backend:
        """The backend that the options of a request ask for.

        Raises:
            RuntimeError: `backend="native"` where the kernel cannot be used.
        """
        if self.near and not self._on_host:
            raise RuntimeError("near contacts: got a mechanism on a GPU; allowed: the CPU, mech.to('cpu'), with states there or on a GPU")
        if self.near and self._copies(request) is None and request.options.randomized is None:
            assert self._memory is not None
            search = functools.partial(self._search, request.options)
            return NearSteps(self.structure, request, self.near, self._select, self._without_terms, self._memory, search, self.sizes)
        return self._select(request)

    def _select(self, request: Request) -> Backend:
        copies = self._copies(request)
        if copies is not None:
            return Staging(self.select(request.at(HOST)), copies)
        smoothing = request.options.randomized
        if smoothing is not None:
            return Randomized(self.select(sampled(request)), smoothing, self.sizes or any(p.requires_grad for p in self.stacked()))
        return self._kernel(request) or self._reference(request)

    @functools.cached_property
    def sizes(self) -> bool:
        """Whether sizes of shapes that touch at near terms are differentiated."""
        return have_sizes(self.near)

    @functools.cached_property
    def near_balls(self) -> Balls:
        """Balls around the shapes of the pairs that touch at near terms."""
        return Balls(self.near)

    @functools.cached_property
    def _memory(self) -> NearMemory | None:
        """The terms of near contacts between steps of the kernel; None where there are no such contacts."""
        slots = [contact for contact in self.structure.contacts.values() if isinstance(contact, NearContact)]
        return NearMemory(slots) if slots else None

    def _without_terms(self, request: Request) -> Backend:
        """The kernel where `NearMemory` has the terms and parameters have none, or the backend of `_select`."""
        lowered = None if self._copies(request) is not None else self._asked_program(request)
        if lowered is None:
            return self._select(request)
        return Kernel(self.structure, lowered, self._bare_parameters(lowered), request)

    def _settle(self) -> None:
        """Give near contacts their terms, which are parameters of what follows."""
        if self._memory is not None:
            self._memory.give_back()

    def forget_terms_of_others(self, batch: torch.Size) -> None:
        """Empty the slots of near contacts, if they have the terms of another batch."""
        if self._memory is not None:
            self._memory.forget_others(batch)

    @torch.no_grad()
    def _search(self, options: SolverOptions, pair: NearPair, z: Tensor, reach: Tensor) -> tuple[Tensor, Tensor]:
        parameters = self.map_parameters(options)
        if parameters is None:
            return search_in_torch(pair, z, reach)
        return near_terms(parameters, pair.contact, z, reach, len(pair.slots))[:2]

    def _reference(self, request: Request) -> Backend:
        if is_exporting():
            raise RuntimeError(
                "torch.export: the reference takes the steps of this mechanism, and iterates until each environment has converged, which "
                'no exported program does; export steps of the kernel: built-in elements, float64 on the CPU, SolverOptions(backend="auto")'
            )
        kind = Reference if request.options.dtype == torch.float64 else SinglePrecision
        return kind(self.structure, self.system_on_device(), self.stacked(), request)

    def stepper(self, request: Request, law: Actuators | None = None) -> Stepper:
        """The stepper for the periods of a request. With a law, their inputs are controls."""
        copies = self._copies(request)
        if copies is not None:
            return Staged(self.stepper(request.at(HOST), law), copies)
        if law is None and request.repeat == 1:
            return self.select(request)
        if self.near:
            return Periods(self.select(request.of_a_step), request.repeat, law)
        kernel = self._kernel(request) if law is None else self._driven(request, law)
        return kernel or Periods(self.select(request.of_a_step), request.repeat, law)

    def visited(self, request: Request, build: Callable[[Request], Stepper]) -> Stepper:
        """The stepper that `build` makes for data on the mechanism's device, for data on the device of the request."""
        copies = self._copies(request)
        return build(request) if copies is None else Staged(build(request.at(HOST)), copies)

    def _copies(self, request: Request) -> Copies | None:
        """Copies between the host and data of a GPU, if the mechanism is on the host; else None."""
        device = request.device
        return None if device is None or device == self.structure.gravity.device else copies_for(device)

    @property
    def _on_host(self) -> bool:
        return self.structure.gravity.device.type == "cpu"

    def _driven(self, request: Request, law: Actuators) -> Backend | None:
        """The kernel with a law in its steps, or None where the law stays outside.

        The kernel differentiates by controls and states. For gradients by numbers of the law, or by the geometry of driven joints, for
        transforms, for the hard limit, and for subclasses with a law of their own, PyTorch takes the law between the steps.
        """
        options, compiling = request.options, torch.compiler.is_compiling()
        hidden = not self._on_host or not law.in_kernel or (not compiling and (transforming() or forward_mode()))
        if hidden or request.mode is not GradientMode.CENTRAL_PATH or (options.grad_kappa or options.kappa) <= SMALL_KAPPA:
            return None
        if compiling:
            lowered = self._kernel_program(options)
            present = lowered is not None and live.own_batch(lowered.number, True) is not None
            asked = replace(request, driven=True)
            return Kernel(self.structure, lowered, Parameters(lowered, ()), asked, law) if lowered and present else None
        lowered = self._asked_program(request)
        if lowered is None:
            return None
        parameters = self._cached_parameters(lowered)
        if torch.is_grad_enabled() and parameters.requires_grad and self._moves_joints(law):
            return None
        native_law = self._cache.law(lowered, self.structure.named_joints(), law)
        return None if native_law is None else Kernel(self.structure, lowered, self._cache.driven(parameters, native_law), request, law)

    def driving(self, request: Request) -> Parameters | None:
        """Parameters with which the kernel takes drives inside its steps; None where PyTorch takes them between the steps.

        The kernel differentiates by states, controls, activations and wrenches. For gradients by numbers of the mechanism, for transforms
        and compiled code, and for near contacts, the laws stay outside.
        """
        if not self._on_host or self.near or torch.compiler.is_compiling() or transforming() or forward_mode():
            return None
        lowered = self._asked_program(request)
        parameters = None if lowered is None else self._cached_parameters(lowered)
        if parameters is None or not parameters.finite:
            return None
        return None if torch.is_grad_enabled() and parameters.requires_grad else parameters

    def _moves_joints(self, law: Actuators) -> bool:
        """Whether numbers require grad that decide which coordinates the actuators measure."""
        joints = [self.structure.joints[name] for name in dict.fromkeys(law.joints)]
        geometry = [getattr(joint, name) for joint in joints for name in KINEMATIC_FIELDS]
        return any(number.requires_grad for number in (self.structure.timestep, *geometry))

    def _kernel(self, request: Request) -> Backend | None:
        """The kernel for a request, staged for a mechanism on a GPU, or None where another backend takes its steps.

        Raises:
            RuntimeError: `backend="native"` where the kernel cannot be used.
        """
        lowered = self._asked_program(request)
        if lowered is None:
            return None
        if self._on_host:
            cached = self._cached_parameters(lowered)
            return None if _by_reference(lowered, cached.tensors) else Kernel(self.structure, lowered, cached, request)
        parameters, stacked = self._mirror.get(lowered, self.structure, self.stacked)
        if _by_reference(lowered, stacked):
            return None
        return Staging(Kernel(self.structure, lowered, parameters, request.at(HOST)), copies_for(self.structure.gravity.device), stacked)

    def _asked_program(self, request: Request) -> Program | None:
        """The program of the kernel for a request. None where another backend takes its steps. `backend="auto"` warns of that."""
        if request.options.randomized is not None:
            return None
        lowered = self._kernel_program(request.options)
        if lowered is None:
            self._warn_of_reference(request.options)
        return lowered

    def holding(self, parameters: Parameters | None) -> contextlib.AbstractContextManager[None]:
        """A block in which calls take these parameters, from `map_parameters`, without looking whether numbers have changed."""
        hidden = parameters is None or torch.compiler.is_compiling() or transforming() or forward_mode()
        return contextlib.nullcontext() if hidden else self._bare.holding(cast(Parameters, parameters))

    def map_parameters(self, options: SolverOptions, *, terms: bool = False) -> Parameters | None:
        """The parameters with which the kernel computes functions of states (native/maps.py); None where the reference must.

        The kernel holds parameters. So the reference takes over where one of them is differentiated, except while `torch.compile` traces.

        Args:
            terms: whether the function depends on the terms that slots of near contacts have.
        """
        lowered = self._kernel_program(options)
        if lowered is None or not self._on_host:
            return None
        if torch.compiler.is_compiling():
            return self._cached_parameters(lowered)
        if transforming() or forward_mode():
            self._settle()
            return self._cache.get_held(lowered, self.structure, self.stacked)
        parameters = self._cached_parameters(lowered) if terms or self._memory is None else self._bare_parameters(lowered)
        return None if torch.is_grad_enabled() and (self.sizes or parameters.requires_grad) else parameters

    def still_has(self, parameters: Parameters) -> bool:
        """Whether these are the parameters of the last call of the kernel, and no number has changed since."""
        return self._cache.still_has(parameters) or self._bare.still_has(parameters)

    def stacked(self) -> list[Tensor]:
        """All physical numbers, stacked over equal elements (`System.stack_parameters`), with their graphs."""
        return self.system.stack_parameters(self.structure.timestep, self.structure.gravity)

    def system_on_device(self) -> System:
        """The system with its index tables on the mechanism's device."""
        device = self.structure.gravity.device
        return self.system if device.type == "cpu" else self.system.to(device)

    def _kernel_program(self, options: SolverOptions) -> Program | None:
        if options.backend is solver_options.Backend.REFERENCE:
            return None
        number = self.structure.gravity
        if self.program is None or options.dtype != torch.float64 or number.device.type not in PLACES or not loader.available():
            if options.backend is solver_options.Backend.NATIVE:
                self._refuse_native()
            return None
        return self.program

    def _warn_of_reference(self, options: SolverOptions) -> None:
        """Warn, once, which element makes `backend="auto"` take the reference."""
        chosen = options.backend is not solver_options.Backend.AUTO
        if chosen or self._warned or self.program is not None or torch.compiler.is_compiling() or transforming():
            return
        self._warned = True
        warn_user(
            f'SolverOptions(backend="auto"): the reference takes the steps of this mechanism, about a thousand times slower than the '
            f"kernel: {unsupported(self.system)}. Write it with built-in elements, or say that this is meant: "
            'td.SolverOptions(backend="reference")'
        )

    def _refuse_native(self) -> NoReturn:
        number, reason = self.structure.gravity, unsupported(self.system)
        if reason is None and number.device.type not in PLACES:
            reason = f"it takes mechanisms on the CPU or a CUDA device, this one is on {number.device}; use mech.to('cpu')"
        if reason is None:
            loader.library()  # raises, and names the reason
        raise RuntimeError(f'SolverOptions(backend="native"): the kernel cannot be used: {reason}; or use backend="auto"')

    # -- what compiled operators look up (native/live.py) --------------------------------------------------------------------------------

    def modules(self, driven: bool) -> list[PhysicalModule]:
        """The modules whose numbers are parameters, or parts of the law."""
        return [*modules_of(cast(Program, self.program), self.structure), *([cast(Actuators, self.structure.actuators)] if driven else [])]

    def refresh(self, driven: bool, constant: bool) -> Parameters | None:
        """The parameters that the mechanism has now, and has for `present`; None where some are computed, or differentiated."""
        lowered = cast(Program, self.program)
        self._settle()
        parameters = self._cache.get_held(lowered, self.structure, self.stacked, constant)
        if not driven or parameters is None:
            return parameters
        law = self._cache.law(lowered, self.structure.named_joints(), cast(Actuators, self.structure.actuators), constant)
        return None if law is None else self._cache.driven(parameters, law)

    def present(self, driven: bool) -> Parameters:
        """The parameters of the last `refresh`, with the law of the actuators if `driven`."""
        parameters = self._cache.last(driven) or self.refresh(driven, torch.is_grad_enabled())
        if parameters is None:
            raise RuntimeError("torchdojo: numbers of the mechanism are differentiated or computed now, unlike when this step was compiled")
        return parameters

    def _cached_parameters(self, lowered: Program) -> Parameters:
        if torch.compiler.is_compiling() and live.own_batch(lowered.number, False) is not None:
            return Parameters(lowered, ())
        if torch.compiler.is_compiling() or transforming() or forward_mode():
            return Parameters(lowered, self.stacked())
        self._settle()
        return self._cache.get(lowered, self.structure, self.stacked)

    def _bare_parameters(self, lowered: Program) -> Parameters:
        """The parameters without the terms of near contacts, if these are elsewhere."""
        assert self._memory is not None
        with self._memory.withheld():
            return self._bare.get(lowered, self.structure, self.stacked)


def _by_reference(lowered: Program, parameters: Sequence[Tensor]) -> bool:
    """Whether parameters require grad by which the kernel has no gradients."""
    return lowered.leaves_numbers and torch.is_grad_enabled() and any(p.requires_grad for p in parameters)
