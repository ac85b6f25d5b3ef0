"""Reflections of the robots of the table: involutions, pairs of motors, steps of mirrored states, robots that have none."""

from __future__ import annotations

import pytest
import torch

import torchdojo as td
from torchdojo.envs.motion import Motion
from torchdojo.envs.rewards import apart
from torchdojo.learning.networks import make_actor

LEFT_AND_RIGHT = {
    "ant": {"hip_1": "hip_4", "hip_2": "hip_3", "ankle_1": "ankle_4", "ankle_2": "ankle_3"},
    "humanoid": {"left_hip_x": "right_hip_x", "left_knee": "right_knee", "left_shoulder1": "right_shoulder1", "abdomen_z": "abdomen_z"},
    "walker2d": {"thigh_joint": "thigh_left_joint", "foot_joint": "foot_left_joint"},
    "half_cheetah": {"bthigh": "bthigh", "fshin": "fshin"},
}
#: largest difference of a mirrored step from the step of the mirrored state, over the largest change of rates in a step of 20 ms: the ant
#: is exact, the limits and inertias of Gymnasium's humanoid differ a little between its sides
EXACT = {"ant": 1e-6, "walker2d": 1e-6, "half_cheetah": 1e-6, "humanoid": 0.02}


@pytest.mark.parametrize("name", list(LEFT_AND_RIGHT))
def test_left_is_the_image_of_right(name: str) -> None:
    env = td.envs.make(name, num_envs=4, pool=4)
    mirror = env.mirror()
    for matrix, count in zip(mirror, (env.num_obs, env.num_actions), strict=True):
        assert torch.equal(matrix @ matrix, torch.eye(count, dtype=torch.float64))
        assert ((matrix != 0).sum(0) == 1).all()
    assert env.mech.actuators is not None
    motors = env.mech.actuators.names
    for one, other in LEFT_AND_RIGHT[name].items():
        assert mirror.action[motors.index(one)].abs().argmax() == motors.index(other)


@pytest.mark.parametrize("name", list(LEFT_AND_RIGHT))
def test_steps_in_contact_are_mirrored(name: str) -> None:
    """Rates, which observations hold, after a step of random states near the ground and of their images."""
    env = td.envs.make(name, num_envs=1, pool=2)
    mirror = env.mirror()
    generator = torch.Generator().manual_seed(5)
    home, count = env._center(), 16
    q, qd, action = (
        0.2 * torch.randn(count, size, generator=generator, dtype=torch.float64) for size in (len(home), len(home), env.num_actions)
    )
    from torchdojo.envs.mirrors import _coordinates

    turn = _coordinates(env.mech, home, name)
    images = ((home + q, qd, action), ((home + q) @ turn.mT, qd @ turn.mT, action @ mirror.action.mT))
    after = [env.mech.step(env.mech.to_maximal(q, qd), ctrl=ctrl).z for q, qd, ctrl in images]
    rates = [env.mech.to_minimal(z)[1] for z in after]
    change = float((rates[0] - qd).abs().max())
    assert float((rates[0] @ turn.mT - rates[1]).abs().max()) <= EXACT[name] * change
    seen = [env.observe(motion(env, z, ctrl)) for z, (_, _, ctrl) in zip(after, images, strict=True)]
    torch.testing.assert_close(seen[0] @ mirror.obs.mT, seen[1], rtol=0, atol=max(EXACT[name] * change, 1e-6))


def motion(env: td.envs.Env, z: torch.Tensor, action: torch.Tensor) -> Motion:
    empty = z.new_zeros(len(z), 0)
    return Motion(z, z[:, :13], *env.mech.to_minimal(z), action, empty, empty, empty, empty, torch.zeros(len(z), dtype=torch.int64))


def test_velocity_commands_are_mirrored() -> None:
    mirror = td.envs.make("quadruped", num_envs=1, pool=2).mirror()
    assert mirror.obs[-3:, -3:].diag().tolist() == [1.0, -1.0, -1.0]


def test_a_clock_is_half_a_stride_ahead_in_the_mirror() -> None:
    """Its phase is a memory that goes on by clock · period turns per step; sine and cosine are the last of the observation."""
    env = td.envs.make("ant", num_envs=4, pool=4, clock=2.5)
    mirror, first = env.mirror(), env.state.memory
    assert env.num_obs == td.envs.make("ant", num_envs=1, pool=2).num_obs + 2
    assert torch.equal(mirror.obs[-2:, -2:], -torch.eye(2, dtype=torch.float64)) and (mirror.obs != 0).sum() == env.num_obs
    env.step(torch.zeros(4, env.num_actions))
    torch.testing.assert_close(env.state.memory, torch.remainder(first + 2.5 * env.period, 1.0))
    torch.testing.assert_close(
        env.state.obs[:, -2:].double(), torch.cat([f(2 * torch.pi * env.state.memory) for f in (torch.sin, torch.cos)], -1)
    )
    with pytest.raises(ValueError, match="clock: got 0; allowed: a finite number above 0"):
        td.envs.make("ant", clock=0)


def test_joints_that_differ_from_their_images_cost() -> None:
    """By hand: hip_1 alone at 0.3 rad differs by 0.3 from the image of hip_4 at zero, and is counted from both sides."""
    env = td.envs.make("ant", num_envs=1, pool=2, numbers={"symmetry": 0.5})
    motors, (places, images) = env.mech.actuators, env.sides
    assert motors is not None
    q = env._center().expand(3, -1).clone()
    q[1, places[motors.names.index("hip_1")]] += 0.3
    bent = torch.tensor([0.3, 0.1, 0, 0, 0, 0, 0, 0], dtype=torch.float64)
    q[2, places] += bent + images @ bent
    now = env.state.motion._replace(q=q)
    torch.testing.assert_close(apart(env, now, now), torch.tensor([0.0, 2 * 0.3**2, 0.0], dtype=torch.float64))
    out = env.step(torch.zeros(1, env.num_actions))
    torch.testing.assert_close(out.info["terms"]["symmetry"], -0.5 * apart(env, env.state.motion, env.state.motion))
    with pytest.raises(ValueError, match="numbers of 'hopper': got 'symmetry'"):
        td.envs.make("hopper", numbers={"symmetry": 1.0})


def test_with_a_clock_the_image_is_that_of_half_a_stride_before() -> None:
    env = td.envs.make("ant", num_envs=2, pool=2, clock=2.5, numbers={"symmetry": 0.5}, control="torque")
    places, images = env.sides
    assert env.lag == 10 and env.state.memory.shape == (2, 81) and env.num_obs == 39
    assert torch.equal(env.mirror().obs[-2:, -2:], -torch.eye(2, dtype=torch.float64))
    action, seen = torch.linspace(-1, 1, 8).expand(2, -1), list[torch.Tensor]()
    for _ in range(13):
        terms = env.step(action).info["terms"]
        seen.append(env.state.q[:, places])
    torch.testing.assert_close(terms["symmetry"], -0.5 * (seen[-1] - seen[-11] @ images.mT).square().sum(-1))


def test_symmetric_actors_of_the_table() -> None:
    env = td.envs.make("ant", num_envs=1, pool=2)
    actor, mirror = make_actor(env, (16,), 0.2, symmetric=True), env.mirror()
    obs = torch.randn(5, env.num_obs, dtype=torch.float64)
    torch.testing.assert_close(actor.mean(obs @ mirror.obs.mT), actor.mean(obs) @ mirror.action.mT.to(actor.mean(obs)))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("pendulum", r"mirror of pendulum: got body 'rod' at .* without an image of the same mass at −y; allowed: .* symmetric about y"),
        ("reacher", "mirror of reacher: the observation's number 9 has no image"),
        ("quadrotor", "mirror of quadrotor: got motors without an image"),
    ],
)
def test_robots_without_a_mirror_image(name: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        td.envs.make(name, num_envs=1, pool=2).mirror()


def test_observed_impulses_have_no_image_here() -> None:
    with pytest.raises(ValueError, match="got observed impulses, sensors or a memory"):
        td.envs.make("ant", num_envs=1, pool=2, observe_impulses=True).mirror()
