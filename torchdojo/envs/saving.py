"""An environment is saved as all that decides how it goes on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from torch import Generator, Tensor

from torchdojo.envs.motion import EnvState
from torchdojo.envs.randomization import Randomization

__all__ = ["restore", "saved", "statistics"]


class Continuing(Protocol):
    """The attributes of an environment that decide how it goes on; `torchdojo.envs.Env` has them."""

    name: str
    num_envs: int
    state: EnvState
    generator: Generator
    randomization: Randomization
    _steps: int
    _pool: Tensor
    _counts: dict[str, Tensor]
    _finished: Tensor
    _over: Tensor
    _due: Tensor


def saved(env: Continuing) -> dict[str, Any]:
    """The numbers of an environment, as copies."""
    return {
        "name": env.name,
        "state": [tensor.detach().clone() for tensor in env.state],
        "pool": env._pool.clone(),
        "generator": env.generator.get_state(),
        "steps": env._steps,
        "counts": {name: value.clone() for name, value in env._counts.items()},
        "finished": env._finished.clone(),
        "over": env._over.clone(),
        "due": env._due.clone(),
        "randomization": env.randomization.state_dict(),
    }


def restore(env: Continuing, given: Mapping[str, Any]) -> None:
    """Let an environment go on from what `saved` returned for one built alike.

    Raises:
        ValueError: that of another environment, number of environments, observation, pool or randomization.
    """
    state, place = list(given["state"]), EnvState._fields.index("activation")
    if len(state) == len(EnvState._fields) - 1:  # of a revision before drives
        state.insert(place, env.state.activation.new_zeros(len(env.state.z), 0))
    shapes = [tuple(tensor.shape) for tensor in (*state, given["pool"])]
    allowed = [tuple(tensor.shape) for tensor in (*env.state, env._pool)]
    if given["name"] != env.name or shapes != allowed:
        raise ValueError(
            f"load_state_dict: got a state of {given['name']!r} with shapes {shapes}; allowed: {env.name!r} with {allowed}; "
            "build the environment with the same num_envs, pool and observation"
        )
    env.randomization.load_state_dict(given["randomization"])
    env.state = EnvState(*(tensor.clone() for tensor in state))
    env._pool = given["pool"].clone()
    env.generator.set_state(given["generator"])
    env._steps = given["steps"]
    for name, value in given["counts"].items():
        env._counts[name] = value.clone()
    env._finished, env._over, env._due = (given[name].clone() for name in ("finished", "over", "due"))


def statistics(env: Continuing) -> dict[str, float]:
    """The counts of `Env.statistics`."""
    episodes, returns, lengths = env._finished.tolist()
    per = episodes or float("nan")
    sums = {name: int(value.sum()) for name, value in env._counts.items()}
    steps = {"steps": env._steps * env.num_envs}
    return {**steps, **sums, "episodes": int(episodes), "mean_return": returns / per, "mean_length": lengths / per}
