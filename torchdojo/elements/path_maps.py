"""Points of the central path from points off it: the parts of `Element.on_path` of contacts (solver/path_newton.py has the theory).

Each map takes impulses and slacks as a Newton step leaves them, inside their cones or not, and returns a pair whose products are exactly κ.
Pairs that already have such products, and satisfy the row of the cone's height, come back unchanged. `change` holds the changes of impulses
and slacks since the previous Newton step, NaN in the first one.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

__all__ = ["disc_gap", "disc_on_path", "normal_on_path", "orthant_on_path", "pyramid_on_path", "weight_of"]

# Nominal weight of a gap, in units of m/h: the impulse that a gap stands for where a contact opens or closes. A slip has the weight m. It
# is within a factor of 3 of the best one for quadrupeds, ants and humanoids.
IMPULSE_WEIGHT = 1 / 3
MOST_WEIGHT, OTHER_WEIGHT = 50.0, 4.0  # in `weight_of`, relative to the nominal weight
# Impulses that only squeeze a body against itself meet no mobility: with 50 they double in every iteration until they are right. With the
# world, n contacts have 2n directions of friction, and 2n − 3 squeeze: half of them or more from three contacts on. So slips of bodies with
# BRACING_CONTACTS have a larger weight, where Newton's point misses their product by more than OFF_PATH κ, in the first iterations. Atlas
# takes 6.95 iterations per step in place of 8.77, the humanoid 5.31 in place of 5.34. Without a last iteration, 4 % of Atlas' attempts from
# a warm start fail in place of 1.8, with 8 iterations 1.6. With this weight for all contacts, an A1 at h = 0.02 finds other solutions.
SQUEEZING_WEIGHT, OFF_PATH, SQUEEZING_ITERATIONS, BRACING_CONTACTS = 1e6, 0.05, 8, 3
RETURN_WEIGHT = 20.0  # in `disc_on_path`, relative to the mass
PYRAMID_STEPS = 6
LEAST_HEIGHT = 1e-12  # height of a friction cone [N·s]: a frictionless contact needs an interior, too


class Change(NamedTuple):
    """Changes of impulses and of slacks since the previous Newton point, in their shapes; (E,) contacts that may squeeze their body."""

    impulse: Tensor
    slack: Tensor
    squeezing: Tensor | None = None

    def part(self, place: int | slice) -> Change:
        """The changes of some components."""
        return Change(self.impulse[..., place], self.slack[..., place], self.squeezing)


def weight_of(nominal: Tensor, impulse: Tensor, slack: Tensor, most: float | Tensor = MOST_WEIGHT) -> Tensor:
    """Weight of a slack (a gap, a slip), (...,), from two points of Newton's method: the impulse that the slack stands for in a map.

    Both points satisfy the linearized equations of motion. Where only this contact changes, slack = s₀ + G impulse with its mobility G.
    A map onto the path then leads to the solution in one step if the weight is G⁻¹. In a mechanism G is expensive. The change from one
    point to the next shows G along the way that matters, as a secant (Barzilai and Borwein 1988): Δimpulse·Δslack / |Δslack|².

    Most bodies that others hold are heavier than `nominal`, and smaller weights do not help. Where several contacts hold a body G is nearly
    singular. So the secant counts between once and `most` times `nominal`. A negative secant says that others moved the contact;
    OTHER_WEIGHT is then better than 1 or 10. With secants the humanoid takes 5.84 iterations per step in place of 6.36.

    Args:
        nominal: (...,). impulse, slack: (..., k) changes since the previous point; slacks that are NaN give `nominal`.
    """
    product, square = (impulse * slack).sum(-1), (slack * slack).sum(-1)
    secant = torch.minimum(torch.maximum(product / square, nominal), most * nominal)
    return torch.where(square.isnan(), nominal, torch.where(product > 0, secant, OTHER_WEIGHT * nominal))


def normal_on_path(gamma: Tensor, gap: Tensor, kappa: Tensor, mass: Tensor, timestep: Tensor, change: Change) -> Tensor:
    """The impulse of a gap [m, rad], (...,), as from `orthant_on_path`."""
    return orthant_on_path(gamma, gap, kappa, IMPULSE_WEIGHT * mass / timestep, change)


def orthant_on_path(gamma: Tensor, slack: Tensor, kappa: Tensor, nominal: Tensor, change: Change) -> Tensor:
    """γ > 0 with γ − a κ/γ = `gamma` − a `slack`, (...,): the positive root, without cancellation. `change` has the same shape.

    a: the weight of the slack, with the value `nominal` if nothing else is known (`weight_of`).
    """
    weight = weight_of(nominal, change.impulse[..., None], change.slack[..., None])
    c, level = gamma - weight * slack, kappa * weight
    root = torch.sqrt(c * c + 4 * level)
    return torch.where(c > 0, 0.5 * (c + root), 2 * level / (root - c))


def disc_on_path(height: Tensor, impulse: Tensor, slack: Tensor, kappa: Tensor, mass: Tensor, change: Change) -> tuple[Tensor, Tensor]:
    """ξ and η (..., 3) of a second-order cone with ξ₁ = `height` (...,), from values (..., 3) off the path.

    `change` has the last two components, (..., 2).

    From a distance e outside the disc the impulse comes back, and the slip grows by e over the weight. With a small weight that is many
    times the slip of Newton's point, and takes several iterations to undo. So the weight is at least e/|slip|, up to RETURN_WEIGHT times
    `mass`. With this bound a chain of 100 driven balls takes 7.08 iterations per step in place of 7.33.
    """
    most = torch.full_like(height, MOST_WEIGHT)
    if change.squeezing is not None:
        off_path = ((impulse * slack).sum(-1) - kappa).abs() > OFF_PATH * kappa
        most = most.masked_fill(off_path & change.squeezing, SQUEEZING_WEIGHT)
    height, nominal, mass = height.clamp_min(LEAST_HEIGHT), mass, weight_of(mass, change.impulse, change.slack, most)
    impulse, slack = impulse[..., 1:], slack[..., 1:]
    needed = (torch.linalg.vector_norm(impulse, dim=-1) - height) / torch.linalg.vector_norm(slack, dim=-1)
    needed = torch.minimum(needed, RETURN_WEIGHT * nominal)
    mass = torch.where(needed > mass, needed, mass)
    tangent = impulse - mass[..., None] * slack
    length = torch.sqrt((tangent * tangent).sum(-1).clamp_min(torch.finfo(impulse.dtype).tiny))
    base = kappa / height
    gap = disc_gap(length / height, base / height * mass)
    eta, inside = base / (gap * (2 - gap)), ((1 - gap) / length)[..., None] * tangent
    xi = torch.cat((height[..., None], height[..., None] * inside), dim=-1)
    return xi, torch.cat((eta[..., None], -eta[..., None] * inside), dim=-1)


def disc_gap(tau: Tensor, epsilon: Tensor) -> Tensor:
    """g = 1 − x with x + ε x/(1 − x²) = τ, x in [0, 1), (...,): how far a friction impulse stays inside its disc.

    Halley's method, started at the root for small g. After two steps the relative error is below 7e-7 for all τ >= 0, ε > 0. After three
    it is rounding.
    """
    excess, tiny = tau - 1, torch.finfo(tau.dtype).tiny
    root = torch.sqrt(excess * excess + 2 * epsilon)
    g = torch.where(excess > 0, epsilon / (excess + root), 0.5 * (root - excess)).clamp_max(1)
    for _ in range(3):
        q, r = g * (2 - g), excess + g
        value, slope, bend = q * r - epsilon * (1 - g), 2 * (1 - g) * r + q + epsilon, 2 * (1 - g) - r
        g = (g - value * slope / (slope * slope - value * bend)).clamp(tiny, 1)
    return g


def pyramid_on_path(height: Tensor, impulse: Tensor, slack: Tensor, kappa: Tensor, mass: Tensor, change: Change) -> tuple[Tensor, Tensor]:
    """(ψ, β) and (sψ, η), each (..., 1 + n), of a pyramid with 1ᵀβ + sψ = `height` (...,), from a point off the path.

    As in the disc, β − m (slip along each direction) is split into an impulse inside the pyramid and a slip that belongs to it. With
    d = β − m (η − ψ), every β_i(ψ) is the positive root of β − m κ/β = d_i − m ψ, and ψ is the root of

        f(ψ) = Σ β_i(ψ) + κ/ψ − height = 0,

    a smoothed projection onto the simplex. The bounds κ/ψ + Σ (d_i − m ψ) over the k largest d_i, k = 0 to n, lie below f, and ψ starts at
    their largest root. Newton's steps solve 1/(f + height) = 1/height, a nearly straight line where smoothing matters. After five
    steps, only rounding errors remain for n from 2 to 8, heights and impulses from 1e-4 to 10, κ from 1e-10 to 0.1, m from 0.01 to 10.
    """
    height = height.clamp_min(LEAST_HEIGHT)
    mass = weight_of(mass, change.impulse[..., 1:], change.slack[..., 1:] - change.impulse[..., :1])
    kappa, m = torch.broadcast_tensors(kappa, height)[0], mass[..., None]
    d = impulse[..., 1:] - m * (slack[..., 1:] - impulse[..., :1])
    count = torch.arange(d.shape[-1] + 1, dtype=d.dtype, device=d.device)
    largest = torch.cat((torch.zeros_like(d[..., :1]), d.sort(dim=-1, descending=True).values.cumsum(-1)), dim=-1)
    missing, curvature = height[..., None] - largest, 4 * count * m * kappa[..., None]
    root = torch.sqrt(missing * missing + curvature)
    # Positive root of k m ψ² + missing ψ − κ; k = 0 has missing = height > 0.
    beyond = torch.where(missing > 0, missing, -missing) + root
    bounds = torch.where(missing > 0, 2 * kappa[..., None] / beyond, beyond / (2 * count.clamp_min(1) * m))
    least = bounds.amax(-1)
    psi = least
    level = m * kappa[..., None]
    beta = d
    for iteration in range(PYRAMID_STEPS + 1):
        c = d - m * psi[..., None]
        root = torch.sqrt(c * c + 4 * level)
        beta = torch.where(c > 0, 0.5 * (c + root), 2 * level / (root - c))
        if iteration < PYRAMID_STEPS:
            rest = beta.sum(-1) + kappa / psi - height
            slope = mass * (beta / root).sum(-1) + kappa / (psi * psi)
            psi = torch.maximum(psi + (1 + rest / height) * rest / slope, least)
    return torch.cat((psi[..., None], beta), dim=-1), torch.cat(((kappa / psi)[..., None], kappa[..., None] / beta), dim=-1)
