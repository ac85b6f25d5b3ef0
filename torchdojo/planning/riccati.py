"""The backward recursion over problems and regularizations: the reference in PyTorch, and its compiled form (src/riccati.cpp).

At each node the value function is ½ dxᵀ V dx + vᵀ dx. The linear step dx⁺ = A dx + B du + d gives the quadratic Q of the node before:

    [Qxx Qxu; Qux Quu] = [lxx luxᵀ; lux luu] + [A B]ᵀ V [A B],    (Qx, Qu) = (lx, lu) + [A B]ᵀ (v + V d).

The policy du = k + K dx minimizes Q with Quu + μ (BᵀB + ε I) in the place of Quu, and Qux + μ BᵀA in that of Qux. This penalizes how far
the next state moves (Tassa, Erez and Todorov 2012, eq. 10). With bounds of du, k solves a quadratic program in a box, and rows of K vanish
where an input is at its bound (Tassa, Mansard and Todorov 2014).
"""

from __future__ import annotations

import ctypes
import functools
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from torchdojo.native.loader import NativeUnavailable, available, load_kernel

__all__ = ["Expansion", "Policy", "riccati", "riccati_reference"]

SOURCES = Path(__file__).parent / "src"
BOX_ITERATIONS = 20
LINE_SEARCH = 12


class Expansion(NamedTuple):
    """Gradient and Hessian of the merit: lx (P, T+1, n), lxx (P, T+1, n, n), lu (P, T, m), luu (P, T, m, m), lux (P, T, m, n).

    lux is None where no term depends on the state and the input of a node together.
    """

    lx: Tensor
    lxx: Tensor
    lu: Tensor
    luu: Tensor
    lux: Tensor | None = None


class Policy(NamedTuple):
    """Result of `riccati` over P problems and M regularizations.

    k, K: (P, M, T, m), (P, M, T, m, n).
    expected: Σ kᵀQu and Σ ½ kᵀQuu k, (P, M, 2). A step α is expected to change the merit by α times the first plus α² times the second.
    ok: (P, M) whether every Quu was positive definite and all numbers are finite. The other entries have no meaning.
    dx, du: (P, M, T+1, n), (P, M, T, m): the policy on the linear steps; empty where they are not asked for.
    """

    k: Tensor
    K: Tensor
    expected: Tensor
    ok: Tensor
    dx: Tensor
    du: Tensor


class _Call(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_int64) for name in ("problems", "regularizations", "steps", "n", "m", "threads")),
        *((name, ctypes.c_void_p) for name in ("AB", "BB", "defect", "lx", "lxx", "lu", "luu", "lux", "lower", "upper", "mu")),
        ("floor", ctypes.c_double),
        *((name, ctypes.c_void_p) for name in ("k", "K", "expected", "dx", "du", "ok")),
    ]


@functools.cache
def _library() -> ctypes.CDLL | None:
    if not available():
        return None
    try:
        library = load_kernel(SOURCES)
    except NativeUnavailable:
        return None
    library.td_riccati.argtypes = [ctypes.POINTER(_Call)]
    library.td_riccati.restype = None
    return library


def riccati(
    A: Tensor,
    B: Tensor,
    expansion: Expansion,
    mu: Tensor,
    *,
    defect: Tensor | None = None,
    bounds: tuple[Tensor, Tensor] | None = None,
    floor: float = 1e-6,
    motion: bool = True,
) -> Policy:
    """The policy of each problem at each regularization. It is compiled where there is a compiler, and `riccati_reference` elsewhere.

    Args:
        A, B: (P, T, n, n), (P, T, n, m). mu: (P, M).
        defect: d (P, T, n), or None for zero. bounds: least and largest du, each (P, T, m). floor: ε.
        motion: whether `dx` and `du` are wanted.
    """
    library = _library()
    if library is None:
        return riccati_reference(A, B, expansion, mu, defect=defect, bounds=bounds, floor=floor)
    P, T, n, m = B.shape
    M = mu.shape[-1]
    AB = torch.cat((A, B), dim=-1)
    BB = B.mT @ AB
    result = Policy(
        A.new_empty(P, M, T, m),
        A.new_empty(P, M, T, m, n),
        A.new_empty(P, M, 2),
        torch.empty(P, M, dtype=torch.int64),
        A.new_empty(P, M, T + 1 if motion else 0, n),
        A.new_empty(P, M, T if motion else 0, m),
    )
    lower, upper = (None, None) if bounds is None else (bound.contiguous() for bound in bounds)
    arrays = {"AB": AB.contiguous(), "BB": BB.contiguous(), "mu": mu.contiguous()}
    inputs = {**expansion._asdict(), "defect": defect, "lower": lower, "upper": upper}
    arrays |= {name: value.contiguous() for name, value in inputs.items() if value is not None}
    arrays |= result._asdict()
    call = _Call(problems=P, regularizations=M, steps=T, n=n, m=m, threads=torch.get_num_threads(), floor=floor)
    for name, array in arrays.items():
        setattr(call, name, array.data_ptr() if array.numel() else None)
    library.td_riccati(ctypes.byref(call))
    return result._replace(ok=result.ok.bool())


def riccati_reference(
    A: Tensor,
    B: Tensor,
    expansion: Expansion,
    mu: Tensor,
    *,
    defect: Tensor | None = None,
    bounds: tuple[Tensor, Tensor] | None = None,
    floor: float = 1e-6,
) -> Policy:
    """`riccati` in PyTorch: the specification."""
    (P, T, n, m), M = B.shape, mu.shape[-1]
    lx, lxx, lu, luu = (value[:, None] for value in expansion[:4])
    lux = A.new_zeros(P, 1, T, m, n) if expansion.lux is None else expansion.lux[:, None]
    weight = mu[..., None, None]
    eye = torch.eye(m, dtype=A.dtype)
    v, V = lx[:, :, -1].expand(P, M, n), lxx[:, :, -1].expand(P, M, n, n)
    expected, ok = A.new_zeros(P, M, 2), torch.ones(P, M, dtype=torch.bool)
    ks: list[Tensor] = []
    Ks: list[Tensor] = []
    for t in reversed(range(T)):
        At, Bt = A[:, None, t], B[:, None, t]
        if defect is not None:
            v = v + (V @ defect[:, None, t, :, None])[..., 0]
        Qx, Qu = lx[:, :, t] + (At.mT @ v[..., None])[..., 0], lu[:, :, t] + (Bt.mT @ v[..., None])[..., 0]
        Qxx, Qux, Quu = lxx[:, :, t] + At.mT @ V @ At, lux[:, :, t] + Bt.mT @ V @ At, luu[:, :, t] + Bt.mT @ V @ Bt
        regular, crossed = Quu + weight * (Bt.mT @ Bt + floor * eye), Qux + weight * (Bt.mT @ At)
        limits = None if bounds is None else (bounds[0][:, None, t].expand(P, M, m), bounds[1][:, None, t].expand(P, M, m))
        k, K, positive = _policy(regular, Qu, crossed, limits)
        ok &= positive
        steep = (Quu @ k[..., None])[..., 0]
        expected = expected + torch.stack(((k * Qu).sum(-1), 0.5 * (k * steep).sum(-1)), -1)
        v = Qx + (K.mT @ (steep + Qu)[..., None])[..., 0] + (Qux.mT @ k[..., None])[..., 0]
        V = Qxx + K.mT @ Quu @ K + K.mT @ Qux + Qux.mT @ K
        V = 0.5 * (V + V.mT)
        ks.append(k)
        Ks.append(K)
    k, K = torch.stack(ks[::-1], 2), torch.stack(Ks[::-1], 2)
    ok &= torch.isfinite(expected).all(-1)
    dx, du = [A.new_zeros(P, M, n)], []
    for t in range(T):
        u = k[:, :, t] + (K[:, :, t] @ dx[-1][..., None])[..., 0]
        if bounds is not None:
            u = u.clamp(bounds[0][:, None, t], bounds[1][:, None, t])
        du.append(u)
        after = (A[:, None, t] @ dx[-1][..., None] + B[:, None, t] @ u[..., None])[..., 0]
        dx.append(after if defect is None else after + defect[:, None, t])
    return Policy(k, K, expected, ok, torch.stack(dx, 2), torch.stack(du, 2))


def _policy(H: Tensor, g: Tensor, crossed: Tensor, bounds: tuple[Tensor, Tensor] | None) -> tuple[Tensor, Tensor, Tensor]:
    """k (..., m), K (..., m, n), and whether H (..., m, m) is positive definite in the free inputs."""
    if bounds is None:
        factor, info = torch.linalg.cholesky_ex(H)
        solved = -torch.cholesky_solve(torch.cat((g[..., None], crossed), -1), factor)
        return solved[..., 0], solved[..., 1:], info == 0
    lower, upper = bounds
    x = torch.zeros_like(g).clamp(lower, upper)
    running = torch.ones_like(g[..., 0], dtype=torch.bool)

    def value(x: Tensor) -> Tensor:
        return (x * (0.5 * (H @ x[..., None])[..., 0] + g)).sum(-1)

    for _ in range(BOX_ITERATIONS):
        gradient = g + (H @ x[..., None])[..., 0]
        held = ((x <= lower) & (gradient > 0)) | ((x >= upper) & (gradient < 0))
        factor, info = _free_factor(H, held)
        free = torch.where(held, 0.0, gradient)
        running = running & (free.abs().amax(-1) > 1e-12 * g.abs().amax(-1)) & (info == 0)
        if not bool(running.any()):
            break
        step = -torch.cholesky_solve(free[..., None], factor)[..., 0]
        start, slope = value(x), (step * gradient).sum(-1)
        searching, alpha, best = running.clone(), 1.0, x
        for _ in range(LINE_SEARCH):
            trial = (x + alpha * step).clamp(lower, upper)
            good = searching & (value(trial) <= start + 0.1 * alpha * slope + 1e-15 * start.abs())
            best = torch.where(good[..., None], trial, best)
            searching, alpha = searching & ~good, 0.5 * alpha
        running, x = running & ~searching, best
    gradient = g + (H @ x[..., None])[..., 0]
    held = ((x <= lower) & (gradient > 0)) | ((x >= upper) & (gradient < 0))
    factor, info = _free_factor(H, held)
    K = -torch.cholesky_solve(torch.where(held[..., None], 0.0, crossed), factor)
    return x, K, info == 0


def _free_factor(H: Tensor, held: Tensor) -> tuple[Tensor, Tensor]:
    """Cholesky factor of H with the rows and columns of held inputs replaced by those of the identity, and its failures."""
    either = held[..., None] | held[..., None, :]
    return torch.linalg.cholesky_ex(torch.where(either, torch.eye(H.shape[-1], dtype=H.dtype), H))
