"""A checker of gymnasium's vector environments, which gymnasium itself has not: `gymnasium.utils.env_checker` knows single ones.

A run with random actions is judged step by step (shapes, dtypes, masks of infos, what the autoreset mode demands), and then repeated: once
as it was, once while all arrays that were given and returned are overwritten, and once beside single environments. Every repetition has to
give the same results.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import gymnasium

__all__ = ["VectorEnvReport", "check_vector_env"]

FINAL = ("final_obs", "final_info")


class VectorEnvReport(NamedTuple):
    """The record of `check_vector_env`.

    steps: of the batch. episodes: that ended. alone: steps in which episodes of some environments ended, and those of others did not.
    compared: whether the batch was compared with single environments.
    """

    steps: int
    episodes: int
    alone: int
    compared: bool


class _Result(NamedTuple):
    """The results of a call; reward, terminated and truncated are None after a reset."""

    call: str
    obs: Any
    reward: Any
    terminated: Any
    truncated: Any
    info: Any
    ended: NDArray[np.bool_]


def check_vector_env(
    env: gymnasium.vector.VectorEnv, single: Callable[[], gymnasium.Env] | None = None, *, steps: int = 64, seed: int = 123
) -> VectorEnvReport:
    """Check that a vector environment does what gymnasium and its own autoreset mode demand. It is closed at the end.

    Args:
        env: with `AutoresetMode` in ``metadata["autoreset_mode"]``. Its episodes must end within `steps` random actions.
        single: makes one environment like those of the batch. `SyncVectorEnv` of these must give the same results, infos included, to 1e-6;
            where a step both terminates and truncates, either may be reported. None: ``env.unwrapped.make_single``, if there is one.
        steps: of each run. seed: of the first environment and of the actions.

    Raises:
        AssertionError: a check that fails. It names the call, what it got and what is allowed.
        ValueError: no episode ended, so that nothing can be said about resets.
    """
    from gymnasium.vector import AutoresetMode, SyncVectorEnv

    _check_form(env)
    env.action_space.seed(seed)
    actions, mode = [env.action_space.sample() for _ in range(steps)], env.metadata["autoreset_mode"]
    run = _Runner(env, mode, seed)
    first = run(actions, judge=True)
    ends = [result.ended for result in first if result.reward is not None]
    episodes, alone = int(sum(ended.sum() for ended in ends)), sum(bool(ended.any() and not ended.all()) for ended in ends)
    if not episodes:
        raise ValueError(
            f"check_vector_env: got no end of an episode in {steps} steps; allowed: one or more; give steps=, or make shorter episodes "
            "(max_episode_steps=)"
        )
    if env.spec is None or not env.spec.nondeterministic:
        _compare(first, run(actions), "the same seed and actions give other results in a second run", 0.0)
        _compare(first, run(actions, overwrite=True), "results change when arrays that it was given, or has returned, are overwritten", 0.0)
        if mode is AutoresetMode.NEXT_STEP:
            _compare(first, run(actions, other=True), "results depend on actions of environments that start anew in this step", 0.0)
        _check_seeds(env, seed)
    if mode is AutoresetMode.DISABLED:
        _check_masks(env, seed)
    single = getattr(env.unwrapped, "make_single", None) if single is None else single
    if single is not None:
        reference = SyncVectorEnv([single] * env.num_envs, autoreset_mode=mode)
        _compare(_Runner(reference, mode, seed)(actions), first, "the batch differs from its environments one by one", 1e-6)
        reference.close()
    if env.render_mode == "rgb_array":
        _check_pictures(env)
    env.close()
    _require(env.unwrapped.closed, "close()", "closed = False", "True, which VectorEnv.close sets; override close_extras instead")
    env.close()  # a second time does no harm
    return VectorEnvReport(steps, episodes, alone, single is not None)


def _require(good: Any, what: str, got: Any, allowed: Any) -> None:
    if not good:
        raise AssertionError(f"check_vector_env: {what}: got {got}; allowed: {allowed}")


def _check_form(env: Any) -> None:
    """Type, spaces and metadata."""
    from gymnasium import Space
    from gymnasium.vector import AutoresetMode, VectorEnv
    from gymnasium.vector.utils import batch_space

    _require(isinstance(env, VectorEnv), "the environment", type(env).__name__, "a gymnasium.vector.VectorEnv")
    count: Any = getattr(env, "num_envs", None)
    _require(isinstance(count, int) and count > 0, "num_envs", repr(count), "a whole number of 1 or more")
    for kind in ("observation_space", "action_space"):
        one: Any = getattr(env, f"single_{kind}", None)
        batch: Any = getattr(env, kind, None)
        for name, space in ((f"single_{kind}", one), (kind, batch)):
            _require(isinstance(space, Space), name, repr(space), "a space of gymnasium")
        expected = batch_space(one, count)
        _require(batch == expected, kind, batch, f"{expected}, which is batch_space(single_{kind}, {count})")
    mode = env.metadata.get("autoreset_mode")
    _require(isinstance(mode, AutoresetMode), 'metadata["autoreset_mode"]', repr(mode), "a member of gymnasium.vector.AutoresetMode")
    modes = [None, *env.metadata.get("render_modes", ())]
    _require(env.render_mode in modes, "render_mode", repr(env.render_mode), f'{modes}, from metadata["render_modes"]')


class _Runner:
    """Runs of an environment from one seed, with resets where the mode leaves them to the user."""

    def __init__(self, env: Any, mode: Any, seed: int) -> None:
        self.env, self.mode, self.seed = env, mode, seed

    def __call__(self, actions: list[Any], *, judge: bool = False, overwrite: bool = False, other: bool = False) -> list[_Result]:
        """Results, copied when they were returned.

        judge: look at each of them, and at the end whether the arrays that were returned still are what they were.
        overwrite: scribble into all arrays after each call. other: take other actions where the mode ignores them.
        """
        from gymnasium.vector import AutoresetMode

        env, results, returned = self.env, list[_Result](), list[_Result]()
        nobody = np.zeros(env.num_envs, dtype=bool)

        def keep(result: _Result, ended: NDArray[np.bool_], chosen: NDArray[np.bool_] | None) -> None:
            if judge:
                self._judge(result, ended, chosen)
            results.append(copy.deepcopy(result))
            returned.append(result)
            for array in _arrays(result[1:6]) if overwrite else ():
                array[...] = np.full((), 1, array.dtype)

        answer = env.reset(seed=self.seed)
        _require(isinstance(answer, tuple) and len(answer) == 2, "reset()", _kind(answer), "(obs, info)")
        keep(_Result("reset()", answer[0], None, None, None, answer[1], nobody), nobody, None)
        ended = nobody
        for t, sampled in enumerate(actions):
            action = copy.deepcopy(sampled)
            if other and ended.any():
                env.action_space.seed(self.seed + 1 + t)
                action = _mixed(env.action_space, action, env.action_space.sample(), ended)
            original = copy.deepcopy(action)
            answer = env.step(action)
            _require(_same(action, original, 0.0), f"step {t}", "another action than it was given", "an action that stays as it is")
            for array in _arrays(action) if overwrite else ():
                array[...] = 0
            good = isinstance(answer, tuple) and len(answer) == 5
            _require(good, f"step {t}", _kind(answer), "(obs, reward, terminated, truncated, info)")
            for name, value in zip(("terminated", "truncated"), answer[2:4], strict=True):
                _check_array(f"step {t}: {name}", value, (env.num_envs,), "b")
            waiting, ended = ended, answer[2] | answer[3]
            obs, reward, terminated, truncated, info = answer
            keep(_Result(f"step {t}", obs, reward, terminated, truncated, info, ended), waiting, None)
            if self.mode is AutoresetMode.DISABLED and ended.any():
                answer = env.reset(options={"reset_mask": ended.copy()})
                keep(_Result(f"the reset after step {t}", answer[0], None, None, None, answer[1], nobody), nobody, ended)
                if judge:
                    self._check_untouched(results[-2].obs, results[-1].obs, ended, t)
        for result, copied in zip(returned, results, strict=True) if judge else ():
            _require(
                _same(result[1:6], copied[1:6], 0.0), f"what {result.call} returned", "other numbers after later calls", "arrays of its own"
            )
        return results

    def _judge(self, result: _Result, waiting: NDArray[np.bool_], chosen: NDArray[np.bool_] | None) -> None:
        """A result by itself. waiting: environments whose episode had ended before. chosen: those of a partial reset."""
        from gymnasium.vector import AutoresetMode
        from gymnasium.vector.utils import iterate

        env, call, shape = self.env, result.call, (self.env.num_envs,)
        _check_dtype(f"{call}: obs", result.obs, env.observation_space)
        inside = result.obs in env.observation_space
        _require(inside, f"{call}: obs", f"values outside of the space: {result.obs}", env.observation_space)
        _require(isinstance(result.info, dict), f"{call}: info", type(result.info).__name__, "a dictionary")
        _check_info(call, {key: value for key, value in result.info.items() if key.lstrip("_") not in FINAL}, shape, chosen)
        again = result.ended if self.mode is AutoresetMode.SAME_STEP else np.zeros(shape, dtype=bool)
        for name in FINAL:
            mask = result.info.get(f"_{name}", np.zeros(shape, dtype=bool))
            _check_array(f"{call}: info['_{name}']", mask, shape, "b")
            _require(np.array_equal(mask, again), f"{call}: info['_{name}']", mask, f"{again}: where an episode ended, in SAME_STEP alone")
            _require(
                not again.any() or name in result.info, f"{call}: info", list(result.info), f"{name!r} where an episode ended (SAME_STEP)"
            )
        if again.any():
            _check_info(f"{call}: info['final_info']", result.info["final_info"], shape, None)
            rows = list(iterate(env.observation_space, result.obs))
            for i, final in enumerate(result.info["final_obs"]):
                good = final in env.single_observation_space if again[i] else final is None
                _require(good, f"{call}: info['final_obs'][{i}]", final, "an observation, or None where no episode ended")
                reset = not again[i] or not _same(final, rows[i], 0.0)
                _require(reset, f"{call}: obs[{i}]", "the last observation", "one of the next episode")
        if result.reward is None:
            return
        _check_array(f"{call}: reward", result.reward, shape, "f")
        _require(np.isfinite(result.reward).all(), f"{call}: reward", result.reward, "finite numbers")
        if self.mode is AutoresetMode.NEXT_STEP and waiting.any():
            starts = (result.reward == 0.0) & ~result.ended
            text = "reward 0 and no end in environments that start anew (NEXT_STEP)"
            _require(starts[waiting].all(), f"{call}: reward", result.reward[waiting], text)

    def _check_untouched(self, before: Any, after: Any, mask: NDArray[np.bool_], t: int) -> None:
        from gymnasium.vector.utils import iterate

        space = self.env.observation_space
        for i, (old, new) in enumerate(zip(iterate(space, before), iterate(space, after), strict=True)):
            what = f"the reset after step {t}: obs[{i}]"
            _require(mask[i] or _same(old, new, 0.0), what, new, f"{old}, since reset_mask leaves this environment out")
            _require(not mask[i] or not _same(old, new, 0.0), what, "the last observation", "one of the next episode")


def _check_dtype(what: str, value: Any, space: Any) -> None:
    """The dtype and shape of a batch; of dictionaries and tuples, those of the parts."""
    from gymnasium import spaces

    if isinstance(space, spaces.Dict | spaces.Tuple):
        parts = space.spaces.items() if isinstance(space, spaces.Dict) else enumerate(space.spaces)
        for key, part in parts:
            _check_dtype(f"{what}[{key!r}]", value[key], part)
    elif space.dtype is not None and space.shape is not None:
        array = isinstance(value, np.ndarray)
        good = array and value.dtype == space.dtype and value.shape == space.shape
        _require(good, what, _kind(value), f"an array of {space.dtype} {space.shape}")


def _check_array(what: str, value: Any, shape: tuple[int, ...], kind: str) -> None:
    good = isinstance(value, np.ndarray) and value.dtype.kind == kind and value.shape == shape
    _require(good, what, _kind(value), f"an array of {'bool' if kind == 'b' else 'floats'} {shape}")


def _check_info(what: str, info: dict[str, Any], shape: tuple[int, ...], chosen: NDArray[np.bool_] | None) -> None:
    """Each key of an info has a mask, and values for all environments. chosen: the only environments that may have any."""
    for key, value in info.items():
        if key.startswith("_") and key[1:] in info:
            continue
        _require(f"_{key}" in info, f"{what}: info[{key!r}]", f"no mask info['_{key}']", f"a mask of bool {shape} for each key")
        mask = info[f"_{key}"]
        _check_array(f"{what}: info['_{key}']", mask, shape, "b")
        good = chosen is None or not (mask & ~chosen).any()
        _require(good, f"{what}: info['_{key}']", mask, f"environments of reset_mask {chosen} alone")
        if isinstance(value, dict):
            _check_info(f"{what}: info[{key!r}]", value, shape, None)
        else:
            good = isinstance(value, np.ndarray) and value.shape[:1] == shape
            _require(good, f"{what}: info[{key!r}]", _kind(value), f"an array with a first dimension of {shape[0]}, or a dictionary")


def _check_seeds(env: Any, seed: int) -> None:
    """Seeds decide the starts, and environments do not all start alike, unless there is one start only."""
    from gymnasium.vector.utils import iterate

    starts = [copy.deepcopy(env.reset(seed=seed + 1000 * i)[0]) for i in range(3)]
    rows = [list(iterate(env.observation_space, start)) for start in starts]
    by_seed = any(not _same(starts[0], start, 0.0) for start in starts[1:])
    within = any(not _same(row[0], other, 0.0) for row in rows for other in row[1:])
    _require(by_seed or not within, "reset(seed=)", "the same starts for three seeds", "starts that the seed decides")
    _require(within or not by_seed or env.num_envs == 1, "reset(seed=)", "one start for all environments", "a seed for each")


def _check_masks(env: Any, seed: int) -> None:
    """Masks that gymnasium refuses are refused."""
    count = env.num_envs
    bad = {
        "a list": [True] * count,
        "integers": np.ones(count, dtype=np.int64),
        "another length": np.ones(count + 1, dtype=bool),
        "no environment": np.zeros(count, dtype=bool),
    }
    env.reset(seed=seed)
    for name, mask in bad.items():
        try:
            env.reset(options={"reset_mask": mask})
        except (TypeError, ValueError, AssertionError):
            continue
        _require(False, f'reset(options={{"reset_mask": ...}}) with {name}', "no error", f"an error: a mask is an array of bool ({count},)")


def _check_pictures(env: Any) -> None:
    env.reset()
    frames = env.render()
    count = len(frames) if isinstance(frames, tuple | list) else None
    _require(count == env.num_envs, "render()", _kind(frames), f"{env.num_envs} pictures")
    for frame in frames:
        good = isinstance(frame, np.ndarray) and frame.dtype == np.uint8 and frame.ndim == 3 and frame.shape[-1] == 3
        _require(good, "render()", _kind(frame), "arrays of uint8 (height, width, 3)")


def _compare(expected: list[_Result], found: list[_Result], what: str, tolerance: float) -> None:
    """Raise at the first result that differs."""
    for ours, theirs in zip(found, expected, strict=False):
        for name, a, b in zip(ours._fields[1:6], ours[1:6], theirs[1:6], strict=True):
            if name == "truncated" and a is not None:  # a step may terminate and truncate, or only terminate
                a, b = a & ~ours.terminated, b & ~theirs.terminated
            if not _same(a, b, tolerance):
                got, allowed = _first_difference(a, b, tolerance)
                _require(False, f"{what}, in {name} of {ours.call}", got, f"{allowed} to {tolerance}" if tolerance else allowed)


def _same(a: Any, b: Any, tolerance: float) -> bool:
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(_same(a[key], b[key], tolerance) for key in a)
    if isinstance(a, tuple | list) and isinstance(b, tuple | list):
        return len(a) == len(b) and all(_same(x, y, tolerance) for x, y in zip(a, b, strict=True))
    if isinstance(a, np.ndarray | np.number) and isinstance(b, np.ndarray | np.number):
        if a.shape != b.shape or a.dtype != b.dtype:
            return False
        if a.dtype == object:
            return all(_same(x, y, tolerance) for x, y in zip(a.ravel(), b.ravel(), strict=True))
        if a.dtype.kind == "f":
            return bool(np.allclose(a, b, rtol=tolerance, atol=tolerance, equal_nan=True))
        return bool(np.array_equal(a, b))
    return type(a) is type(b) and bool(np.all(a == b))


def _first_difference(a: Any, b: Any, tolerance: float, place: str = "") -> tuple[str, str]:
    """Where two results differ, as text: one number or key of many."""
    if isinstance(a, dict) and isinstance(b, dict) and a.keys() == b.keys():
        key = next(key for key in a if not _same(a[key], b[key], tolerance))
        return _first_difference(a[key], b[key], tolerance, f"{place}[{key!r}]")
    if isinstance(a, np.ndarray) and isinstance(b, np.ndarray) and a.shape == b.shape and a.dtype == b.dtype:
        where = next(i for i in np.ndindex(a.shape) if not _same(np.asarray(a[i]), np.asarray(b[i]), tolerance))
        return f"{a[where]} at {place}{list(where)}", str(b[where])
    texts = [f"keys {sorted(x)}" if isinstance(x, dict) else _kind(x) for x in (a, b)]
    return f"{texts[0]} at {place}" if place else texts[0], texts[1]


def _arrays(value: Any) -> Iterator[NDArray[Any]]:
    """All arrays of numbers that can be written into."""
    if isinstance(value, np.ndarray) and value.dtype != object:
        if value.flags.writeable:
            yield value
    elif isinstance(value, dict | tuple | list | np.ndarray):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _arrays(part)


def _mixed(space: Any, kept: Any, other: Any, where: NDArray[np.bool_]) -> Any:
    """`other` in the environments of a mask, `kept` in the rest."""
    from gymnasium.vector.utils import concatenate, iterate

    rows = [b if chosen else a for a, b, chosen in zip(iterate(space, kept), iterate(space, other), where, strict=True)]
    return np.stack(rows) if isinstance(kept, np.ndarray) else concatenate(space, rows, copy.deepcopy(kept))


def _kind(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"an array of {value.dtype} {value.shape}"
    return f"{type(value).__name__} of {len(value)}" if isinstance(value, tuple | list) else repr(value)
