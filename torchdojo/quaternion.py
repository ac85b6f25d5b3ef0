"""Unit quaternions in `wxyz` order, shape (..., 4), read as rotations from a body frame to its reference frame.

Every function broadcasts over leading dimensions, is differentiable (at the identity too) and works under `torch.func` transforms.
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor

__all__ = [
    "conjugate",
    "exp",
    "from_rotation_matrix",
    "identity",
    "increment",
    "inverse_rotate",
    "multiply",
    "normalize",
    "rotate",
    "rotation_change",
    "rotation_matrix",
    "rotation_vector",
]


def cross(a: Tensor, b: Tensor) -> Tensor:
    """Cross product over the last dimension with broadcasting, (..., 3)."""
    if a.ndim != b.ndim:
        a, b = torch.broadcast_tensors(a, b)
    if a.dtype != b.dtype:  # a constant in a user's code, say, in torch's default dtype
        dtype = torch.promote_types(a.dtype, b.dtype)
        a, b = a.to(dtype), b.to(dtype)
    return torch.linalg.cross(a, b, dim=-1)


def _hamilton_product() -> Tensor:
    """The Hamilton product as a matrix from outer products (16) to quaternions (4)."""
    product = torch.zeros(4, 4, 4, dtype=torch.float64, device="cpu")
    # 1, i, j, k are 0, 1, 2, 3: the index of p_i q_j is i XOR j, and the sign follows from ij = k.
    negative = {(1, 1), (2, 2), (3, 3), (3, 2), (1, 3), (2, 1)}
    for i in range(4):
        for j in range(4):
            product[i, j, i ^ j] = -1 if (i, j) in negative else 1
    return product.reshape(16, 4)


# Tensors that are made inside a transform of torch.func, or while torch.export traces, belong to it. A cache would keep them for all later
# calls, so these are made when the module is imported.
_PRODUCT = _hamilton_product()
_SIGNS = torch.tensor((1.0, -1.0, -1.0, -1.0), dtype=torch.float64, device="cpu")


@functools.cache
def _constants(dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    """The matrix of the Hamilton product, and the signs of the conjugate."""
    return _PRODUCT.to(device, dtype), _SIGNS.to(device, dtype)


for _dtype in (torch.float64, torch.float32):
    _constants(_dtype, torch.device("cpu"))


def identity(dtype: torch.dtype = torch.float64, device: torch.device | str | None = None) -> Tensor:
    """The identity rotation, (4,)."""
    return torch.tensor((1.0, 0.0, 0.0, 0.0), dtype=dtype, device=device)


def multiply(p: Tensor, q: Tensor) -> Tensor:
    """Hamilton product p ⊗ q: first the rotation q, then p."""
    # One product with a constant matrix: the step spends its time on calls, not on arithmetic.
    return (p[..., :, None] * q[..., None, :]).flatten(-2) @ _constants(p.dtype, p.device)[0]


def conjugate(q: Tensor) -> Tensor:
    """Inverse of a unit quaternion."""
    return q * _constants(q.dtype, q.device)[1]


def normalize(q: Tensor) -> Tensor:
    """Project onto the unit sphere; gradients come back tangent to it."""
    return q / torch.linalg.vector_norm(q, dim=-1, keepdim=True)


def rotate(q: Tensor, v: Tensor) -> Tensor:
    """R(q) v, for v of shape (..., 3)."""
    w, u = q[..., :1], q[..., 1:]
    t = 2 * cross(u, v)
    return v + w * t + cross(u, t)


def inverse_rotate(q: Tensor, v: Tensor) -> Tensor:
    """R(q)ᵀ v."""
    w, u = q[..., :1], q[..., 1:]
    t = 2 * cross(u, v)
    return v - w * t + cross(u, t)


def rotation_change(q: Tensor, v: Tensor) -> Tensor:
    """R(q) v − v, with the rounding of this difference alone where the rotation is small."""
    w, u = q[..., :1], q[..., 1:]
    t = 2 * cross(u, v)
    return w * t + cross(u, t)


def rotation_matrix(q: Tensor) -> Tensor:
    """R(q), (..., 3, 3)."""
    w, x, y, z = q.unbind(-1)
    return torch.stack(
        (
            1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y),
            2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x),
            2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y),
        ),
        dim=-1,
    ).unflatten(-1, (3, 3))  # fmt: skip


def rotation_vector(q: Tensor) -> Tensor:
    """Axis times angle [rad] of the shorter of the two rotations q and −q, |result| ≤ π, (..., 3)."""
    q = torch.where(q[..., :1] < 0, -q, q)
    w, u = q[..., :1], q[..., 1:]
    squared = (u * u).sum(-1, keepdim=True)
    # Below 1e-8 in |u| the series is exact to rounding, and sqrt would have an infinite derivative.
    small = squared < 1e-16
    sine = torch.sqrt(torch.where(small, torch.ones_like(squared), squared))
    scale = torch.where(small, 2 - squared / 3, 2 * torch.atan2(sine, w) / sine)
    return scale * u


def exp(phi: Tensor) -> Tensor:
    """Quaternion of the rotation vector phi [rad], (..., 4)."""
    squared = (phi * phi).sum(-1, keepdim=True)
    small = squared < 1e-12
    angle = torch.sqrt(torch.where(small, torch.ones_like(squared), squared))
    real = torch.where(small, 1 - squared / 8, torch.cos(angle / 2))
    scale = torch.where(small, 0.5 - squared / 48, torch.sin(angle / 2) / angle)
    return torch.cat((real, scale * phi), dim=-1)


def pulled_back(phi: Tensor, effort: Tensor) -> Tensor:
    """The torque of an effort along a rotation vector φ, |φ| <= π: the transposed Jacobian of φ times `effort`, (..., 3).

    A turn ω in front of exp(φ) changes φ by J⁻¹ω with the left Jacobian J of SO(3). Barfoot 2017, section 7.1, gives
    J⁻ᵀ = I + ½[φ]× + c [φ]×², c = (1 − (|φ|/2) cot(|φ|/2))/|φ|². Efforts along φ itself stay what they are.
    """
    squared = (phi * phi).sum(-1, keepdim=True)
    small = squared < 1e-4  # where the next term of the series is below rounding
    half = 0.5 * torch.sqrt(torch.where(small, torch.ones_like(squared), squared))
    series = 1 / 12 + squared / 720 + squared * squared / 30240
    c = torch.where(small, series, (1 - half / torch.tan(half)) / (4 * half * half))
    turned = cross(phi, effort)
    return effort + 0.5 * turned + c * cross(phi, turned)


def increment(omega: Tensor, timestep: Tensor | float) -> Tensor:
    """Rotation of one step at body-frame angular velocity omega [rad/s]: [√(1 − (h/2)²|ω|²), (h/2) ω].

    Unit by construction; not a number for |ω| ≥ 2/h, which no step of this length can represent.
    """
    half = 0.5 * timestep * omega
    return torch.cat((torch.sqrt(1 - (half * half).sum(-1, keepdim=True)), half), dim=-1)


def from_rotation_matrix(matrix: Tensor) -> Tensor:
    """Quaternion with non-negative real part of a rotation matrix (..., 3, 3)."""
    m = matrix
    d = torch.diagonal(m, dim1=-2, dim2=-1)
    trace = d.sum(-1)
    # Four ways of writing the quaternion; the one with the largest pivot loses no digits (Shepperd 1978).
    candidates = torch.stack(
        (
            torch.stack((1 + trace, m[..., 2, 1] - m[..., 1, 2], m[..., 0, 2] - m[..., 2, 0], m[..., 1, 0] - m[..., 0, 1]), -1),
            torch.stack(
                (m[..., 2, 1] - m[..., 1, 2], 1 + 2 * d[..., 0] - trace, m[..., 0, 1] + m[..., 1, 0], m[..., 0, 2] + m[..., 2, 0]), -1
            ),
            torch.stack(
                (m[..., 0, 2] - m[..., 2, 0], m[..., 0, 1] + m[..., 1, 0], 1 + 2 * d[..., 1] - trace, m[..., 1, 2] + m[..., 2, 1]), -1
            ),
            torch.stack(
                (m[..., 1, 0] - m[..., 0, 1], m[..., 0, 2] + m[..., 2, 0], m[..., 1, 2] + m[..., 2, 1], 1 + 2 * d[..., 2] - trace), -1
            ),
        ),
        dim=-2,
    )
    pivot = torch.stack((trace, d[..., 0], d[..., 1], d[..., 2]), -1).argmax(-1)
    q = torch.take_along_dim(candidates, pivot[..., None, None], dim=-2).squeeze(-2)
    q = normalize(q)
    return torch.where(q[..., :1] < 0, -q, q)
