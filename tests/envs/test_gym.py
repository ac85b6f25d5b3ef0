"""Environments for gymnasium: its own checker, ours in every mode and on broken environments, limits of time, bad input, torchrl."""

from __future__ import annotations

import json
import subprocess
import sys
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import torchdojo as td
from conftest import REPOSITORY
from torchdojo.native import loader

gymnasium = pytest.importorskip("gymnasium")
from gymnasium.utils.env_checker import check_env  # noqa: E402
from gymnasium.vector import AutoresetMode, VectorWrapper  # noqa: E402

from torchdojo.envs.gym import DojoVectorEnv, gymnasium_id  # noqa: E402

pytestmark = pytest.mark.skipif(not loader.available(), reason="no compiler for the native kernel")

NAMES = td.envs.names()
MODES = [mode.name for mode in AutoresetMode]
SWING = "torchdojo/CartpoleBalance-v0"
#: what gymnasium says about every robot, its own included: their observations have no bounds
UNBOUNDED = ("minimum value is -infinity", "maximum value is infinity")


def batch(name: str = SWING, mode: str = "NEXT_STEP", **options: Any) -> Any:
    """Three environments whose episodes end early, and in this one at different times."""
    own = {"noise": 3.0} if name == SWING else {}
    given = {"pool": 16, "max_episode_steps": 10, **own, **options}
    return gymnasium.make_vec(name, num_envs=3, vectorization_mode="vector_entry_point", autoreset_mode=mode, **given)


@pytest.mark.parametrize("name", NAMES)
def test_gymnasium_checks_every_environment(name: str) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        check_env(gymnasium.make(gymnasium_id(name), pool=8).unwrapped, skip_render_check=True)
    texts = [str(warning.message) for warning in caught]
    assert len(texts) == 2 and all(expected in text for expected, text in zip(UNBOUNDED, texts, strict=True)), texts


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", NAMES)
def test_batches_pass_our_checker(name: str, mode: str) -> None:
    """Among other things a batch gives what `SyncVectorEnv` of its environments gives, infos included."""
    report = td.envs.check_vector_env(batch(gymnasium_id(name), mode), steps=24)
    assert report.episodes >= 6 and report.compared


@pytest.mark.parametrize("mode", MODES)
def test_episodes_that_end_one_by_one(mode: str) -> None:
    options: dict[str, Any] = {"randomize": {"bodies.*.mass": (1.0, 1.0)}, "dtype": "float64", "reward": "gymnasium"}
    env = batch(SWING, mode, max_episode_steps=16, **options)
    report = td.envs.check_vector_env(env, steps=20)
    assert report.alone >= 2 and env.observation_space.dtype == np.float64
    with pytest.raises(gymnasium.error.ClosedEnvironmentError):
        env.reset()


def test_the_checker_knows_environments_of_gymnasium() -> None:
    sync = gymnasium.make_vec("CartPole-v1", num_envs=2, vectorization_mode="sync", max_episode_steps=10)
    assert not td.envs.check_vector_env(sync, steps=24).compared
    own = gymnasium.make_vec("CartPole-v1", num_envs=2, vectorization_mode="vector_entry_point", max_episode_steps=10)
    with pytest.raises(AssertionError):
        td.envs.check_vector_env(own, lambda: gymnasium.make("CartPole-v1"), steps=24)


class Broken(VectorWrapper):
    """A batch with a defect: a function of the results of a step or reset, which also gets this wrapper to remember things."""

    def __init__(self, env: Any, defect: Callable[..., Any]) -> None:
        super().__init__(env)
        self.defect, self.memory = defect, {}
        self.metadata = env.metadata

    @property
    def unwrapped(self) -> Any:
        return self

    def make_single(self) -> Any:
        return self.env.make_single()

    def step(self, actions: Any) -> Any:
        return self.defect(self, "step", self.env.step(actions), actions)

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        return self.defect(self, "reset", self.env.reset(seed=seed, options=options), options)


def steps_only(change: Callable[..., Any]) -> Callable[..., Any]:
    """A defect of steps alone: a function of (wrapper, obs, reward, terminated, truncated, info)."""
    return lambda self, call, answer, given: change(self, *answer) if call == "step" else answer


def same_buffer(self: Any, call: str, answer: Any, given: Any) -> Any:
    buffer = self.memory.setdefault("obs", np.empty_like(answer[0]))
    buffer[...] = answer[0]
    return (buffer, *answer[1:])


def counting(self: Any, call: str, answer: Any, given: Any) -> Any:
    self.memory["calls"] = self.memory.get("calls", 0) + 1
    return (answer[0] + np.float32(1e-3 * self.memory["calls"]), *answer[1:])


def reads_later(self: Any, call: str, answer: Any, given: Any) -> Any:
    """Adds the action of the step before, of which only a reference was kept."""
    if call == "reset":
        self.memory["action"] = None if given is None else self.memory.get("action")
        return answer
    before, self.memory["action"] = self.memory.get("action"), given
    return (answer[0] if before is None else answer[0] + 1e-3 * before[:, :1], *answer[1:])


def scribbles(self: Any, call: str, answer: Any, given: Any) -> Any:
    if call == "step":
        given[...] = 0.0
    return answer


def forgets_mask(self: Any, call: str, answer: Any, given: Any) -> Any:
    if call == "reset" and given:
        return self.env.reset()
    return answer


def without(info: dict[str, Any], *names: str) -> dict[str, Any]:
    return {key: value for key, value in info.items() if key not in names}


def with_final(info: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return {**info, **{key: change(info) for key, change in changes.items()}} if "final_obs" in info else info


def rows_of(obs: Any, info: dict[str, Any]) -> Any:
    rows = np.full(len(obs), None, dtype=object)
    for i in np.flatnonzero(info["_final_obs"]):
        rows[i] = obs[i].copy()
    return rows


def everybody(info: dict[str, Any]) -> Any:
    return np.ones_like(info["_final_obs"])


#: mode, defect, what the checker says
DEFECTS: dict[str, tuple[str, Callable[..., Any], str]] = {
    "shape": ("NEXT_STEP", steps_only(lambda self, obs, *rest: (obs[:, :-1], *rest)), r"step 0: obs: got an array of float32 \(3, 4\)"),
    "dtype": ("NEXT_STEP", steps_only(lambda self, obs, *rest: (obs.astype(np.float64), *rest)), "step 0: obs: got an array of float64"),
    "tuple": ("NEXT_STEP", steps_only(lambda self, *answer: answer[:4]), r"step 0: got tuple of 4"),
    "reward": ("NEXT_STEP", steps_only(lambda self, obs, reward, *rest: (obs, reward * np.nan, *rest)), "reward: got .*nan.*finite"),
    "one reward": ("NEXT_STEP", steps_only(lambda self, obs, reward, *rest: (obs, reward.sum(), *rest)), "step 0: reward: got"),
    "integers": ("NEXT_STEP", steps_only(lambda self, o, r, a, b, i: (o, r, a.astype(int), b, i)), "terminated: got an array of int64"),
    "same buffer": ("NEXT_STEP", same_buffer, r"what reset\(\) returned: got other numbers after later calls"),
    "not repeatable": ("NEXT_STEP", counting, "the same seed and actions give other results in a second run, in obs"),
    "keeps the action": ("NEXT_STEP", reads_later, "results change when arrays that it was given, or has returned, are overwritten"),
    "changes the action": ("NEXT_STEP", scribbles, "step 0: got another action than it was given"),
    "no mask": ("NEXT_STEP", steps_only(lambda self, *rest: (*rest[:4], without(rest[4], "_flagged"))), "no mask info\\['_flagged'\\]"),
    "no final obs": (
        "SAME_STEP",
        steps_only(lambda self, *rest: (*rest[:4], without(rest[4], "final_obs"))),
        "'final_obs' where an episode ended",
    ),
    "no final info": (
        "SAME_STEP",
        steps_only(lambda self, *rest: (*rest[:4], without(rest[4], "final_info", "_final_info"))),
        "'_final_info'.*SAME_STEP",
    ),
    "mask of all": ("SAME_STEP", steps_only(lambda self, *rest: (*rest[:4], with_final(rest[4], _final_obs=everybody))), "'_final_obs'"),
    "final is next": (
        "SAME_STEP",
        steps_only(lambda self, obs, *rest: (obs, *rest[:3], with_final(rest[3], final_obs=lambda info: rows_of(obs, info)))),
        r"obs\[\d\]: got the last observation",
    ),
    "reward of a new start": ("NEXT_STEP", steps_only(lambda self, o, r, a, b, i: (o, r + 1.0, a, b, i)), "reward 0 and no end"),
    "mask ignored": ("DISABLED", forgets_mask, "since reset_mask leaves this environment out"),
    "another reward": ("DISABLED", steps_only(lambda self, obs, reward, *rest: (obs, reward + 1e-3, *rest)), "one by one, in reward"),
    "another episode": (
        "SAME_STEP",
        lambda self, call, answer, given: (answer[0][::-1].copy(), *answer[1:]),
        "one by one, in obs of reset",
    ),
}


class Seedless(DojoVectorEnv):
    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        return super().reset(seed=7, options=options)


class OneSeed(DojoVectorEnv):
    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        return super().reset(seed=None if seed is None else [seed] * 3, options=options)


class AnyMask(DojoVectorEnv):
    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        mask = None if options is None else np.resize(np.asarray(options["reset_mask"], dtype=bool), 3)
        return super().reset(seed=seed, options=None if mask is None or not mask.any() else {"reset_mask": mask})


class ReadsAll(DojoVectorEnv):
    def step(self, actions: Any) -> Any:
        obs, *rest = super().step(actions)
        return (obs + np.float32(actions[:, :1]), *rest)


class NeverClosed(DojoVectorEnv):
    def close(self, **options: Any) -> None:
        pass


#: mode, class, attributes that are set, what the checker says
WRONG: dict[str, tuple[str, Any, dict[str, Any], str]] = {
    "no mode": ("NEXT_STEP", DojoVectorEnv, {"metadata": {}}, "autoreset_mode.*: got None"),
    "a string for a mode": ("NEXT_STEP", DojoVectorEnv, {"metadata": {"autoreset_mode": "NextStep"}}, "autoreset_mode.*: got 'NextStep'"),
    "another mode": ("NEXT_STEP", DojoVectorEnv, {"metadata": {"autoreset_mode": AutoresetMode.SAME_STEP}}, "_final_obs"),
    "another space": (
        "NEXT_STEP",
        DojoVectorEnv,
        {"action_space": gymnasium.spaces.Box(-1.0, 1.0, (2, 1))},
        "action_space: got .*batch_space",
    ),
    "no number": ("NEXT_STEP", DojoVectorEnv, {"num_envs": 0}, "num_envs: got 0"),
    "render mode": ("NEXT_STEP", DojoVectorEnv, {"render_mode": "human"}, "render_mode: got 'human'"),
    "ignores seeds": ("NEXT_STEP", Seedless, {}, "the same starts for three seeds"),
    "one seed": ("NEXT_STEP", OneSeed, {}, "one start for all environments"),
    "any mask": ("DISABLED", AnyMask, {}, "reset_mask.*with a list: got no error"),
    "reads all actions": ("NEXT_STEP", ReadsAll, {}, "results depend on actions of environments that start anew"),
    "never closed": ("NEXT_STEP", NeverClosed, {}, "close.*: got closed = False"),
}


@pytest.mark.parametrize("defect", WRONG)
def test_the_checker_finds_wrong(defect: str) -> None:
    mode, kind, attributes, message = WRONG[defect]
    env = kind("cartpole_balance", 3, autoreset_mode=mode, max_episode_steps=5, noise=3.0, pool=16)
    for name, value in attributes.items():
        setattr(env, name, value)
    with pytest.raises(AssertionError, match=message):
        td.envs.check_vector_env(env, steps=12)


def test_the_checker_wants_episodes_that_end() -> None:
    with pytest.raises(ValueError, match=r"got no end of an episode in 3 steps.*max_episode_steps"):
        td.envs.check_vector_env(batch(), steps=3)
    with pytest.raises(AssertionError, match=r"got int; allowed: a gymnasium\.vector\.VectorEnv"):
        td.envs.check_vector_env(3)


@pytest.mark.parametrize("defect", DEFECTS)
def test_the_checker_finds(defect: str) -> None:
    mode, change, message = DEFECTS[defect]
    with pytest.raises(AssertionError, match=message) as error:
        td.envs.check_vector_env(Broken(batch(SWING, mode), change), steps=12)
    assert str(error.value).startswith("check_vector_env: ") and "allowed: " in str(error.value)


def lengths(env: Any, limit: int) -> list[tuple[int, bool]]:
    """Length of an episode, and whether it was truncated."""
    env.reset(seed=0)
    for t in range(1, limit + 1):
        _, _, terminated, truncated, _ = env.step(np.zeros(env.action_space.shape))
        if np.any(terminated) or np.any(truncated):
            return [(t, bool(np.all(truncated)))]
    return []


def test_limits_of_time() -> None:
    name, options = "torchdojo/Reacher-v0", {"pool": 4}
    assert gymnasium.spec(name).max_episode_steps == 50
    cases: list[tuple[dict[str, Any], list[tuple[int, bool]]]] = [
        ({}, [(50, True)]),
        ({"max_episode_steps": 55}, [(55, True)]),
        ({"max_episode_steps": -1}, []),
        ({"episode_length": 5}, [(5, True)]),
    ]
    for own, expected in cases:
        assert lengths(gymnasium.make(name, **options, **own), 60) == expected
        assert lengths(gymnasium.make_vec(name, num_envs=2, **options, **own), 60) == expected


def test_seeds_masks_and_wrappers() -> None:
    env = gymnasium.wrappers.vector.RecordEpisodeStatistics(batch(mode="DISABLED", max_episode_steps=4))
    env.reset(seed=[5, None, 7])
    assert env.unwrapped.np_random_seed[0] == 5 and env.unwrapped.np_random_seed[2] == 7
    for _ in range(4):
        obs, reward, _, _, info = env.step(np.zeros((3, 1)))
    assert info["episode"]["l"].tolist() == [4, 4, 4] and info["_episode"].all()
    np.testing.assert_allclose(info["episode"]["r"], info["episode_return"], rtol=1e-6)
    parts = sum(value for key, value in info.items() if key.startswith("reward_"))
    np.testing.assert_allclose(parts, reward, rtol=1e-6)
    with pytest.raises(gymnasium.error.ResetNeeded, match=r"environments \[0, 1, 2\] that have no episode, or whose episode has ended"):
        env.step(np.zeros((3, 1)))
    again, _ = env.reset(seed=5, options={"reset_mask": np.array([True, False, False])})
    assert np.array_equal(again[1:], obs[1:]) and not np.array_equal(again[0], obs[0])
    single = gymnasium.make(SWING, pool=16, noise=3.0)
    assert np.array_equal(single.reset(seed=5)[0], again[0])
    with pytest.raises(gymnasium.error.ResetNeeded, match=r"\[1, 2\]"):
        env.step(np.zeros((3, 1)))
    again = gymnasium.make_vec(env.unwrapped.spec)
    assert again.autoreset_mode is AutoresetMode.DISABLED and again.num_envs == 3
    with pytest.raises(gymnasium.error.ResetNeeded):
        again.step(np.zeros((3, 1)))


def test_randomization_follows_the_seed() -> None:
    env = batch(mode="DISABLED", randomize={"bodies.*.mass": (0.5, 2.0)}, redraw=True)

    def rewards() -> Any:
        env.reset(seed=3)
        return [env.step(np.full((3, 1), 0.3))[0] for _ in range(3)]

    first = rewards()
    env.reset()
    assert np.array_equal(rewards(), first)


def test_robots_of_ones_own() -> None:
    def mine(**options: Any) -> td.envs.Env:
        return td.envs.make("pendulum", **options)

    env = DojoVectorEnv(mine, 2, max_episode_steps=3, pool=4)
    assert td.envs.check_vector_env(env, steps=6).compared


BAD: list[tuple[dict[str, Any], type[Exception], str]] = [
    (
        {"rewards": "shac"},
        TypeError,
        "unexpected keyword argument 'rewards'; allowed: clock, control, .*did you mean 'reward'",
    ),
    ({"autoreset": "disabled"}, TypeError, "give autoreset_mode of gymnasium.make_vec"),
    ({"reward": "best"}, ValueError, "reward: got 'best'; allowed: shac, gymnasium"),
    ({"dtype": "mean"}, ValueError, "dtype: got mean|dtype: got 'mean'; allowed: torch.float64"),
    ({"render_mode": "ascii"}, ValueError, "render_mode: got 'ascii'; allowed: None, rgb_array"),
    ({"noise": -1.0}, ValueError, "noise: got -1.0"),
    ({"width": 0}, ValueError, "width: got 0"),
]


@pytest.mark.parametrize(("options", "kind", "message"), BAD)
@pytest.mark.parametrize("make", [gymnasium.make, gymnasium.make_vec])
@pytest.mark.filterwarnings("ignore:.*render_mode")
def test_bad_keywords(make: Any, options: dict[str, Any], kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        make(SWING, **options)


def test_bad_calls() -> None:
    with pytest.raises(gymnasium.error.NameNotFound, match="Did you mean: `CartpoleBalance`"):
        gymnasium.make("torchdojo/CartpoleBalancing-v0")
    with pytest.raises(ValueError, match="autoreset_mode: got 'ALWAYS'; allowed: NEXT_STEP, SAME_STEP, DISABLED"):
        batch(mode="ALWAYS")
    with pytest.raises(ValueError, match="max_episode_steps: got 0"):
        batch(max_episode_steps=0)
    single, env = gymnasium.make(SWING, disable_env_checker=True, pool=4), batch()
    single.reset(seed=0)
    for seed, message in (([1, 2], "got 2 seeds; allowed: a number, None, or 3"),):
        with pytest.raises(ValueError, match=message):
            env.reset(seed=seed)
    env.reset(seed=0)
    for one, shape in ((single, (1,)), (env, (3, 1))):
        with pytest.raises(ValueError, match=r"action: got shape \(2, 2\); allowed: \("):
            one.step(np.zeros((2, 2)))
        with pytest.raises(ValueError, match=r"action: got nan at .*, and 0 more; allowed: finite numbers"):
            bad = np.zeros(shape)
            bad.flat[-1] = np.nan
            one.step(bad)
        with pytest.raises(TypeError, match="action: got str; allowed: numbers of shape"):
            one.step("left")
    for mask in ([True] * 3, np.ones(3), np.ones(2, dtype=bool), np.zeros(3, dtype=bool)):
        with pytest.raises((TypeError, ValueError), match=r"reset_mask: got .*allowed: an array of bool, \(3,\)"):
            env.reset(options={"reset_mask": mask})


def test_pictures() -> None:
    env = gymnasium.make_vec(SWING, num_envs=2, render_mode="rgb_array", width=96, height=64, pool=4)
    env.reset(seed=0)
    try:
        pictures = env.render()
    except (ImportError, RuntimeError) as error:  # no library draws here; tests/viewer make CI fail then
        pytest.skip(str(error))
    assert len(pictures) == 2 and all(picture.shape == (64, 96, 3) and picture.std() > 1.0 for picture in pictures)
    assert gymnasium.make(SWING, pool=4).unwrapped.render() is None


@pytest.mark.slow
def test_pictures_pass_the_checkers() -> None:
    options = {"render_mode": "rgb_array", "width": 96, "height": 64, "pool": 4}
    single = gymnasium.make(SWING, **options)
    try:
        single.reset(seed=0)
        single.render()
    except (ImportError, RuntimeError) as error:
        pytest.skip(str(error))
    with pytest.warns(UserWarning, match="infinity"):
        check_env(single.unwrapped)
    td.envs.check_vector_env(gymnasium.make_vec(SWING, num_envs=2, max_episode_steps=3, **options), steps=4)


REGISTERED = "print(json.dumps(sorted(name for name in gymnasium.registry if name.startswith('torchdojo/'))))"


@pytest.mark.slow
@pytest.mark.parametrize(
    "code",
    [
        "import json, sys, torchdojo; assert 'gymnasium' not in sys.modules; import gymnasium",
        "import json, gymnasium, torchdojo",
        "import json, gymnasium; gymnasium.make('torchdojo:torchdojo/Pendulum-v0')",
    ],
)
def test_ids_are_there_in_every_order_of_imports(code: str) -> None:
    run = subprocess.run([sys.executable, "-W", "error", "-c", f"{code}; {REGISTERED}"], capture_output=True, text=True, cwd=REPOSITORY)
    assert run.returncode == 0, run.stderr
    assert json.loads(run.stdout.splitlines()[-1]) == sorted(map(gymnasium_id, NAMES))


@pytest.mark.slow
def test_processes_of_gymnasium() -> None:
    env = gymnasium.make_vec(SWING, num_envs=2, vectorization_mode="async", pool=4)
    ours = gymnasium.make_vec(SWING, num_envs=2, pool=4)
    assert np.array_equal(env.reset(seed=0)[0], ours.reset(seed=0)[0])
    assert np.array_equal(env.step(np.full((2, 1), 0.5, np.float32))[0], ours.step(np.full((2, 1), 0.5))[0])
    env.close()


@pytest.mark.parametrize("mode", [None, "SAME_STEP", "DISABLED"])
def test_torchrl(mode: str | None) -> None:
    """torchrl refuses NEXT_STEP by itself."""
    pytest.importorskip("torchrl", reason="torchrl is not installed")
    from torchrl.envs import GymWrapper, check_env_specs

    options = {"max_episode_steps": 4, "pool": 8}
    env = GymWrapper(gymnasium.make(SWING, **options) if mode is None else batch(SWING, mode, **options))
    check_env_specs(env)
    out = env.rollout(10, break_when_any_done=False)
    done = out["next", "done"]
    assert done.sum() >= 2 * (1 if mode is None else 3) and out["next", "reward"].isfinite().all()
    assert out["next", "observation"].shape[-1] == 5
