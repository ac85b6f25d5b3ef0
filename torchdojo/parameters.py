"""Physical parameters: named tensors of a module, checked when set, batched, and replaceable by any tensor that carries a graph."""

from __future__ import annotations

import copy
import sys
import warnings
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.nn.utils import parametrize
from torch.nn.utils.parametrize import is_parametrized

__all__ = [
    "PhysicalModule",
    "alike",
    "bind",
    "broadcast_shapes",
    "check_tensor",
    "differentiated",
    "one_by_one",
    "parametrized_names",
    "plain_class",
    "result_tensor",
    "short",
    "stacked",
]

Modules = Mapping[str, Any] | Iterable[tuple[str, Any]]
_Self = TypeVar("_Self", bound="PhysicalModule")


def _is_neutral(value: Any) -> bool:
    """Whether a field is zero, or no rotation, which a representation leaves out."""
    if not isinstance(value, Tensor) or transforming():
        return False
    return not bool(value.detach().any()) or (value.shape == (4,) and value.tolist() == [1, 0, 0, 0])


def short(value: Any) -> str:
    """Numbers as a user writes them: the diagonal of a diagonal matrix, the shape of what has batch dimensions."""
    if not isinstance(value, Tensor) or transforming():
        return repr(value)
    value = value.detach()
    if value.ndim == 2 and value.shape[0] == value.shape[1] and torch.equal(value, torch.diag(value.diagonal())):
        value = value.diagonal()
    if value.shape == (3, 3):
        return f"[{', '.join(map(short, value))}]"
    if value.ndim > 1:
        return f"<{' x '.join(map(str, value.shape))}>"
    numbers = [f"{number:.4g}" for number in value.reshape(-1).tolist()]
    return f"[{', '.join(numbers)}]" if value.ndim else numbers[0]


def as_tensor(value: Any, name: str) -> Tensor:
    """Convert `value` to a floating-point tensor; plain numbers become float64."""
    if isinstance(value, Tensor):
        if not value.is_floating_point():
            raise TypeError(f"{name}: got a tensor of dtype {value.dtype}; give a floating-point tensor, for example value.double()")
        return value
    try:
        return torch.as_tensor(value, dtype=torch.float64)
    except (TypeError, ValueError, RuntimeError) as error:
        raise TypeError(f"{name}: got {value!r}; give a number, a sequence of numbers or a floating-point tensor") from error


def broadcast_shapes(*shapes: Sequence[int]) -> torch.Size:
    """`torch.broadcast_shapes`, which imports sympy: 0.8 s in a process that does not compile."""
    size = max(map(len, shapes), default=0)
    result = [1] * size
    for shape in shapes:
        for i, count in enumerate(shape, size - len(shape)):
            if type(count) is not int:  # `torch.export` has symbols
                return torch.broadcast_shapes(*shapes)
            if count != 1 and result[i] not in (1, count):
                raise RuntimeError(f"shapes {[tuple(shape) for shape in shapes]} do not broadcast")
            result[i] = result[i] if count == 1 else count
    return torch.Size(result)


def transforming() -> bool:
    """Whether this runs inside a `torch.func` transform, where values of tensors cannot be read."""
    return torch._C._functorch.maybe_current_level() is not None


def warn_user(message: str) -> None:
    """Warn with the line of the user's code that called into torchdojo, through however many frames of torchdojo and torch."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith(("torchdojo.", "torch.")):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, stacklevel=level)


def require(condition: Tensor, name: str, value: Tensor, allowed: str) -> None:
    """Raise ValueError unless every element of `condition` holds. Does nothing inside `torch.func` transforms, which hide values."""
    if transforming():
        return
    if not bool(condition.all()):
        raise ValueError(f"{name}: got {value.detach().tolist()}; allowed: {allowed}")


def check_tensor(name: str, value: Any, size: int, number: Tensor, num_bodies: int, like: Tensor | None = None) -> None:
    """Raise unless `value` is a float64 tensor (..., size) on the device of `number`, a number of the mechanism, or on that of `like`."""
    device = number.device if like is None else like.device
    if not isinstance(value, Tensor):
        raise TypeError(f"{name}: got {type(value).__name__}; allowed: a tensor of shape (..., {size}); torch.as_tensor(...)")
    if torch.is_autocast_enabled(device.type):
        raise RuntimeError(
            f"torch.autocast is on, and the step has no mixed precision: contact needs the digits of torch.float64; put it into "
            f"`with torch.autocast({device.type!r}, enabled=False):` and convert what networks give, u.float()"
        )
    if value.ndim < 1 or value.shape[-1] != size:
        raise ValueError(f"{name}: got shape {tuple(value.shape)}; allowed: (..., {size}) for a mechanism of {num_bodies} bodies")
    if value.dtype != torch.float64:  # `precision.in_float64` has converted float32
        raise TypeError(f"{name}: got {value.dtype}; allowed: torch.float64 or torch.float32; convert it: {name}.double()")
    if value.device != device:
        other, remedy = ("mechanism", f"mech.to({str(value.device)!r})") if like is None else ("state", f"{name}.to({str(device)!r})")
        raise TypeError(f"{name}: on {value.device}, the {other} on {device}; move one, for example {remedy}")


def result_tensor(out: Tensor | None, shape: Sequence[int], like: Tensor) -> Tensor:
    """A new tensor of that shape, or `out`, which must have that shape and the dtype and device of `like`."""
    if out is None:
        return like.new_empty(shape)
    if not isinstance(out, Tensor):
        raise TypeError(f"out: got {type(out).__name__}; allowed: a tensor of shape {tuple(shape)} to write the result into")
    same = out.shape == torch.Size(shape) and out.dtype == like.dtype and out.device == like.device
    if not same or not out.is_contiguous() or out.requires_grad:
        raise ValueError(
            f"out: got shape {tuple(out.shape)}, {out.dtype} on {out.device}, {'' if out.is_contiguous() else 'not '}contiguous, "
            f"requires_grad={out.requires_grad}; allowed: {tuple(shape)}, {like.dtype} on {like.device}, contiguous, without gradient: "
            f"torch.empty({tuple(shape)}, dtype={like.dtype})"
        )
    return out


class AbsentFieldError(AttributeError, ValueError):
    """A value for an optional field that a module lacks."""


class PhysicalModule(nn.Module):
    """A module whose physical parameters are listed in the table `fields`: name -> number of dimensions of one value.

    A field is stored as an `nn.Parameter` that does not require grad until asked (`module.mass.requires_grad_()`). It may carry leading
    batch dimensions. Its value may be set to a number or to any tensor. A tensor with a graph (`contact.friction = network(x)`) takes the
    place of the parameter. `check_field` validates assignments. A parametrized field (`td.parametrize`) is computed from another
    parameter, which an assigned number sets.

    Fields keep float64 under `.float()`, `.half()` and `.to(dtype)`, and stay the same objects for optimizers: networks around a mechanism
    change their precision, and its numbers do not. Modules inside of a physical module, weights of a user's element say, follow its fields.

    Fields of the table `optional` exist only where a module is built with them (`set_fields`). Elsewhere they read as None, and stay so,
    because the terms of an element are part of the equations' structure.
    """

    fields: ClassVar[dict[str, int]] = {}
    optional: ClassVar[dict[str, int]] = {}
    #: attributes that decide on the equations; a mechanism that has the module is laid out anew when one is assigned
    structural: ClassVar[frozenset[str]] = frozenset()
    #: fields that steps set for each environment; a batch of them makes no mechanism that differs between environments
    chosen: ClassVar[frozenset[str]] = frozenset()
    noun: ClassVar[str] = "module"  # in error messages

    def set_fields(self, fields: Mapping[str, int]) -> None:
        """Replace the table of fields of this module, before their values are set."""
        self.__dict__["fields"] = dict(fields)
        for name in self.optional:
            if name not in fields:
                self.register_parameter(name, None)

    def has_effect(self, name: str, value: Any) -> bool:
        """Whether the value of an optional field does anything. A module built without the field accepts values without effect."""
        return value is not None

    def check_field(self, name: str, value: Tensor) -> Tensor:
        """Validate, and bring to its canonical shape, a new value of field `name`. Overridden by subclasses."""
        if value.ndim < self.fields[name]:
            raise ValueError(f"{self.label(name)}: got shape {tuple(value.shape)}; allowed: at least {self.fields[name]} dimension(s)")
        require(torch.isfinite(value), self.label(name), value, "finite numbers")
        return value

    def label(self, name: str) -> str:
        return f"{plain_class(self).__name__}.{name}"

    def _description(self) -> list[str]:
        """The part of the representation that stands before the numbers."""
        return []

    def extra_repr(self) -> str:
        shown = {name: getattr(self, name) for name in self.fields}
        return ", ".join([*self._description(), *(f"{name}={short(value)}" for name, value in shown.items() if not _is_neutral(value))])

    def keyword(self, name: str) -> str:
        """The keyword with which a module gets the optional field `name`."""
        return name

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in self.fields:
            if name in self.structural:
                self._set_structural(name, value)
            elif name not in self.optional:
                super().__setattr__(name, value)
            elif self.has_effect(name, value):
                keyword = self.keyword(name)
                raise AbsentFieldError(
                    f"{self.label(name)}: got {value!r} for a {self.noun} built without {keyword}; build it with {keyword}="
                )
            return
        candidate = as_tensor(value, self.label(name))
        if candidate.dtype != torch.float64 and not isinstance(value, nn.Parameter) and not differentiated(candidate):
            candidate = candidate.double()
        tensor = self.check_field(name, candidate)
        if not is_parametrized(self, name):
            self._store(name, value, tensor)
        elif differentiated(tensor):
            raise ValueError(
                f"{self.label(name)}: got a tensor that requires grad for a parametrized field, which keeps numbers only; "
                "give value.detach(), or make the field a plain one first: td.parametrize.bake(module)"
            )
        else:
            super().__setattr__(name, tensor if isinstance(value, Tensor) else tensor.to(getattr(self, name)))

    def _set_structural(self, name: str, value: Any) -> None:
        """Set an attribute that decides on the equations, and lay out the mechanisms of this module anew; without effect if one refuses."""
        before: Any = self.__dict__.get(name)
        super().__setattr__(name, value)
        owners = list(self.__dict__.get("_owners", ()))
        try:
            for owner in owners:
                owner.rebuild()
        except Exception:
            super().__setattr__(name, before)
            for owner in owners:
                owner.rebuild()
            raise

    def _belongs_to(self, owner: nn.Module, member: bool = True) -> None:
        """Note that a mechanism, which has a method `rebuild`, has this module, or has it no more."""
        owners = self.__dict__.setdefault("_owners", weakref.WeakSet())
        (owners.add if member else owners.discard)(owner)

    def _store(self, name: str, value: Any, tensor: Tensor) -> None:
        """Store field `name`; `tensor` is the checked form of `value`."""
        self._parameters.pop(name, None)
        self._buffers.pop(name, None)
        if isinstance(value, nn.Parameter) and tensor is value:
            self.register_parameter(name, value)
        elif differentiated(tensor):
            self.register_buffer(name, tensor)  # a tensor with a graph, or a leaf of the user's, is used as it is
        else:
            self.register_parameter(name, nn.Parameter(tensor.detach().clone(), requires_grad=False))

    def _apply(self: _Self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> _Self:
        """`.float()`, `.to(...)` and `.cuda()` do everything but lose digits."""
        return super()._apply(lambda tensor: _with_digits(tensor, fn(tensor)), recurse)

    # Copies of a parametrized module get a class of their own. `torch.nn.utils.parametrize` gives every module that it changes a new class,
    # but copies share that class. Undoing the change in a copy would break the original. Torch also refuses to pickle such modules.

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_owners"}  # a copy is part of no mechanism

    def __reduce_ex__(self, protocol: Any) -> Any:
        names = parametrized_names(self)
        return (_blank, (plain_class(self),), (names, PhysicalModule.__getstate__(self))) if names else super().__reduce_ex__(protocol)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        make, arguments, state, *_ = self.__reduce_ex__(4)
        memo[id(self)] = replica = make(*arguments)
        replica.__setstate__(copy.deepcopy(state, memo))
        return replica

    def __setstate__(self, state: Any) -> None:
        names, state = state if isinstance(state, tuple) else ((), state)
        super().__setstate__(state)
        if names:
            # The functions with which `register_parametrization` changes a class.
            parametrize._inject_new_class(self)
            for name in names:
                parametrize._inject_property(self, name)

    def extra_state_names(self) -> list[str]:
        """Names of tensors of user-written subclasses that are not physical fields, for instance network weights."""
        names = [name for name, _ in self.named_parameters()] + [name for name, _ in self.named_buffers()]
        # A parametrized field (`torch.nn.utils.parametrize`) is read through its attribute, so its originals are not extra state.
        return [name for name in names if name not in self.fields and not name.startswith("parametrizations.")]


def one_by_one(batch: _Self) -> list[_Self]:
    """A module for each entry of the one batch dimension that all fields of a module have: their values are checked together there."""
    values = {name: getattr(batch, name).detach().unbind(0) for name in batch.fields}
    modules = [copy.copy(batch) for _ in next(iter(values.values()))]
    for i, module in enumerate(modules):
        # Tables of tensors and hooks are each module's own.
        module.__dict__.update({name: copy.copy(value) for name, value in batch.__dict__.items() if isinstance(value, dict)})
        for name, value in values.items():
            module._parameters[name] = nn.Parameter(value[i].clone(), requires_grad=False)
    return modules


def alike(module: _Self, shared: Mapping[str, nn.Parameter]) -> _Self:
    """A module with the same numbers as its own, but for `shared` parameters and tensors that require grad, which both modules have."""
    twin = copy.copy(module)
    twin.__dict__.update({name: copy.copy(value) for name, value in module.__dict__.items() if isinstance(value, dict)})
    for name, value in twin._parameters.items():
        if value is not None and name not in shared and not value.requires_grad:
            twin._parameters[name] = nn.Parameter(value.detach().clone(), requires_grad=False)
    return twin


def _with_digits(tensor: Tensor, changed: Tensor) -> Tensor:
    """`changed`, or, where it lost the digits of a float64 `tensor`, the tensor itself on the device of `changed`."""
    lost = tensor.dtype == torch.float64 and changed.is_floating_point() and changed.dtype != torch.float64
    return tensor.to(changed.device) if lost else changed


def differentiated(tensor: Tensor) -> bool:
    """Whether derivatives with respect to this tensor are asked for, in reverse or forward mode."""
    dual = forward_ad.unpack_dual(tensor).tangent is not None
    return tensor.requires_grad or torch._C._functorch.is_gradtrackingtensor(tensor) or dual


def parametrized_names(module: nn.Module) -> list[str]:
    """Names of the tensors that the class of this module computes (`torch.nn.utils.parametrize`).

    A module that only shares the tables of a parametrized module, as limits share their joint's, has no such names.
    """
    if "parametrizations" not in module._modules:
        return []
    names: Sequence[str] = list(module.parametrizations)  # type: ignore[arg-type]
    return [name for name in names if isinstance(vars(type(module)).get(name), property)]


def plain_class(module: nn.Module) -> type:
    """The class of a module as its author wrote it, before `torch.nn.utils.parametrize` changed it."""
    return type(module).__bases__[0] if parametrized_names(module) else type(module)


def _blank(cls: type[nn.Module]) -> nn.Module:
    """An object of the class without attributes."""
    return cls.__new__(cls)


def bind(module: nn.Module, tensors: Mapping[str, Tensor], cls: type[nn.Module] | None = None) -> Any:
    """A shallow clone of `module` that reads `tensors` in place of its own parameters and buffers ("net.0.weight" reaches submodules).

    The module itself is untouched, so one template can serve many stacked parameter sets. `cls` undoes the class change that
    `torch.nn.utils.parametrize` makes.
    """
    clone = object.__new__(cls or type(module))
    state = clone.__dict__
    state.update(module.__dict__)
    state["_parameters"] = dict(module._parameters)
    state["_buffers"] = dict(module._buffers)
    state["_modules"] = dict(module._modules)
    nested: dict[str, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        head, _, rest = name.partition(".")
        if rest:
            nested.setdefault(head, {})[rest] = tensor
        elif head in state["_buffers"]:
            state["_buffers"][head] = tensor
        else:
            state["_parameters"][head] = tensor
    for name, child in nested.items():
        submodule = module._modules[name]
        assert submodule is not None
        state["_modules"][name] = bind(submodule, child)
    return clone


def stacked(values: Sequence[Tensor], ndim: int) -> Tensor:
    """Fields of several modules, with `ndim` dimensions of one value, as one tensor: (..., members, *value), batch dimensions broadcast."""
    if len({value.shape for value in values}) > 1:
        values = torch.broadcast_tensors(*values)
    return torch.stack(tuple(values), dim=values[0].ndim - ndim)
