"""Environments of the table: episodes without a bad number, batches, gradients, seeds, resumption, MuJoCo's motion, bad input."""

from __future__ import annotations

import dataclasses
import math
import re
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import torchdojo as td
from torchdojo.native import loader

NAMES = td.envs.names()
QUICK = ("cartpole_swingup", "reacher", "hopper", "ant", "humanoid")  # whose gradients the fast tests check
VARIANTS = [(name, {}) for name in NAMES] + [
    *((name, {"control": "torque", "reward": "gymnasium"}) for name in ("hopper", "walker2d", "half_cheetah", "ant", "humanoid")),
    ("cartpole_balance", {"reward": "gymnasium"}),
    ("cartpole_swingup", {"reward": "gymnasium"}),
    ("reacher", {"reward": "gymnasium"}),
    ("swimmer", {"reward": "gymnasium"}),
    ("ant", {"observe_impulses": True, "reward": "gymnasium"}),
    ("quadruped", {"control": "torque"}),
]
IDS = ["-".join((name, *(str(value) for value in options.values()))) for name, options in VARIANTS]
table = pytest.mark.parametrize(("name", "options"), VARIANTS, ids=IDS)
native = pytest.mark.skipif(not loader.available(), reason="no compiler for the native kernel")


def actions(env: td.envs.Env, steps: int, seed: int = 0) -> Tensor:
    """Random actions, (steps, B, nu)."""
    return 2.0 * torch.rand(steps, env.num_envs, env.num_actions, generator=torch.Generator().manual_seed(seed)) - 1.0


def check_episodes(env: td.envs.Env, steps: int) -> None:
    for action in actions(env, steps):
        out = env.step(action)
        for value in (out.obs, out.reward, out.final_obs, *out.info["terms"].values(), env.state.z):
            assert torch.isfinite(value).all()
        torch.testing.assert_close(sum(out.info["terms"].values()), out.reward)  # no step is flagged
        done = out.terminated | out.truncated
        assert not (out.terminated & out.truncated).any()
        torch.testing.assert_close(out.obs[~done], out.final_obs[~done], rtol=0, atol=0)
    assert env.statistics["flagged"] == 0
    assert env.statistics["steps"] == steps * env.num_envs


@native
@table
def test_random_episodes(name: str, options: dict[str, Any]) -> None:
    check_episodes(td.envs.make(name, num_envs=4, pool=16, episode_length=8, **options), 12)


@native
@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_long_random_episodes(name: str) -> None:
    check_episodes(td.envs.make(name, num_envs=16), 150)


@native
@pytest.mark.parametrize("name", NAMES)
def test_a_batch_is_its_environments_side_by_side(name: str) -> None:
    def make(num_envs: int, pool: int) -> td.envs.Env:
        env = td.envs.make(name, num_envs=num_envs, pool=pool, autoreset="disabled")
        # Rounding differs alone and in lanes (native/README.md), so a hard step may take another number of iterations. At the default of
        # 1e-9 such a step of the humanoid differs by 4e-11, at 1e-12 by 1e-14.
        env.mech.options = dataclasses.replace(env.mech.options, residual_tol=1e-12)
        return env

    batch = make(3, 8)
    z, goal = batch.state.z, batch.state.goal
    batch.reset(z=z, goal=goal)
    given = actions(batch, 4)
    together = [batch.step(action) for action in given]
    for i in range(3):
        alone = make(1, 1)
        alone.reset(z=z[i : i + 1], goal=goal[i : i + 1])
        for action, out in zip(given, together, strict=True):
            single = alone.step(action[i : i + 1])
            for ours, theirs in ((single.obs, out.obs), (single.reward, out.reward), (single.terminated, out.terminated)):
                torch.testing.assert_close(ours, theirs[i : i + 1], rtol=1e-12, atol=1e-12)


def closed_loop(env: td.envs.Env, z: Tensor, goal: Tensor, weights: Tensor, steps: int) -> Tensor:
    """Sum of the rewards under a policy that looks at the observation."""
    obs, total = env.reset(z=z, goal=goal), torch.zeros((), dtype=torch.float64)
    for _ in range(steps):
        out = env.step(torch.tanh(0.3 * obs @ weights))
        assert not (out.terminated | out.truncated).any()
        obs, total = out.obs, total + out.reward.sum()
    return total


@native
@pytest.mark.parametrize("name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in NAMES])
def test_gradient_of_a_closed_loop(name: str) -> None:
    """32 control steps without a reset, by all weights along one direction, against central differences."""
    env = td.envs.make(name, num_envs=2, pool=4, autoreset="disabled", noise=0.5)
    env._terminated = None  # a hopper under this policy falls
    z, goal = env.state.z, env.state.goal
    weights = 0.1 * torch.randn(env.num_obs, env.num_actions, dtype=torch.float64)
    along = torch.randn_like(weights)
    leaf = weights.clone().requires_grad_()
    closed_loop(env, z, goal, leaf, 32).backward()
    assert leaf.grad is not None
    ours, step = float((leaf.grad * along).sum()), 1e-6
    with torch.no_grad():
        sides = [float(closed_loop(env, z, goal, weights + sign * step * along, 32)) for sign in (1, -1, 2, -2)]
    expected = (8 * (sides[0] - sides[1]) - (sides[2] - sides[3])) / (12 * step)
    assert ours == pytest.approx(expected, rel=1e-5)


@native
def test_seeds_and_resumption() -> None:
    def make(seed: int = 3) -> td.envs.Env:
        return td.envs.make("hopper", num_envs=3, seed=seed, episode_length=6, randomize={"bodies.torso.mass": (0.8, 1.2)}, redraw=True)

    first, second, other = make(), make(), make(4)
    given = actions(first, 24)
    for action in given[:10]:
        a, b = first.step(action), second.step(action)
        other.step(action)
        torch.testing.assert_close(a.obs, b.obs, rtol=0, atol=0)
    assert not torch.equal(first.obs, other.obs)
    saved = first.state_dict()
    later = [first.step(action) for action in given[10:]]
    other.load_state_dict(saved)
    for action, out in zip(given[10:], later, strict=True):
        again = other.step(action)
        for ours, theirs in zip(again[:5], out[:5], strict=True):
            torch.testing.assert_close(ours, theirs, rtol=0, atol=0)
    assert other.statistics == first.statistics
    assert first.statistics["episodes"] >= 12


@native
def test_what_diverges_is_reset_counted_and_reported() -> None:
    env = td.envs.make("ant", num_envs=4, pool=8)
    for bad in (math.nan, math.inf):
        weights = torch.ones(8, dtype=torch.float64, requires_grad=True)
        action = 0.1 * torch.ones(4, 8, dtype=torch.float64) * weights
        action = torch.where((torch.arange(4) == 2)[:, None], action * bad, action)
        before = env.statistics
        out = env.step(action)
        assert out.info["flagged"].tolist() == [False, False, True, False]
        assert out.terminated.tolist() == [False, False, True, False]
        assert out.reward[2] == 0 and torch.isfinite(out.obs).all() and torch.isfinite(out.final_obs).all()
        assert env.statistics["flagged"] == before["flagged"] + 1 and env.statistics["resets"] == before["resets"] + 1
        env.detach()
    clean = torch.zeros(4, 8, dtype=torch.float64, requires_grad=True)
    with torch.no_grad():
        poison = torch.tensor([0.0, 0.0, math.nan, 0.0], dtype=torch.float64)[:, None]
    out = env.step(clean + poison)
    (gradient,) = torch.autograd.grad(out.reward.sum() + out.obs.sum(), clean)
    assert torch.isfinite(gradient).all() and (gradient[2] == 0).all() and (gradient[0] != 0).any()


@native
def test_the_state_hook_sees_the_whole_adjoint() -> None:
    """Clipped adjoints shrink, and a hook that does nothing changes nothing."""
    seen: list[Tensor] = []

    def hook(z: Tensor) -> Tensor:
        if z.requires_grad:
            z.register_hook(seen.append)
        return z

    env = td.envs.make("pendulum", num_envs=2)
    env.on_state = hook
    action = torch.zeros(2, 1, dtype=torch.float64, requires_grad=True)
    env.step(action)
    out = env.step(action)
    (gradient,) = torch.autograd.grad(out.reward.sum(), action)
    assert len(seen) == 2 and gradient.abs().sum() > 0
    env.detach()
    env.on_state = lambda z: z.detach()
    assert not env.step(action).obs.requires_grad


@native
@pytest.mark.parametrize("name", ["ant", "hopper"])
def test_reset_of_some_environments_and_episode_statistics(name: str) -> None:
    env = td.envs.make(name, num_envs=3, pool=8, episode_length=5, dtype=torch.float32)
    total = torch.zeros(3, dtype=torch.float32)
    for action in actions(env, 5):
        out = env.step(0.0 * action)
        total = total + out.reward
    assert out.obs.dtype == out.reward.dtype == torch.float32
    assert out.truncated.all() and not torch.equal(out.obs, out.final_obs)
    torch.testing.assert_close(out.info["episode_return"].float(), total)
    assert env.statistics["mean_length"] == 5
    env.step(actions(env, 1)[0])
    before = env.state
    obs = env.reset(torch.tensor([True, False, False]))
    assert torch.equal(obs[1:], before.obs[1:].float()) and not torch.equal(obs[0], before.obs[0].float())
    assert env.state.time.tolist() == [0, 1, 1]
    assert len(set(td.envs.make(name, num_envs=32, pool=8).reset(stagger=True).tolist()[0])) > 1


@native
def test_randomization_draws_each_environment() -> None:
    ranges = {"bodies.torso.*": (0.5, 2.0), "contacts.*.friction": (0.7, 1.3)}
    env = td.envs.make("hopper", num_envs=5, randomize=ranges)
    plain = td.envs.make("hopper", num_envs=5)
    factor = env.randomization.factors["bodies.torso.*"]
    torso, nominal = env.mech.bodies["torso"], plain.mech.bodies["torso"]
    torch.testing.assert_close(torso.mass, factor * nominal.mass)
    torch.testing.assert_close(torso.inertia, factor[:, None, None] * nominal.inertia)
    assert len(set(factor.tolist())) == 5
    pairs = zip(env.mech.contacts.values(), plain.mech.contacts.values(), strict=True)
    frictions = torch.stack([contact.friction / other.friction for contact, other in pairs])
    torch.testing.assert_close(frictions, frictions[:1].expand_as(frictions))
    check_episodes(env, 5)


@native
@pytest.mark.slow
def test_compiled_steps_are_the_eager_ones() -> None:
    eager, compiled = (td.envs.make("hopper", num_envs=3, pool=8, episode_length=4) for _ in range(2))
    compiled.compile(backend="aot_eager")
    for t, action in enumerate(actions(eager, 6)):
        if t == 3:  # guards look at tensors alone, and numbers of the mechanism are still read
            for env in (eager, compiled):
                env.mech.bodies["torso"].mass = 6.0
        action = action.double().requires_grad_()
        a, b = eager.step(action), compiled.step(action)
        torch.testing.assert_close(a.obs, b.obs, rtol=1e-12, atol=1e-12)
        grads = [torch.autograd.grad(out.reward.sum(), action, retain_graph=True)[0] for out in (a, b)]
        torch.testing.assert_close(*grads, rtol=1e-9, atol=1e-9)


# -- MuJoCo ------------------------------------------------------------------------------------------------------------------------------

PLANAR_ROOT = (("rootx", 1), ("rootz", 1), ("rooty", -1))
#: environment -> Gymnasium's, and MuJoCo's joint and sign of each coordinate
MUJOCO: dict[str, tuple[str, tuple[tuple[str, int], ...]]] = {
    "double_pendulum": ("InvertedDoublePendulum-v5", (("slider", 1), ("hinge", 1), ("hinge2", 1))),
    "reacher": ("Reacher-v5", (("joint0", 1), ("joint1", 1))),
    "swimmer": ("Swimmer-v5", tuple((joint, 1) for joint in ("slider1", "slider2", "free_body_rot", "motor1_rot", "motor2_rot"))),
    "hopper": ("Hopper-v5", (*PLANAR_ROOT, *((f"{part}_joint", 1) for part in ("thigh", "leg", "foot")))),
    "walker2d": (
        "Walker2d-v5",
        (*PLANAR_ROOT, *((f"{part}{side}_joint", 1) for side in ("", "_left") for part in ("thigh", "leg", "foot"))),
    ),
    "half_cheetah": ("HalfCheetah-v5", (*PLANAR_ROOT, *((f"{s}{part}", 1) for s in "bf" for part in ("thigh", "shin", "foot")))),
    "ant": ("Ant-v5", tuple((f"{joint}_{leg}", 1) for leg in (1, 2, 3, 4) for joint in ("hip", "ankle"))),
}


@native
@pytest.mark.slow
@pytest.mark.parametrize("name", MUJOCO)
def test_motion_without_contact_is_that_of_gymnasium(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """0.1 s under one random action, one control step of ours: within 1 % of the largest motion of a coordinate."""
    mujoco, gymnasium = pytest.importorskip("mujoco"), pytest.importorskip("gymnasium")
    monkeypatch.chdir(tmp_path)  # MuJoCo writes its warnings to a file in the current folder
    task, joints = MUJOCO[name]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = gymnasium.make(task).unwrapped
    model, data = theirs.model, theirs.data
    h, steps = 5e-4, 200
    contact = {} if name in ("double_pendulum", "reacher", "swimmer") else {"contact": False}
    extra = {"control": "torque"} if contact else {}
    env = td.envs.make(name, timestep=h, repeat=steps, pool=1, noise=3.0, model_options={"limits": False, **contact}, **extra)
    action = 0.4 * actions(env, 1, seed=5)[0]
    free = 6 if name == "ant" else 0  # coordinates of a free root, which starts at rest
    if free:
        env.reset(z=env.mech.to_maximal(env.state.q))
    q, qd, z = env.state.q[0], env.state.qd[0], env.state.z[0]
    model.opt.timestep, model.opt.disableflags = h, int(mujoco.mjtDisableBit.mjDSBL_CONTACT | mujoco.mjtDisableBit.mjDSBL_LIMIT)
    model.opt.gravity[0] = 0.0
    data.qpos[:], data.qvel[:] = model.qpos0, 0.0
    if free:
        data.qpos[:7] = torch.cat((q[:3], z[6:10])).numpy()
    for (joint, sign), value, rate in zip(joints, q[free:].tolist(), qd[free:].tolist(), strict=True):
        data.qpos[model.joint(joint).qposadr[0]] = sign * value + (-0.7 if (name, joint) == ("half_cheetah", "rootz") else 0.0)
        data.qvel[model.joint(joint).dofadr[0]] = sign * rate
    before = data.qpos.copy()
    order = [env.mech.actuators.names.index(model.joint(int(joint)).name) for joint in model.actuator_trnid[:, 0]]
    theirs.do_simulation(action[0, order].numpy(), steps)
    expected = [sign * (data.qpos - before)[model.joint(joint).qposadr[0]] for joint, sign in joints]
    moved = torch.as_tensor(expected)
    assert float(moved.abs().max()) > 0.01
    env.step(action)
    ours = env.state.q[0] - q
    torch.testing.assert_close(ours[free:], moved, rtol=0, atol=0.01 * float(moved.abs().max()))
    if free:
        fallen = torch.as_tensor(data.qpos[:3] - before[:3])
        torch.testing.assert_close(ours[:3], fallen, rtol=0, atol=0.01 * float(fallen.abs().max()))


def test_the_readme_has_every_environment() -> None:
    text = (Path(td.envs.__file__).parent / "README.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \| (\d+) \| (\d+) \| ([\w, ]+) \| ([\d.]+) · (\d+) \| (\d+) \| ([\w, ]+) \|$", text, re.MULTILINE)
    assert sorted(row[0] for row in rows) == sorted(NAMES)
    for name, obs, nu, control, h, repeat, length, rewards in rows:
        env = td.envs.make(name, pool=1)
        controls = "torque" if env.row.drive is None else "drive, torque"
        assert (int(obs), int(nu), control, rewards) == (env.num_obs, env.num_actions, controls, ", ".join(env.row.rewards))
        assert (float(h), int(repeat), int(length)) == (env.timestep, env.repeat, env.episode_length)


# -- bad input ---------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"name": "anteater"}, "no environment 'anteater'; there are: pendulum, .*ant, humanoid"),
        ({"reward": "brax"}, "reward: got 'brax'; allowed: shac, gymnasium"),
        ({"control": "telepathy"}, "control: got 'telepathy'; allowed: drive, torque"),
        ({"name": "cartpole_swingup", "control": "drive"}, "control: got 'drive'; allowed: torque"),
        ({"numbers": {"sped": 2.0}}, "numbers of 'ant': got 'sped'; allowed:"),
        ({"name": "pendulum", "drive": {"damping": 0.03}}, "for 'pendulum', which has no drives"),
        ({"name": "ant", "drive": {"dampng": 0.03}}, "drive of 'ant': got 'dampng'; allowed: reach, strength, damping"),
        ({"name": "quadruped", "reward": "gymnasium"}, "reward: got 'gymnasium'; allowed: shac"),
        ({"episode_length": 0}, "episode_length: got 0; allowed: a whole number of 1 or more"),
        ({"num_envs": 0}, "num_envs: got 0"),
        ({"repeat": 1.5}, r"repeat: got 1\.5"),
        ({"timestep": -0.01}, r"timestep: got -0\.01; allowed: a finite number above 0"),
        ({"noise": math.nan}, "noise: got nan; allowed: a finite number of 0 or more"),
        ({"autoreset": "never"}, "autoreset: got 'never'; allowed: same_step, disabled"),
        ({"dtype": torch.float16}, "dtype: got torch.float16"),
        ({"randomize": {"bodies.tail.mass": (0.9, 1.1)}}, r"no parameter 'bodies\.tail\.mass'; there are, .*bodies\.torso\.mass"),
        ({"randomize": {"bodies.torso.mass": (1.1, 0.9)}}, r"randomize\['bodies.torso.mass'\]: got \(1\.1, 0\.9\); allowed: a pair"),
        ({"randomize": {"bodies.torso.mass": 2.0}}, r"got 2\.0; allowed: a pair"),
        ({"model_options": {"wings": True}}, "'ant' has no option 'wings'"),
    ],
)
def test_bad_construction(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        td.envs.make(**{"name": "ant", **options})


def test_bad_calls() -> None:
    env = td.envs.make("pendulum", num_envs=2, pool=4)
    with pytest.raises(ValueError, match=r"action: got shape \(2, 3\); allowed: \(2, 1\)"):
        env.step(torch.zeros(2, 3))
    with pytest.raises(TypeError, match=r"action: got torch.int64; allowed: a tensor of torch.float32"):
        env.step(torch.zeros(2, 1, dtype=torch.int64))
    with pytest.raises(TypeError, match="action: got list"):
        env.step([[0.0], [0.0]])  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"mask: got torch.float64 \(2,\)"):
        env.reset(torch.ones(2))
    with pytest.raises(ValueError, match=r"reset: got z \(1, 13\)"):
        env.reset(z=env.state.z[:1])
    with pytest.raises(ValueError, match="load_state_dict: got a state of 'pendulum'"):
        td.envs.make("pendulum", num_envs=3, pool=4).load_state_dict(env.state_dict())
    with pytest.raises(ValueError, match="without actuators"):
        td.envs.Env(td.models.cartpole())


def reacher(**options: Any) -> td.Mechanism:
    mech = td.models.reacher(timestep=0.02)
    mech.options = td.SolverOptions(**options)
    return mech


class Given(td.envs.Env):
    """A robot whose class has numbers for `build` that a given mechanism does not take."""

    timestep = 0.05

    def build(self) -> td.Mechanism:
        return reacher(kappa=1e-8)

    def reward(self, before: td.envs.Motion, after: td.envs.Motion, action: Tensor) -> Tensor:
        return after.q[:, 0]


def test_a_given_mechanism_keeps_its_numbers() -> None:
    options = {"kappa": 1e-7, "grad_kappa": 1e-5}
    mech = reacher(**options)
    before = mech.timestep, mech.options
    env = Given(mech, pool=2)
    assert (mech.timestep, mech.options) == before and (env.timestep, env.kappa) == (0.02, 1e-7)
    asked = Given(reacher(**options), pool=2, kappa=1e-6, timestep=0.01)
    assert float(asked.mech.timestep) == 0.01 and asked.mech.options.kappa == 1e-6 and asked.mech.options.grad_kappa == 1e-5
    built = Given(pool=2)
    assert float(built.mech.timestep) == 0.05 and built.mech.options.kappa == 1e-4
    with pytest.raises(ValueError, match=r"kappa: Given has 0.0001, and .*grad_kappa=1e-05; allowed: .*grad_kappa=None"):
        Given(reacher(**options), pool=2, kappa=1e-4)
    batched = reacher()
    batched.timestep = torch.tensor([0.01, 0.02])
    with pytest.raises(ValueError, match=r"timestep: got one per environment, \(2,\); allowed: one for all"):
        Given(batched, pool=2)


class Bare(td.envs.Env):
    """A robot of one's own that gives what the keywords say."""

    def __init__(self, reward: Any = 0.0, fallen: Tensor | None = None, observed: float = 0.0, **options: Any) -> None:
        self.returned, self.fallen, self.observed = reward, fallen, observed
        super().__init__(td.models.reacher(), **{"pool": 3, **options})

    def reward(self, before: td.envs.Motion, after: td.envs.Motion, action: Tensor) -> Any:
        return self.returned if isinstance(self.returned, dict) else after.q[:, 0] + self.returned

    def terminated(self, after: td.envs.Motion) -> Tensor:
        return super().terminated(after) if self.fallen is None else self.fallen

    def observe(self, motion: td.envs.Motion) -> Tensor:
        return super().observe(motion) + self.observed


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"reward": torch.zeros(3, 1)}, r"Bare: reward 'reward' is torch.float64 \(3, 3\); allowed: floating point, \(3,\)"),
        ({"reward": {"speed": torch.zeros(2)}}, r"reward 'speed' is torch.float64 \(2,\)"),
        ({"fallen": torch.zeros(3)}, r"terminated is torch.float64 \(3,\); allowed: torch.bool"),
        ({"observed": math.inf}, r"observe gave \(3, 4\); allowed: finite numbers"),
    ],
)
def test_methods_of_ones_own_are_looked_at(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Bare(**options)


def test_a_robot_of_ones_own_starts_from_given_states() -> None:
    q = torch.tensor([[0.1, 0.2], [0.3, 0.4]])
    env = Bare(num_envs=9, pool=td.models.reacher().to_maximal(q))
    assert float((env.state.q[:, None] - q).abs().amax(-1).amin(-1).max()) < 1e-9
