"""A policy network in float32 is trained through control periods, with `torch.compile` of observation and policy."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import torchdojo as td
from torchdojo.native import loader

pytestmark = pytest.mark.skipif(not loader.available(), reason="no compiler for the native kernel")


@pytest.mark.slow
def test_a_compiled_policy_learns_to_balance() -> None:
    """Controls of a pole on a cart, held over four steps each: the loss at states never seen falls to less than half."""
    mech = td.models.cartpole().float()
    td.actuate(mech, {"push": td.Actuator.motor(next(iter(mech.input_layout)), gear=10.0, ctrlrange=(-1.0, 1.0))})
    net = nn.Sequential(nn.Linear(5, 32), nn.Tanh(), nn.Linear(32, 1)).float()
    cart, pole = mech.num_bodies - 2, mech.num_bodies - 1

    @torch.compile(fullgraph=True)
    def policy(z: Tensor) -> Tensor:
        body = z.unflatten(-1, (-1, 13))
        spin = body[..., pole, 10:].sum(-1, keepdim=True)
        tilt = body[..., pole, 7:10].sum(-1, keepdim=True)
        position, velocity = body[..., cart, :3].sum(-1, keepdim=True), body[..., cart, 3:6].sum(-1, keepdim=True)
        return torch.tanh(net(torch.cat((position, velocity, tilt, body[..., pole, 6:7], 0.2 * spin), -1)))

    def starts(count: int) -> Tensor:
        q, qd = 0.2 * torch.randn(count, mech.num_coordinates), 0.2 * torch.randn(count, mech.num_coordinates)
        return mech.to_maximal(q.float(), qd.float())

    def loss(z: Tensor) -> Tensor:
        path = mech.rollout(z, ctrl=policy, steps=12, repeat=4)
        assert path.z.dtype == torch.float32 and not path.status.any()
        body = path.z.unflatten(-1, (-1, 13))
        return (body[..., pole, 7:10].square().sum(-1) + 0.02 * body[..., cart, :3].square().sum(-1)).mean()

    torch.manual_seed(0)
    optimizer = torch.optim.Adam(net.parameters(), lr=2e-2)
    test = starts(16)
    before = float(loss(test))
    for _ in range(25):
        optimizer.zero_grad()
        loss(starts(16)).backward()
        optimizer.step()
    assert float(loss(test)) < before / 2  # 0.076 becomes 0.030


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_compiled_control_steps_have_the_gradients_of_eager_ones(dtype: torch.dtype) -> None:
    """Observation from joint coordinates, policy, control period and reward in one graph, over four periods, without a second compile."""
    mech = td.models.ant()
    torch.manual_seed(0)
    layers = nn.Linear(2 * mech.num_coordinates, 16), nn.ELU(), nn.LayerNorm(16), nn.Linear(16, mech.num_inputs)
    net = nn.Sequential(*layers).to(dtype)

    def control(z: Tensor, warm: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        action = torch.tanh(net(torch.cat(mech.to_minimal(z), -1)))
        out = mech.step(z, 5.0 * action, repeat=2, warm_start=warm)
        return out.z, out.solution, (out.z[..., 0] - z[..., 0] - 0.01 * action.square().sum(-1)).sum()

    start = td.models.initial_state("ant", mech, (2,)).to(dtype)
    first = mech.step(start).solution
    torch._dynamo.reset()
    gradients = []
    for run in (control, torch.compile(control, fullgraph=True, backend="aot_eager")):
        z, warm, total = start.clone().requires_grad_(), first, torch.zeros((), dtype=dtype)
        state = z
        for t in range(4):
            with torch._dynamo.config.patch(error_on_recompile=t > 1):  # the second state has a graph behind it
                state, warm, reward = run(state, warm)
            total = total + reward
        gradients.append(torch.autograd.grad(total, [z, *net.parameters()]))
    tolerance = 1e-12 if dtype == torch.float64 else 1e-5
    for actual, expected in zip(*gradients, strict=True):
        torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance * float(expected.abs().max()))
