"""Parametrizations that keep physical parameters in their domain while an optimizer changes them.

    td.parametrize.positive(mech.bodies["box"], "mass")             # m = exp(θ)
    td.parametrize.bounded(mech.contacts["tip"], "friction", 0, 2)  # μ = lower + (upper − lower) σ(θ)
    td.parametrize.unit(mech.joints["hinge"], "axis")               # a = θ/|θ|
    td.parametrize.inertia(mech.bodies["box"])                      # mass and inertia that some rigid body has
    optimizer = torch.optim.Adam(mech.parameters())
    ...
    td.parametrize.bake(mech)                                       # plain numbers again

The field then reads as before (`body.mass` is in kilograms). It is computed from an unconstrained parameter θ at every read, and an
assignment sets θ (`body.mass = 2.0`). θ is a new `nn.Parameter` that requires grad and takes the place of the field's parameter:
"bodies.box.parametrizations.mass.original" in `mech.named_parameters()` and `mech.state_dict()`. So parametrize before you make the
optimizer. A state dictionary fits mechanisms that are parametrized alike. Values may carry batch dimensions (one θ per environment).

The functions build on `torch.nn.utils.parametrize`. In contrast to torch's, parametrized modules can be pickled, and copies are
independent.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from torchdojo.elements.bodies import Body
from torchdojo.parameters import PhysicalModule, as_tensor, broadcast_shapes, parametrized_names, plain_class

__all__ = ["Bounded", "LogCholeskyInertia", "Positive", "Unit", "bake", "bounded", "inertia", "positive", "unit"]

#: Fields that are directions: their length means nothing, and may be anything positive.
DIRECTIONS = ("axis", "normal", "orientation_offset", "orientation", "other_orientation")
LEAST, MOST = 1e-100, 1e100  # both ends of the positive numbers, with which a field is asked whether it accepts all of them


class Positive(nn.Module):
    """exp(θ), elementwise. The steps of an optimizer are relative to the value, whatever its unit is."""

    def __init__(self, label: str) -> None:
        super().__init__()
        self.label = label

    def forward(self, theta: Tensor) -> Tensor:
        return theta.exp()

    def right_inverse(self, value: Tensor) -> Tensor:
        if not bool((value > 0).all()):
            raise ValueError(
                f"td.parametrize.positive: {self.label} is {value.tolist()}; allowed: values > 0, as only these are exponentials. "
                "Start from a small positive value, or, where zero and less are to be reached, leave the field plain"
            )
        return value.log()


class Bounded(nn.Module):
    """lower + (upper − lower) σ(θ), elementwise, with the logistic function σ. The bounds are buffers in the state dictionary."""

    lower: Tensor
    upper: Tensor

    def __init__(self, label: str, lower: Tensor, upper: Tensor) -> None:
        super().__init__()
        self.label = label
        self.register_buffer("lower", lower)
        self.register_buffer("upper", upper)

    def forward(self, theta: Tensor) -> Tensor:
        # `lerp` rounds to values within the bounds.
        return torch.lerp(self.lower, self.upper, theta.sigmoid())

    def right_inverse(self, value: Tensor) -> Tensor:
        fraction = (value - self.lower) / (self.upper - self.lower)
        if not bool(((fraction > 0) & (fraction < 1)).all()):
            raise ValueError(
                f"td.parametrize.bounded: {self.label} is {value.tolist()}; allowed: values between {self.lower.tolist()} and "
                f"{self.upper.tolist()}, both excluded, as only these are reached. Start inside, or choose wider bounds"
            )
        return fraction.logit()


class Unit(nn.Module):
    """θ/|θ| along the last dimension. Gradients are tangent to the sphere, so that steps against them do not shorten θ."""

    def __init__(self, label: str) -> None:
        super().__init__()
        self.label = label

    def forward(self, theta: Tensor) -> Tensor:
        return theta / torch.linalg.vector_norm(theta, dim=-1, keepdim=True)

    def right_inverse(self, value: Tensor) -> Tensor:
        if not bool((torch.linalg.vector_norm(value, dim=-1) > 0).all()):
            raise ValueError(f"td.parametrize.unit: {self.label} is {value.tolist()}; allowed: vectors of positive length")
        return self.forward(value)


class LogCholeskyInertia(nn.Module):
    """Inertia about the center of mass from θ = (d₁, d₂, d₃, s₁₂, s₂₃, s₁₃), (..., 6), and the mass m of the body.

    A body with density ρ has the pseudo-inertia ∫ [r, 1][r, 1]ᵀ ρ dV = [[Σ, h], [hᵀ, m]]. It is positive definite exactly where mass m,
    center of mass h/m and inertia I = tr(Σ) 1 − Σ belong to a distribution of positive mass (Wensing, Kim and Slotine 2018).
    Rucker and Wensing (2022, "Smooth parameterization of rigid-body inertia") write the pseudo-inertia as U Uᵀ with

            ⎡ e^d₁  s₁₂   s₁₃   t₁ ⎤
        U = e^α ⎢       e^d₂  s₂₃   t₂ ⎥
            ⎢             e^d₃  t₃ ⎥
            ⎣                   1  ⎦

    so that any ten numbers are a body, and every body has exactly ten such numbers. A `Body` has its frame at its center of mass, where
    the first moment h = m t vanishes. So t = 0 and seven numbers are left, with V the upper left block without the factor,

        m = e^2α,     Σ = m V Vᵀ,     I = m (tr(V Vᵀ) 1 − V Vᵀ).

    To learn the center of mass, learn the anchors of joints and the points of contacts. The mass m is read from the body. With `positive`
    it has the parameter log m = 2α, and its change scales the inertia as a change of density does. Σ/m is the mean of r rᵀ [m²], and e^d
    are lengths [m].
    """

    def __init__(self, body: Body) -> None:
        super().__init__()
        self._body = (body,)  # in a tuple, so that it does not become a submodule of its own parametrization

    def forward(self, theta: Tensor) -> Tensor:
        (d1, d2, d3), (s12, s23, s13) = theta[..., :3].exp().unbind(-1), theta[..., 3:].unbind(-1)
        zero = torch.zeros_like(d1)
        rows = ((d1, s12, s13), (zero, d2, s23), (zero, zero, d3))
        v = torch.stack([torch.stack(row, dim=-1) for row in rows], dim=-2)
        second = v @ v.mT
        trace = second.diagonal(dim1=-2, dim2=-1).sum(-1)
        identity = torch.eye(3, dtype=theta.dtype, device=theta.device)
        return self._body[0].mass[..., None, None] * (trace[..., None, None] * identity - second)

    def right_inverse(self, value: Tensor) -> Tensor:
        body = self._body[0]
        per_mass = value / body.mass[..., None, None]
        trace = per_mass.diagonal(dim1=-2, dim2=-1).sum(-1)
        second = 0.5 * trace[..., None, None] * torch.eye(3, dtype=value.dtype, device=value.device) - per_mass
        smallest = torch.linalg.eigvalsh(second)[..., 0]
        # Closer to zero, rounding decides about e^d, and its logarithm changes with the last digit of the moments.
        if not bool((smallest > 1e-12 * trace).all()):
            raise ValueError(
                f"td.parametrize.inertia: {body.label('inertia')} is {value.tolist()}, whose largest principal moment is the sum of the "
                "others: a body without thickness; allowed: less than the sum. Give the body some thickness, for example by adding "
                "1e-3 times its largest moment to all three"
            )
        # The upper triangular factor is the lower factor of the matrix with reversed rows and columns, reversed back.
        v = torch.linalg.cholesky(second.flip(-1, -2)).flip(-1, -2)
        above = torch.stack((v[..., 0, 1], v[..., 1, 2], v[..., 0, 2]), dim=-1)
        return torch.cat((v.diagonal(dim1=-2, dim2=-1).log(), above), dim=-1)


def positive(module: PhysicalModule, name: str) -> nn.Parameter:
    """Keep all elements of a field positive: mass, stiffness, damping, friction, radius, timestep, ...

    Returns:
        θ = log of the value, in the shape of the value.

    Raises:
        ValueError: unknown, parametrized or computed fields, values that are not positive, fields for which large or small positive
            values are not allowed. TypeError: not a body, joint, contact or mechanism.
    """
    value = _plain_value(module, name, "positive")
    if module.fields[name] > 1:
        raise ValueError(f"td.parametrize.positive: {module.label(name)} is a matrix; use td.parametrize.inertia(body)")
    parametrization = Positive(module.label(name))
    parametrization.right_inverse(value)
    _require_accepted(module, name, "positive", torch.full_like(value, LEAST), torch.full_like(value, MOST))
    return _register(module, name, value, parametrization)


def bounded(module: PhysicalModule, name: str, lower: float | Tensor, upper: float | Tensor) -> nn.Parameter:
    """Keep a field between bounds: restitution in [0, 1], friction in an interval, an angle of rest.

    Args:
        lower, upper: bounds in the unit of the field, broadcastable with its value; the field must accept both.

    Returns:
        θ = logit of the place between the bounds, in the shape of the value broadcast with the bounds.

    Raises:
        ValueError: unknown, parametrized or computed fields, values not between the bounds, bounds that are not in order or not allowed.
            TypeError: not a body, joint, contact or mechanism.
    """
    value = _plain_value(module, name, "bounded")
    ends = [as_tensor(bound, f"td.parametrize.bounded: {end}").detach().to(value) for bound, end in ((lower, "lower"), (upper, "upper"))]
    value, *ends = (tensor.clone() for tensor in torch.broadcast_tensors(value, *ends))
    if not bool((ends[0] < ends[1]).all()):
        raise ValueError(f"td.parametrize.bounded: {module.label(name)}: got bounds {lower} and {upper}; allowed: lower < upper")
    _require_accepted(module, name, "bounded", *ends)
    parametrization = Bounded(module.label(name), *ends)
    parametrization.right_inverse(value)
    return _register(module, name, value, parametrization)


def unit(module: PhysicalModule, name: str) -> nn.Parameter:
    """Keep a field a unit vector or quaternion: axes of joints, normals of surfaces, orientations.

    Returns:
        θ, any vector along the value, in its shape; it starts with length 1.

    Raises:
        ValueError: unknown, parametrized or computed fields, numbers that are not vectors, zero vectors, vectors whose length has a
            meaning and is not 1. TypeError: not a body, joint, contact or mechanism.
    """
    value = _plain_value(module, name, "unit")
    if module.fields[name] != 1 or not value.shape[-1]:
        raise ValueError(f"td.parametrize.unit: {module.label(name)} has shape {tuple(value.shape)} and is no vector; allowed: vectors")
    norm = torch.linalg.vector_norm(value, dim=-1)
    if name not in DIRECTIONS and not bool(((norm - 1).abs() <= 1e-6).all()):
        raise ValueError(
            f"td.parametrize.unit: {module.label(name)} has length {norm.tolist()}, which has a meaning; allowed: directions "
            f"({', '.join(d for d in DIRECTIONS if d in module.fields) or 'none here'}), or vectors of length 1 (within 1e-6)"
        )
    parametrization = Unit(module.label(name))
    parametrization.right_inverse(value)
    return _register(module, name, value, parametrization)


def inertia(body: Body) -> tuple[nn.Parameter, nn.Parameter]:
    """Keep mass and inertia physical: the mass is positive, and the moments obey the triangle inequality.

    `LogCholeskyInertia` has the equations. The mass becomes `positive` unless it is parametrized already, for instance `bounded`. To learn
    the inertia of a body of known mass, freeze the mass: ``td.parametrize.inertia(body)[0].requires_grad_(False)``.

    Returns:
        θ of the mass, (...,), and (d₁, d₂, d₃, s₁₂, s₂₃, s₁₃), (..., 6).

    Raises:
        ValueError: the inertia is parametrized or computed already, or the body has no thickness. TypeError: not a body.
    """
    if not isinstance(body, Body):
        raise TypeError(f"td.parametrize.inertia: got {type(body).__name__}; allowed: a Body")
    value = _plain_value(body, "inertia", "inertia")
    parametrization = LogCholeskyInertia(body)
    with torch.no_grad():
        value = value.expand(*broadcast_shapes(value.shape[:-2], body.mass.shape), 3, 3).clone()
        parametrization.right_inverse(value)
    if "mass" not in parametrized_names(body):
        positive(body, "mass")
    log_cholesky = _register(body, "inertia", value, parametrization)
    return _original(body, "mass"), log_cholesky


def bake(module: nn.Module) -> None:
    """Turn all parametrized fields of a mechanism, or of a part of it, into plain fields with their present values.

    They become new parameters that do not require grad, as in a mechanism just built. Parametrizations of physical fields that are
    registered with torch itself are baked as well. Parametrizations of other tensors, such as weights of user-written modules, stay.

    Raises:
        ValueError: a field does not accept its value; the module that has the field is then unchanged.
    """
    for owner in list(module.modules()):
        if not isinstance(owner, PhysicalModule):
            continue
        with torch.no_grad():
            names = [name for name in parametrized_names(owner) if name in owner.fields]
            # All values are read before any is changed, because the inertia depends on the mass.
            values = {name: owner.check_field(name, getattr(owner, name).detach().clone()) for name in names}
        for name, value in values.items():
            parametrize.remove_parametrizations(owner, name)
            setattr(owner, name, value)


def _plain_value(module: PhysicalModule, name: str, function: str) -> Tensor:
    """The value of a field that can be parametrized."""
    if not isinstance(module, PhysicalModule):
        raise TypeError(f"td.parametrize.{function}: got {type(module).__name__}; allowed: a body, joint, contact or mechanism")
    if name not in module.fields:
        kind = plain_class(module).__name__
        raise ValueError(f"td.parametrize.{function}: no field {name!r} in this {kind}; it has {list(module.fields)}")
    if name in parametrized_names(module):
        raise ValueError(f"td.parametrize.{function}: {module.label(name)} is parametrized already; undo that with td.parametrize.bake")
    value = module._parameters.get(name)
    if value is None:
        raise ValueError(
            f"td.parametrize.{function}: {module.label(name)} is a tensor with a graph of its own, computed elsewhere; parametrize plain "
            f"values: first assign one, module.{name} = module.{name}.detach()"
        )
    return value.detach()


def _require_accepted(module: PhysicalModule, name: str, function: str, *ends: Tensor) -> None:
    """Raise ValueError unless the field accepts the `ends` of the values that a parametrization can produce."""
    kept = module._parameters[name]
    try:
        for end in ends:
            setattr(module, name, end)
    except ValueError as error:
        raise ValueError(f"td.parametrize.{function}: not every value that it can produce is allowed: {error}") from error
    finally:
        module._parameters[name] = kept


def _register(module: PhysicalModule, name: str, value: Tensor, parametrization: nn.Module) -> nn.Parameter:
    # The module gets a new parameter: torch puts θ in the place of the value, and other modules may share that parameter.
    module._parameters[name] = nn.Parameter(value.clone())
    parametrize.register_parametrization(module, name, parametrization)
    return _original(module, name)


def _original(module: PhysicalModule, name: str) -> nn.Parameter:
    """θ of a parametrized field."""
    return module.get_submodule(f"parametrizations.{name}").get_parameter("original")
