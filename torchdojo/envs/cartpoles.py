"""Pendulums and carts: pendulum, cartpole_balance, cartpole_swingup, double_pendulum."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from torchdojo.envs.motion import Motion
from torchdojo.envs.rewards import Parts, effort
from torchdojo.envs.table import Row, TableEnv, add

__all__: list[str] = []

POLE = 0.6  # length of the poles of the double pendulum [m]


def _from_upright(angle: Tensor) -> Tensor:
    """The same angle within ±π of zero."""
    return torch.atan2(torch.sin(angle), torch.cos(angle))


def _observe_pendulum(env: TableEnv, m: Motion) -> Tensor:
    """cos and sin of the angle from upright, rate / 8 (Gymnasium: the rate)."""
    angle = m.q - math.pi
    return torch.cat((torch.cos(angle), torch.sin(angle), 0.125 * m.qd), -1)


def _pendulum(env: TableEnv, before: Motion, after: Motion, action: Tensor) -> Parts:
    """Gymnasium's Pendulum-v1: −(θ² + 0.1 θ̇² + 0.001 u²), at the state after the step instead of before."""
    angle, rate = _from_upright(after.q[..., 0] - math.pi), after.qd[..., 0]
    return {"angle": -angle.square(), "rate": -0.1 * rate.square(), "effort": -0.001 * env.row.motors["hinge"] ** 2 * effort(action)}


def _hanging(env: TableEnv, q: Tensor) -> Tensor:
    """All angles of the circle, whatever the noise."""
    return torch.cat((q[:, :-1], env.random(len(q), 1, low=-math.pi, high=math.pi)), -1)


def _observe_cart(env: TableEnv, m: Motion) -> Tensor:
    """x, ẋ, sin and cos of the pole's angle, its rate."""
    x, angle = m.q.unbind(-1)
    return torch.stack((x, m.qd[..., 0], torch.sin(angle), torch.cos(angle), m.qd[..., 1]), -1)


def _shac_cart(env: TableEnv, before: Motion, after: Motion, action: Tensor) -> Parts:
    """SHAC's cartpole: −(θ² + 0.1 θ̇² + 0.05 x² + 0.1 ẋ²)."""
    angle = _from_upright(after.q[..., 1])
    rates = after.qd.square()
    return {
        "angle": -angle.square(),
        "position": -0.05 * after.q[..., 0].square(),
        "rates": -0.1 * rates.sum(-1),
    }


def _balanced_cart(env: TableEnv, before: Motion, after: Motion, action: Tensor) -> Parts:
    """The same and 1, so that an episode that ends by a fall is worth less than one that goes on."""
    return {"alive": torch.ones_like(after.q[..., 0]), **_shac_cart(env, before, after, action)}


def _alive(env: TableEnv, before: Motion, after: Motion, action: Tensor) -> Parts:
    """Gymnasium's InvertedPendulum-v5: 1 while the pole is within 0.2 rad."""
    return {"alive": (after.q[..., 1].abs() <= 0.2).double()}


def _upright_reward(env: TableEnv, before: Motion, after: Motion, action: Tensor) -> Parts:
    """For the swing-up, where Gymnasium has none: 1 while the pole is within 0.2 rad of upright, from any number of turns."""
    return {"alive": (torch.cos(after.q[..., 1]) > math.cos(0.2)).double()}


def _tipped(env: TableEnv, after: Motion) -> Tensor:
    return after.q[..., 1].abs() > 0.2


def _observe_double(env: TableEnv, m: Motion) -> Tensor:
    """x, sines and cosines of both angles, rates (Gymnasium's, without the constraint force)."""
    angles = m.q[..., 1:]
    return torch.cat((m.q[..., :1], torch.sin(angles), torch.cos(angles), 0.2 * m.qd), -1)


def _tip(m: Motion) -> tuple[Tensor, Tensor]:
    """x and height of the second pole's end over the cart [m]."""
    lower = m.q[..., 1]
    total = lower + m.q[..., 2]
    return m.q[..., 0] + POLE * (torch.sin(lower) + torch.sin(total)), POLE * (torch.cos(lower) + torch.cos(total))


def _double(env: TableEnv, before: Motion, after: Motion, action: Tensor) -> Parts:
    """Gymnasium's InvertedDoublePendulum-v5: 10 − 0.01 x² − (y − 2)² − 0.001 ω₁² − 0.005 ω₂²."""
    x, y = _tip(after)
    rates = after.qd[..., 1:].square() @ torch.tensor((1e-3, 5e-3), dtype=torch.float64)
    return {"alive": torch.full_like(x, 10.0), "distance": -0.01 * x.square() - (y - 2.0).square(), "rates": -rates}


def _low(env: TableEnv, after: Motion) -> Tensor:
    return _tip(after)[1] <= 1.0


add({
    "pendulum": Row(
        "pendulum", _observe_pendulum, {"shac": _pendulum, "gymnasium": _pendulum}, motors={"hinge": 2.0}, timestep=0.05, repeat=1,
        episode_length=200, rates=0.5, start=_hanging,
    ),
    "cartpole_balance": Row(
        "cartpole", _observe_cart, {"shac": _balanced_cart, "gymnasium": _alive}, {"shac": _tipped, "gymnasium": _tipped},
        motors={"slider": 20.0}, repeat=2, noise=(0.05, 0.05), rates=0.05, center=(0.0, 0.0),
    ),
    "cartpole_swingup": Row(
        "cartpole", _observe_cart, {"shac": _shac_cart, "gymnasium": _upright_reward}, motors={"slider": 20.0}, timestep=0.01, repeat=2,
        episode_length=240, noise=(0.1, 0.1), center=(0.0, math.pi),
    ),
    "double_pendulum": Row(
        "double_pendulum", _observe_double, {"shac": _double, "gymnasium": _double}, {"shac": _low, "gymnasium": _low}, timestep=0.01,
        repeat=2, noise=(0.1, 0.05), rates=0.1, center=(0.0, 0.0, 0.0),
    ),
})  # fmt: skip
