"""The measurements of `torchdojo train --check`, before an environment costs an hour, and what to set.

    for note in diagnose(read_config({"env": "my_module:MyEnv"})):
        print(note.name, note.measured, note.advice)

Names of causes are those of health.py and of my_robot_does_not_learn.md. The gradient is held against central differences in float64, along
random directions, with the same random numbers in all runs:

    reward, observation   of each part by the coordinates and rates of the state, alone
    32 control steps      of the sum of the rewards by all actions, through the kernel and a random policy that sees the observations
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from torchdojo.envs import Env
from torchdojo.envs.motion import Motion
from torchdojo.learning.runs import RunConfig
from torchdojo.testing.diagnostics import resting_gap

__all__ = ["Note", "diagnose"]

Verdict = Literal["good", "change", "wrong"]

ENVS, STEPS = 16, 32
WARM_UP = 20  # control steps under random actions before anything is measured
EPSILONS = (1e-4, 1e-5, 1e-6)  # of differences; the best one counts, since contact bends what a large one sees and rounding a small one
TOLERANCE = 0.02  # relative error of the median environment; contact and kinks of rewards spoil single ones
SPREAD = 100.0  # largest adjoint over the median
GROWTH = 1e3  # of adjoints over a segment
SEED = 12345


class Note(NamedTuple):
    """One measurement. name: of the check. verdict: "wrong" for a gradient that is. measured: in words. advice: what to set and why."""

    name: str
    verdict: Verdict
    measured: str
    advice: str = ""


def diagnose(config: RunConfig) -> list[Note]:
    """Measure the environment of a description as it is trained; a minute or less.

    Raises:
        ValueError: an environment that cannot be made.
    """
    env = config.training_env(ENVS, dtype=torch.float64)
    notes = list(_parts(env))
    notes.append(_through_steps(env))
    horizon = int(getattr(config.parsed_settings(), "horizon", STEPS))
    notes += list(_adjoints(env, horizon))
    notes += [*_actions(env), *_servos(env)] if env.driving is None else []  # drives map actions onto their ranges, and are no servos
    notes += list(_contacts(env))
    notes += [*_timestep(functools.partial(config.training_env, ENVS, dtype=torch.float64)), _rewards(env, config)]
    return notes


def _verdict(name: str, exact: Tensor, differences: list[Tensor], wrong: str) -> Note:
    """Compare derivatives of environments (B,) with differences, one tensor for each epsilon."""
    size = max(float(exact.abs().max()), *(float(difference.abs().median()) for difference in differences))
    if size < 1e-12:
        return Note(name, "good", "does not depend on it")
    floor = 1e-6 * size
    errors = [
        float(((exact - difference).abs() / torch.maximum(exact.abs(), difference.abs()).clamp_min(floor)).median())
        for difference in differences
    ]
    error = min(errors)
    bad = not error <= TOLERANCE
    text = f"relative error {error:.1e} (median of {len(exact)} environments)"
    return Note(name, "wrong" if bad else "good", text, wrong if bad else "")


def _random(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(SEED), dtype=torch.float64)


def _policy(env: Env) -> Callable[[Tensor, Tensor], Tensor]:
    """A random policy that sees all of the observation: tanh(W (o − o₀) / scale + a)."""
    first = env.obs.double()
    center, scale = first.mean(0), first.std(0) + 0.1 + 0.1 * first.abs().mean(0)
    weight = 0.3 * _random(env.num_obs, env.num_actions) / math.sqrt(env.num_obs)
    return lambda obs, extra: torch.tanh(((obs - center) / scale).clamp(-5.0, 5.0) @ weight + extra)


def _run(env: Env, policy: Callable[[Tensor, Tensor], Tensor], extra: Tensor) -> tuple[Tensor, Tensor]:
    """Sums of rewards (B,) and the last observations (B, num_obs) of a policy. extra: (H, B, nu)."""
    obs, total = env.detach(), torch.zeros(env.num_envs, dtype=torch.float64)
    for row in extra:
        out = env.step(policy(obs.double(), row))
        obs, total = out.obs, total + out.reward.double()
    return total, out.final_obs.double()


def _settle(env: Env) -> tuple[Callable[[Tensor, Tensor], Tensor], Mapping[str, Any]]:
    """Let the environments come into motion; a policy, and the state that all comparisons begin in."""
    env.reset()
    policy = _policy(env)
    with torch.no_grad():
        _run(env, policy, 0.3 * _random(WARM_UP, env.num_envs, env.num_actions))
    return policy, env.state_dict()


def _through_steps(env: Env) -> Note:
    """The gradient through 32 control steps."""
    policy, state = _settle(env)
    extra, along = 0.3 * _random(2, STEPS, env.num_envs, env.num_actions)

    def value(by: Tensor) -> Tensor:
        env.load_state_dict(state)
        return _run(env, policy, by)[0]

    leaf = extra.clone().requires_grad_()
    total = value(leaf)
    exact = torch.zeros(env.num_envs, dtype=torch.float64)
    if total.requires_grad:
        exact = (torch.autograd.grad(total.sum(), leaf, materialize_grads=True)[0] * along).sum((0, 2))
    with torch.no_grad():
        differences = [(value(extra + e * along) - value(extra - e * along)) / (2 * e) for e in EPSILONS]
    name = f"gradient through {STEPS} steps"
    wrong = (
        "wrong gradient: something between action and reward cuts or bends the graph; look for detach(), item(), numpy(), writes in place"
    )
    note = _verdict(name, exact, differences, wrong)
    if note.measured == "does not depend on it":
        return Note(name, "wrong", "no reward depends on any action", "wrong gradient: let the reward depend on what the actions move")
    return note


def _parts(env: Env) -> Iterator[Note]:
    """Gradients of observation and parts of the reward by the state, alone."""
    policy, _ = _settle(env)
    before = env.state.motion
    with torch.no_grad():
        action = policy(env.obs.double(), torch.zeros(env.num_envs, env.num_actions, dtype=torch.float64))
        after = env.advance(before, action, None).z if env.driving is not None else env.mech.step(before.z, ctrl=action).z
    q, qd = env.mech.to_minimal(after)
    by_q, by_qd, by_obs = _random(*q.shape), _random(*qd.shape), _random(1, env.num_obs)

    def motion(shift: Tensor) -> Motion:
        """The state after a step, its coordinates shifted in each environment, (B, 1)."""
        z = env.mech.to_maximal(q + shift * by_q, qd + shift * by_qd)
        kept = before.goal, before.impulses, before.memory, before.activation
        moved = Motion(z, z[..., :13], *env.mech.to_minimal(z), action, *kept, before.time + 1)
        return moved._replace(memory=env.remember(before, moved, before.memory)) if before.memory.shape[-1] else moved

    def values(shift: Tensor) -> dict[str, Tensor]:
        shifted = motion(shift)
        terms = env.reward(before, shifted, action)
        parts = {"reward": terms} if isinstance(terms, Tensor) else dict(terms)
        seen = env.observe(shifted)
        named = {f"reward {name!r}" if name != "reward" else name: part for name, part in parts.items()}
        return named | {"observation": (seen * by_obs[:, : seen.shape[-1]]).sum(-1)}

    shift = torch.zeros(env.num_envs, 1, dtype=torch.float64, requires_grad=True)
    exact = {
        name: torch.autograd.grad(part.sum(), shift, retain_graph=True, allow_unused=True)[0] if part.requires_grad else None
        for name, part in values(shift).items()
    }
    with torch.no_grad():
        sides = [(values(torch.full_like(shift, e)), values(torch.full_like(shift, -e)), e) for e in EPSILONS]
    for name, gradient in exact.items():
        differences = [(plus[name] - minus[name]) / (2 * e) for plus, minus, e in sides]
        gradients = torch.zeros(env.num_envs, dtype=torch.float64) if gradient is None else gradient[:, 0]
        wrong = (
            f"wrong gradient: {name} is not differentiated as it is computed; look for detach(), item(), numpy(), rounding and comparisons"
        )
        yield _verdict(f"gradient of {name}", gradients, differences, wrong)


def _adjoints(env: Env, horizon: int) -> Iterator[Note]:
    """Growth of adjoints backwards through a segment, and their spread over environments."""
    policy, state = _settle(env)
    lengths = list[Tensor]()

    def watch(z: Tensor) -> Tensor:
        if z.requires_grad:
            z.register_hook(lambda grad: lengths.append(grad.norm(dim=-1)))
        return z

    extra = (0.3 * _random(horizon, env.num_envs, env.num_actions)).requires_grad_()
    kept, env.on_state = env.on_state, watch
    try:
        env.load_state_dict(state)
        total, last = _run(env, policy, extra)
        if not total.requires_grad:
            return
        torch.autograd.grad((last * _random(1, env.num_obs)).sum(), extra, retain_graph=True, materialize_grads=True)
        ends = torch.stack(lengths)
        lengths.clear()
        torch.autograd.grad(total.sum(), extra, materialize_grads=True)
        rewards = torch.stack(lengths)
    finally:
        env.on_state = kept
    some = ends > 0  # beyond the end of an episode there is no adjoint
    back = some.long().cumprod(0).sum(0)
    whole = back > 1
    if bool(whole.any()):
        oldest = ends.gather(0, (back - 1).clamp_min(0)[None])[0]
        rate = float(((oldest[whole] / ends[0, whole]).log() / (back[whole] - 1)).median())
        growth, longest = math.exp(rate * horizon), math.floor(math.log(GROWTH) / rate) if rate > 0 else 10**6
        bad = growth > GROWTH
        text = f"×{growth:.2g} over {horizon} control steps, ×{math.exp(rate):.2f} in each (median)"
        advice = f"exploding adjoints: settings.horizon={max(4, longest)}; or soften servos, raise kappa, or lengthen the control step"
        yield Note("growth of adjoints", "change" if bad else "good", text, advice if bad else "")
    seen = rewards[rewards > 0]
    if len(seen):
        spread = float(rewards.max() / seen.median())
        text = f"median {float(seen.median()):.3g}, largest {float(rewards.max()):.3g} per unit of reward"
        advice = "exploding adjoints: a few environments decide; leave adjoint_clip at auto, which bounds each of them"
        yield Note("spread of adjoints", "change" if spread > SPREAD else "good", text, advice if spread > SPREAD else "")


def _actions(env: Env) -> Iterator[Note]:
    """Whether actions from -1 to 1 reach the actuators, and each of them moves something."""
    motors = env.mech.actuators
    assert motors is not None
    reach = motors.ctrlrange.abs().amin(-1).clamp_max(1e6)
    short = [name for name, value in zip(motors.names, reach.reshape(-1, len(motors.names))[0].tolist(), strict=True) if value < 0.5]
    if short:
        yield Note(
            "range of actions",
            "change",
            f"controls of {', '.join(short)} are clipped below ±0.5, and actions go from -1 to 1",
            "saturated actions: give ctrlrange=(-1, 1), and put the reach into the gain: td.Actuator(joint, gain=kp * reach, "
            "bias=(0, -kp, -kv))",
        )
    else:
        yield Note("range of actions", "good", "controls take actions from -1 to 1")


def _servos(env: Env) -> Iterator[Note]:
    """Natural frequency and damping of position servos, with the inertia that a control meets in the first start."""
    motors, mech = env.mech.actuators, env.mech
    assert motors is not None
    h, z = float(mech.timestep), env.mech.initial_state() if env.num_starts == 0 else env.state.z[:1]
    places, count = motors.input_index.tolist(), len(motors.names)
    gear, stiff, damp = (value.reshape(-1, count)[0] for value in (motors.gear, -motors.bias[..., 1], -motors.bias[..., 2]))
    force = gear * motors.gain[..., 0].reshape(-1, count)[0]
    poor, worst = list[str](), (0.0, math.inf)
    with torch.no_grad():
        rest = mech.to_minimal(mech.step(z, ctrl=torch.zeros(1, count, dtype=torch.float64)).z)[1]
        for i, name in enumerate(motors.names):
            kp, kd = float(gear[i] ** 2 * stiff[i].clamp_min(0)), float(gear[i] ** 2 * damp[i].clamp_min(0))
            if not kp > 0:
                continue
            ctrl = torch.zeros(1, count, dtype=torch.float64)
            ctrl[0, i] = 1e-3
            moved = mech.to_minimal(mech.step(z, ctrl=ctrl).z)[1] - rest
            rate = float(moved[0].abs().max()) if len(places) != moved.shape[-1] else float(moved[0, places[i]].abs())
            inertia = max(h * abs(float(force[i])) * 1e-3 / max(rate, 1e-12) - h * kd - h * h * kp, 1e-9)
            quick, damping = h * math.sqrt(kp / inertia), kd / (2.0 * math.sqrt(kp * inertia))
            worst = max(worst[0], quick), min(worst[1], damping)
            if quick > 2.0 or damping < 0.05:
                poor.append(name)
    if math.isinf(worst[1]):
        return
    text = f"natural frequency × timestep up to {worst[0]:.2g}, damping ratio from {worst[1]:.2g}"
    advice = (
        f"stiff servos: {', '.join(poor)} ring or act within one timestep; lower kp so that frequency × timestep is below 2, and give kv "
        "for a damping ratio of 0.1 to 1"
    )
    yield Note("stiffness of servos", "change" if poor else "good", text, advice if poor else "")


def _contacts(env: Env) -> Iterator[Note]:
    """The gap that kappa leaves at rest."""
    if not len(env.mech.contacts):
        return
    try:
        gap = resting_gap(env.mech)
    except ValueError:
        return  # without gravity there is no rest
    text = f"kappa {env.kappa:.1g} leaves a gap of {1e3 * gap:.2g} mm at rest"
    height = float(env.state.z[:, 2].abs().median())  # of the first body
    if gap > 0.05 * height:
        yield Note(
            "kappa", "change", text, f"env_options.kappa={env.kappa * 0.01 * height / gap:.1g}: the robot floats, and pushes off from air"
        )
    elif gap < 1e-6:
        yield Note(
            "kappa", "change", text, f"env_options.kappa={env.kappa * 1e-5 / gap:.1g}: hard contact makes adjoints jump; learn softer"
        )
    else:
        yield Note("kappa", "good", text)


def _timestep(make: Callable[..., Env]) -> Iterator[Note]:
    """The same actions at half the timestep."""
    one = make()
    h = float(one.mech.timestep)
    other = make(timestep=h / 2.0, repeat=2 * one.repeat)
    if one.num_actions != other.num_actions or other.state.z.shape != one.state.z.shape:
        return
    actions, returns = torch.tanh(0.3 * _random(STEPS, one.num_envs, one.num_actions)), list[Tensor]()
    start, goal = one.state.z, one.state.goal
    with torch.no_grad():
        for env in (one, other):
            env.reset(z=start, goal=goal)
            total = torch.zeros(env.num_envs, dtype=torch.float64)
            for action in actions:
                total += env.step(action).reward.double()
            returns.append(total)
    flagged = one.statistics["flagged"] / one.statistics["steps"]
    size = max(float(returns[1].std()), float(returns[1].abs().mean()) * 0.1, 1e-9)
    change = float((returns[0] - returns[1]).abs().median()) / size
    text = f"h = {h:g} s × {one.repeat}: half of it changes returns by {change:.0%} of their spread; {flagged:.1%} of steps fail"
    advice = f"env_options.timestep={h / 2:g}, env_options.repeat={2 * one.repeat}: the robot at this timestep is another one"
    bad = change > 1.0 or flagged > 0.01
    yield Note("timestep", "change" if bad else "good", text, advice if bad else "")


def _rewards(env: Env, config: RunConfig) -> Note:
    """The size of values that the critics are to learn."""
    policy, _ = _settle(env)
    with torch.no_grad():
        total, _ = _run(env, policy, 0.3 * _random(STEPS, env.num_envs, env.num_actions))
    settings = config.parsed_settings()
    gamma, scale = float(getattr(settings, "gamma", 0.99)), float(getattr(settings, "reward_scale", 1.0))
    value = scale * float(total.abs().mean()) / STEPS * min(1.0 / (1.0 - gamma) if gamma < 1 else math.inf, env.episode_length)
    text = f"values of about {value:.2g} for the critics (reward_scale {scale:g})"
    good = 0.02 <= value <= 50.0
    advice = f"blind critic: settings.reward_scale={scale / max(value, 1e-9):.1g}, for values of about one"
    return Note("size of rewards", "good" if good else "change", text, "" if good else advice)
