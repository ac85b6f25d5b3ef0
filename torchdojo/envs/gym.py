"""Environments for gymnasium: numpy in and out, without gradients.

    gymnasium.make("torchdojo/Ant-v0")
    gymnasium.make_vec("torchdojo/Ant-v0", num_envs=16, autoreset_mode="SAME_STEP")

`DojoEnv` is one environment, `DojoVectorEnv` a batch that the kernel steps together. Element i of a batch after `reset(seed=s)` is the
single environment after `reset(seed=s + i)`: both draw their starts from a generator of their own.

Gymnasium has read no entry points of packages since 1.0. `import torchdojo` registers the ids, before or after gymnasium is imported, and
`gymnasium.make("torchdojo:torchdojo/Ant-v0")` imports torchdojo first.
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from torchdojo.envs.checks import counted, one_from
from torchdojo.envs.env import Env
from torchdojo.envs.motion import EnvStep
from torchdojo.envs.table import ENVIRONMENTS, TableEnv, make

try:
    import gymnasium
    from gymnasium import spaces
    from gymnasium.utils import seeding
    from gymnasium.vector import AutoresetMode
    from gymnasium.vector.utils import batch_space
except ImportError as error:
    raise ImportError('torchdojo.envs.gym needs gymnasium 1.1 or newer: pip install "torchdojo[gym]"') from error

__all__ = ["DojoEnv", "DojoVectorEnv", "gymnasium_id", "register"]

Robot = str | Callable[..., Env]
Info = dict[str, Any]

NEVER = 2**31 - 1  # control steps of an episode that nothing truncates
RENDER_MODES = (None, "rgb_array")
#: keywords that the adapters give themselves, and what a user gives instead
OURS = {"num_envs": "num_envs of gymnasium.make_vec", "autoreset": "autoreset_mode of gymnasium.make_vec"}


class DojoEnv(gymnasium.Env):
    """One environment, ``gymnasium.make("torchdojo/Ant-v0", reward="gymnasium", control="torque")``.

    Args:
        robot: a name of the table, or a subclass of `torchdojo.envs.Env`.
        render_mode: None, or "rgb_array" for pictures (height, width, 3) of `torchdojo.viewer.draw_frames`. width, height: [pixels].
        options: of `torchdojo.envs.make` and `Env`. dtype, of observations, is float32 here unless given; names are allowed ("float64").
            seed decides the pool of starts and what `randomize` draws; `reset(seed=)` decides which of the starts are taken.

    Episodes are truncated by gymnasium's `TimeLimit` (`max_episode_steps=`), and earlier where `episode_length=` is given. info has the
    parts of the reward ("reward_speed", ...), "flagged", "episode_return" and "episode_length".

    Raises:
        TypeError: an unknown keyword. ValueError: values that are not allowed; an action of another shape or with a number that is not
            finite. Actions beyond [-1, 1] are clipped by the actuators.
    """

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"]}  # noqa: RUF012 (gymnasium reads it from the class)

    def __init__(
        self,
        robot: Robot,
        *,
        render_mode: str | None = None,
        width: int = 640,
        height: int = 480,
        episode_length: int = NEVER,
        **options: Any,
    ) -> None:
        self.torch_env = _build(robot, 1, episode_length, options)
        self.observation_space, self.action_space = _spaces(self.torch_env)
        self.render_mode = one_from("render_mode", render_mode, RENDER_MODES)
        self.metadata = {**self.metadata, "render_fps": 1.0 / self.torch_env.period}
        self._size = (counted("width", width), counted("height", height))

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[NDArray[Any], Info]:
        """Begin an episode. options are ignored."""
        super().reset(seed=seed)
        _restart(self.torch_env, [self.np_random], [seed], np.ones(1, dtype=bool))
        return _numpy(self.torch_env.obs)[0], {}

    def step(self, action: Any) -> tuple[NDArray[Any], float, bool, bool, Info]:
        """One control step; action: (nu,)."""
        size = self.torch_env.num_actions
        out = _step(self.torch_env, _checked_action(action, (size,)).reshape(1, size))
        info = {key: value[0].item() for key, value in _infos(out).items()}
        return _numpy(out.obs)[0], float(out.reward[0]), bool(out.terminated[0]), bool(out.truncated[0]), info

    def render(self) -> NDArray[np.uint8] | None:
        """The picture (height, width, 3) of the state, or None without a render mode."""
        return None if self.render_mode is None else _picture(self.torch_env, 0, self._size)


class DojoVectorEnv(gymnasium.vector.VectorEnv):
    """A batch of environments that are stepped together, ``gymnasium.make_vec("torchdojo/Ant-v0", num_envs=16)``.

    Results are what gymnasium's `SyncVectorEnv` of as many `DojoEnv` gives in the same mode, infos included. One difference: a step that
    both terminates and runs out of time is only terminated here.

    Args:
        robot, render_mode, width, height, options: as in `DojoEnv`.
        num_envs: number of environments.
        autoreset_mode: `AutoresetMode`, or its name. NEXT_STEP: the step after the end of an episode ignores the action, and returns the
            first observation of the next episode with reward 0. SAME_STEP: that observation comes at once, and info has "final_obs" and
            "final_info". DISABLED: the user resets, ``reset(options={"reset_mask": mask})``, before the next step.
        max_episode_steps: control steps after which an episode is truncated; -1: never. `episode_length=` means the same, and the smaller
            number holds.

    Raises:
        ValueError, TypeError: as in `DojoEnv`, and for a mask or seeds that do not fit. gymnasium.error.ResetNeeded: a step before a reset,
        or after the end of an episode where resets are disabled. gymnasium.error.ClosedEnvironmentError: a call after `close`.
    """

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"], "autoreset_mode": AutoresetMode.NEXT_STEP}  # noqa: RUF012

    def __init__(
        self,
        robot: Robot,
        num_envs: int = 1,
        *,
        autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
        max_episode_steps: int = -1,
        episode_length: int = NEVER,
        render_mode: str | None = None,
        width: int = 640,
        height: int = 480,
        **options: Any,
    ) -> None:
        self.num_envs = counted("num_envs", num_envs)
        self.autoreset_mode = _mode(autoreset_mode)
        limit = NEVER if max_episode_steps == -1 else counted("max_episode_steps", max_episode_steps)
        self.torch_env = _build(robot, num_envs, min(limit, counted("episode_length", episode_length)), options)
        self._single = {"robot": robot, "render_mode": render_mode, "width": width, "height": height, **options}
        self.single_observation_space, self.single_action_space = _spaces(self.torch_env)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self.render_mode = one_from("render_mode", render_mode, RENDER_MODES)
        self.metadata = {**self.metadata, "autoreset_mode": self.autoreset_mode, "render_fps": 1.0 / self.torch_env.period}
        self._size = (counted("width", width), counted("height", height))
        self._generators: list[np.random.Generator | None] = [None] * num_envs
        self._seeds: list[int] = [-1] * num_envs
        self._begun = np.zeros(num_envs, dtype=bool)
        self._over = np.zeros(num_envs, dtype=bool)  # whose episode ended, and which nothing has reset yet

    def make_single(self) -> gymnasium.Env:
        """An environment like one of this batch, with the same limit of time."""
        return gymnasium.wrappers.TimeLimit(DojoEnv(**self._single), self.torch_env.episode_length)

    @property  # type: ignore[misc]
    def np_random(self) -> tuple[np.random.Generator, ...]:  # type: ignore[override]
        """The generators of the environments."""
        self._seed([None] * self.num_envs, np.array([generator is None for generator in self._generators]))
        return tuple(generator for generator in self._generators if generator is not None)

    @property
    def np_random_seed(self) -> tuple[int, ...]:  # type: ignore[override]
        """The seeds of the environments."""
        return tuple(self._seeds) if self.np_random else ()

    def reset(self, *, seed: int | Sequence[int | None] | None = None, options: Info | None = None) -> tuple[NDArray[Any], Info]:
        """Begin episodes in all environments, or in those of ``options={"reset_mask": mask}``.

        seed: of the first environment, the others take seed + 1, seed + 2, ...; or one for each; None: generators go on.
        """
        self._check_open()
        mask = np.ones(self.num_envs, dtype=bool)
        if options is not None and "reset_mask" in options:
            mask = _checked_mask(options["reset_mask"], self.num_envs)
        numbers = range(self.num_envs)
        seeds = list(seed) if isinstance(seed, Sequence) else [None if seed is None else int(seed) + i for i in numbers]
        if len(seeds) != self.num_envs:
            raise ValueError(f"seed: got {len(seeds)} seeds; allowed: a number, None, or {self.num_envs} of them, one for each environment")
        self._seed(seeds, mask)
        self._restart(mask, seeds)
        self._begun |= mask
        return _numpy(self.torch_env.obs), {}

    def step(self, actions: Any) -> tuple[NDArray[Any], NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_], Info]:
        """One control step; actions: (num_envs, nu)."""
        self._check_open()
        action = _checked_action(actions, (self.num_envs, self.torch_env.num_actions))
        self._check_ready()
        env, waiting = self.torch_env, self._over & (self.autoreset_mode is AutoresetMode.NEXT_STEP)
        if waiting.any():
            self._restart(waiting)
        first, where = env.state, torch.from_numpy(waiting)
        out = _step(env, action)
        if waiting.any():  # these begin their episode now: what they did in this step is dropped
            env.state = first.where(where, env.state)
        reward, terminated, truncated = (
            torch.where(where, torch.zeros_like(value), value).numpy() for value in (out.reward.double(), out.terminated, out.truncated)
        )
        ended, infos = terminated | truncated, _infos(out)
        again = ended & (self.autoreset_mode is AutoresetMode.SAME_STEP)
        info = _masked(infos, ~waiting & ~again)
        if again.any():
            final = np.full(self.num_envs, None, dtype=object)
            for i, row in zip(np.flatnonzero(ended), _numpy(out.obs)[ended], strict=True):
                final[i] = row.copy()
            info |= {"final_obs": final, "_final_obs": ended.copy(), "final_info": _masked(infos, ended), "_final_info": ended.copy()}
            self._restart(ended)
        else:
            self._over = ended
        return _numpy(env.obs), reward, terminated, truncated, info

    def render(self) -> tuple[NDArray[np.uint8], ...] | None:
        """A picture (height, width, 3) of each environment, or None without a render mode."""
        return None if self.render_mode is None else tuple(_picture(self.torch_env, i, self._size) for i in range(self.num_envs))

    def _seed(self, seeds: Sequence[int | None], mask: NDArray[np.bool_]) -> None:
        for i in np.flatnonzero(mask).tolist():
            if seeds[i] is not None or self._generators[i] is None:
                self._generators[i], self._seeds[i] = seeding.np_random(seeds[i])

    def _restart(self, mask: NDArray[np.bool_], seeds: Sequence[int | None] = ()) -> None:
        self._over = self._over & ~mask
        _restart(self.torch_env, self._generators, seeds, mask)

    def _check_open(self) -> None:
        if self.closed:
            raise gymnasium.error.ClosedEnvironmentError(f"{self}: got a call after close(); make another one")

    def _check_ready(self) -> None:
        waiting = ~self._begun | (self._over & (self.autoreset_mode is AutoresetMode.DISABLED))
        if waiting.any():
            raise gymnasium.error.ResetNeeded(
                f"step: got environments {np.flatnonzero(waiting).tolist()} that have no episode, or whose episode has ended; begin one, "
                'env.reset(options={"reset_mask": terminated | truncated})'
            )


def _infos(out: EnvStep) -> dict[str, NDArray[Any]]:
    """The report of a step, (B,) each: flat, as gymnasium's robots have it, since torchrl reads no dictionaries within."""
    values = {**{f"reward_{name}": value for name, value in out.info["terms"].items()}, **out.info}
    return {key: value.double().numpy() if value.is_floating_point() else value.numpy() for key, value in values.items() if key != "terms"}


def _masked(infos: Mapping[str, NDArray[Any]], mask: NDArray[np.bool_]) -> Info:
    """The infos of the environments of a mask, in the format of gymnasium: values, zero elsewhere, and a mask for each key."""
    pairs = ((key, np.where(mask, value, np.zeros_like(value))) for key, value in infos.items())
    return {name: part for key, value in pairs for name, part in ((key, value), (f"_{key}", mask.copy()))} if mask.any() else {}


def _build(robot: Robot, num_envs: int, episode_length: int, options: dict[str, Any]) -> Env:
    """The environment behind an adapter. It never resets by itself."""
    if isinstance(robot, str):
        parameters = [*inspect.signature(TableEnv.__init__).parameters.values(), *inspect.signature(Env.__init__).parameters.values()]
        allowed = sorted({one.name for one in parameters if one.kind is one.KEYWORD_ONLY} - set(OURS))
        for name in options:
            if name not in allowed:
                near = difflib.get_close_matches(name, allowed, 1)
                remedy = f"give {OURS[name]}" if name in OURS else f"did you mean {near[0]!r}?" if near else "leave it out"
                # torchrl tries a keyword of Atari's, and looks for Python's own words in the error
                raise TypeError(f"{robot}: got an unexpected keyword argument {name!r}; allowed: {', '.join(allowed)}; {remedy}")
    dtype = options.get("dtype", torch.float32)
    dtype = {"float32": torch.float32, "float64": torch.float64}.get(dtype, dtype) if isinstance(dtype, str) else dtype
    env_options = {**options, "dtype": dtype, "num_envs": num_envs, "episode_length": episode_length, "autoreset": "disabled"}
    return make(robot, **env_options) if isinstance(robot, str) else robot(**env_options)


def _spaces(env: Env) -> tuple[spaces.Box, spaces.Box]:
    """Observations are unbounded, and actions go from -1 to 1."""
    kind: Any = np.float32 if env.dtype is torch.float32 else np.float64
    return spaces.Box(-np.inf, np.inf, (env.num_obs,), kind), spaces.Box(-1.0, 1.0, (env.num_actions,), np.float32)


def _numpy(value: torch.Tensor) -> NDArray[Any]:
    """A copy, which the environment never writes into."""
    return value.detach().numpy().copy()


def _restart(env: Env, generators: Sequence[np.random.Generator | None], seeds: Sequence[int | None], mask: NDArray[np.bool_]) -> None:
    """Begin episodes in the environments of a mask, at starts that their own generators draw."""
    chosen_seeds = [seed for seed, chosen in zip(seeds, mask, strict=False) if seed is not None and chosen]
    if chosen_seeds:  # what `redraw=True` draws follows the seed, too
        env.generator.manual_seed(chosen_seeds[0] % 2**63)
    index = np.zeros(env.num_envs, dtype=np.int64)
    for i in np.flatnonzero(mask).tolist():
        generator = generators[i]
        assert generator is not None
        index[i] = generator.integers(env.num_starts)
    env.reset(torch.from_numpy(mask.copy()), index=torch.from_numpy(index))


@torch.no_grad()
def _step(env: Env, action: NDArray[np.float64]) -> EnvStep:
    return env.step(torch.from_numpy(action))


def _picture(env: Env, index: int, size: tuple[int, int]) -> NDArray[np.uint8]:
    """The state of an environment; drawing is imported when it is wanted."""
    from torchdojo.viewer import Playback, draw_frames

    playback = Playback.of(env.mech, env.state.z[:, None], environment=index)
    return next(iter(draw_frames(playback, size=size)))


def _checked_action(action: Any, shape: tuple[int, ...]) -> NDArray[np.float64]:
    """A copy of the action, in float64."""
    try:
        array = np.array(action, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise TypeError(f"action: got {type(action).__name__}; allowed: numbers of shape {shape}") from error
    if array.shape != shape:
        raise ValueError(f"action: got shape {array.shape}; allowed: {shape}")
    if not np.isfinite(array).all():
        bad = np.argwhere(~np.isfinite(array)).tolist()
        raise ValueError(f"action: got {array[tuple(bad[0])]} at {bad[0]}, and {len(bad) - 1} more; allowed: finite numbers from -1 to 1")
    return array


def _checked_mask(mask: Any, num_envs: int) -> NDArray[np.bool_]:
    if not isinstance(mask, np.ndarray) or mask.dtype != np.bool_ or mask.shape != (num_envs,) or not mask.any():
        got = f"{mask.dtype} {mask.shape}" if isinstance(mask, np.ndarray) else type(mask).__name__
        none = ", all False" if isinstance(mask, np.ndarray) and not mask.any() else ""
        kind = ValueError if isinstance(mask, np.ndarray) and mask.dtype == np.bool_ else TypeError
        raise kind(f"reset_mask: got {got}{none}; allowed: an array of bool, ({num_envs},), at least one of them True")
    return mask


def _mode(mode: Any) -> AutoresetMode:
    """A mode, its name or its value in gymnasium."""
    for one in AutoresetMode:
        if mode is one or mode in (one.name, one.name.lower(), one.value):
            return one
    raise ValueError(f"autoreset_mode: got {mode!r}; allowed: {', '.join(one.name for one in AutoresetMode)}")


def gymnasium_id(name: str) -> str:
    """The id of an environment of the table: "half_cheetah" is "torchdojo/HalfCheetah-v0"."""
    return f"torchdojo/{''.join(part.capitalize() for part in name.split('_'))}-v0"


def register() -> None:
    """Make the environments of the table known to `gymnasium.make` and `gymnasium.make_vec`."""
    for name, row in ENVIRONMENTS.items():
        if gymnasium_id(name) not in gymnasium.registry:
            gymnasium.register(
                gymnasium_id(name),
                entry_point="torchdojo.envs.gym:DojoEnv",
                vector_entry_point="torchdojo.envs.gym:DojoVectorEnv",
                max_episode_steps=row.episode_length,
                kwargs={"robot": name},
            )


register()
