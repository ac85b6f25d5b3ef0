"""The backward recursion: compiled against the reference, and both against exact solutions."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from torchdojo.planning.riccati import Expansion, riccati, riccati_reference


def problem(P: int, T: int, n: int, m: int, seed: int = 0, crossed: bool = False) -> tuple[Tensor, Tensor, Expansion, Tensor]:
    g = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=g, dtype=torch.float64)

    A, B, defect = torch.eye(n, dtype=torch.float64) + 0.2 * normal(P, T, n, n), normal(P, T, n, m), 0.1 * normal(P, T, n)
    C, D = normal(P, T + 1, n, n), normal(P, T, m, m)
    luu = 0.1 * D @ D.mT + 0.1 * torch.eye(m, dtype=torch.float64)
    expansion = Expansion(normal(P, T + 1, n), 0.1 * C @ C.mT, normal(P, T, m), luu)
    if crossed:  # a residual that depends on both, so that the Hessian stays semidefinite
        by_x, by_u = normal(P, T, 3, n), normal(P, T, 3, m)
        expansion.lxx[:, :-1] += by_x.mT @ by_x
        expansion = expansion._replace(luu=luu + by_u.mT @ by_u, lux=by_u.mT @ by_x)
    return A, B, expansion, defect


@pytest.mark.parametrize("defects", [False, True], ids=["closed", "defects"])
@pytest.mark.parametrize("bounded", [False, True], ids=["free", "bounded"])
@pytest.mark.parametrize("crossed", [False, True], ids=["apart", "crossed"])
@pytest.mark.parametrize("sizes", [(3, 7, 5, 2), (1, 4, 13, 6), (2, 3, 1, 1)], ids=str)
def test_compiled_equals_reference(sizes: tuple[int, int, int, int], crossed: bool, bounded: bool, defects: bool) -> None:
    A, B, expansion, defect = problem(*sizes, crossed=crossed)
    bounds = (torch.full_like(expansion.lu, -0.3), torch.full_like(expansion.lu, 0.2)) if bounded else None
    mu = torch.tensor([0.0, 1e-2, 10.0], dtype=torch.float64).expand(sizes[0], 3)
    given = {"defect": defect if defects else None, "bounds": bounds}
    compiled, reference = riccati(A, B, expansion, mu, **given), riccati_reference(A, B, expansion, mu, **given)
    assert bool(compiled.ok.all() and reference.ok.all())
    for name, a, b in zip(reference._fields, compiled, reference, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-9, msg=lambda text, name=name: f"{name}: {text}")


@pytest.mark.parametrize("crossed", [False, True], ids=["apart", "crossed"])
@pytest.mark.parametrize("defects", [False, True], ids=["closed", "defects"])
def test_solves_the_linear_quadratic_problem(defects: bool, crossed: bool) -> None:
    """Without regularization, the policy is the minimizer of the quadratic program over all inputs at once."""
    A, B, expansion, defect = problem(1, 6, 4, 2, crossed=crossed)
    lux = torch.zeros(6, 2, 4, dtype=torch.float64) if expansion.lux is None else expansion.lux[0]
    found = riccati(A, B, expansion, torch.zeros(1, 1, dtype=torch.float64), defect=defect if defects else None)
    u = torch.zeros(6, 2, dtype=torch.float64, requires_grad=True)

    def cost(u: Tensor) -> Tensor:
        x, total = torch.zeros(4, dtype=torch.float64), torch.zeros((), dtype=torch.float64)
        lx, lxx, lu, luu = (value[0] for value in expansion[:4])
        for t in range(6):
            total = total + 0.5 * x @ lxx[t] @ x + lx[t] @ x + 0.5 * u[t] @ luu[t] @ u[t] + lu[t] @ u[t] + u[t] @ lux[t] @ x
            x = A[0, t] @ x + B[0, t] @ u[t] + (defect[0, t] if defects else 0.0)
        return total + 0.5 * x @ lxx[6] @ x + lx[6] @ x

    (gradient,) = torch.autograd.grad(cost(u), u)
    hessian = torch.autograd.functional.hessian(cost, torch.zeros(6, 2, dtype=torch.float64)).reshape(12, 12)
    exact = -torch.linalg.solve(hessian, gradient.flatten()).reshape(6, 2)
    torch.testing.assert_close(found.du[0, 0], exact, rtol=1e-9, atol=1e-10)
    if not defects:
        torch.testing.assert_close(found.expected.sum(), cost(exact), rtol=1e-9, atol=1e-10)


def test_bounds_hold_and_minimize_each_node() -> None:
    A, B, expansion, _ = problem(2, 1, 4, 6, seed=1)
    low, high = torch.full_like(expansion.lu, -0.1), torch.full_like(expansion.lu, 0.3)
    found = riccati(A, B, expansion, torch.zeros(2, 1, dtype=torch.float64), bounds=(low, high))
    k = found.k[:, 0, 0]
    Quu = expansion.luu[:, 0] + B[:, 0].mT @ expansion.lxx[:, 1] @ B[:, 0]
    Qu = expansion.lu[:, 0] + (B[:, 0].mT @ expansion.lx[:, 1, :, None])[..., 0]
    gradient = Qu + (Quu @ k[..., None])[..., 0]
    assert bool(((k >= -0.1) & (k <= 0.3)).all()) and bool(((k == -0.1) | (k == 0.3)).any())
    projected = (k - gradient).clamp(-0.1, 0.3) - k  # zero at the minimum of a convex function in a box
    assert float(projected.abs().max()) < 1e-9
    assert bool((found.K[:, 0, 0][(k == -0.1) | (k == 0.3)] == 0).all())


@pytest.mark.parametrize("recursion", [riccati, riccati_reference])
def test_singular_and_nan_are_flagged(recursion: object) -> None:
    A, B, expansion, _ = problem(3, 5, 3, 2)
    luu, lx = expansion.luu.clone(), expansion.lx.clone()
    luu[0] = -100.0 * torch.eye(2, dtype=torch.float64)  # not convex at μ = 0
    lx[1, 2] = torch.nan
    mu = torch.tensor([0.0, 1e4], dtype=torch.float64).expand(3, 2)
    found = recursion(A, B, expansion._replace(luu=luu, lx=lx), mu)  # type: ignore[operator]
    assert found.ok.tolist()[1:] == [[False, False], [True, True]] and not found.ok[0, 0]
