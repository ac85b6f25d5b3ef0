"""An exported policy with numpy alone: `torchdojo export RUN` copies this file next to the policy that it writes.

    policy = NumpyPolicy.load("export")  # the folder with policy.json and policy.npz
    action = policy(obs)                 # (..., num_obs) -> (..., nu), between -1 and 1
    policy.targets(action)               # of the joints' position servos [rad, m]
    policy.torques(action, q, qd)        # of the same servos with the gains of the simulation [N·m, N]

`python numpy_policy.py [FOLDER]` replays the recorded episode, and says how far its actions and targets are from those of the run.
policy.json says what the numbers of an observation are, and how often an action is due.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["NumpyPolicy"]

Array = Any  # what numpy takes as an array


class NumpyPolicy:
    """A policy from what policy.json says, and the arrays of policy.npz.

    Attributes:
        about: what policy.json says. num_obs: size of an observation. names: of the actions.

    Raises:
        ValueError: a network with a layer that this file does not have.
    """

    def __init__(self, about: dict[str, Any], arrays: dict[str, Any]) -> None:
        self.about, self.arrays = about, {name: np.asarray(value, dtype=np.float64) for name, value in arrays.items()}
        self.layers: list[dict[str, Any]] = about["network"]["layers"]
        for layer in self.layers:
            if layer["type"] not in (allowed := ("linear", "layer_norm", "elu", "relu", "tanh")):
                raise ValueError(f"policy.json: got a layer {layer['type']!r}; allowed: {', '.join(allowed)}; take policy.onnx")
        joints = about["actions"]
        self.num_obs, self.names = int(about["observation"]["size"]), [joint["name"] for joint in joints]
        keys = ("low", "high", "reach", "rest", "force", "offset", "kp", "kd", "force_low", "force_high")
        # None is a number that does not exist: a bound (np.clip takes NaN for a bound that makes all NaN, so it is infinite), or a target.
        none = {"low": -np.inf, "high": np.inf, "force_low": -np.inf, "force_high": np.inf}
        self._drives = {key: np.array([none.get(key, np.nan) if j[key] is None else j[key] for j in joints]) for key in keys}

    @classmethod
    def load(cls, folder: str | Path) -> NumpyPolicy:
        """The policy of a folder that `torchdojo export` wrote."""
        with np.load(Path(folder) / "policy.npz") as file:
            return cls(json.loads((Path(folder) / "policy.json").read_text()), dict(file))

    def __call__(self, obs: Array) -> np.ndarray:
        """Actions of observations (..., num_obs), float64.

        Raises:
            ValueError: observations of another size.
        """
        obs = np.asarray(obs, dtype=np.float32).astype(np.float64)  # the policy reads float32
        if obs.shape[-1:] != (self.num_obs,):
            raise ValueError(f"policy: got observations {obs.shape}; allowed: (..., {self.num_obs}), laid out as policy.json says")
        if "mirror_obs" not in self.arrays:
            return np.asarray(np.tanh(self._network(obs)))
        # A symmetric actor: half its own action, and half the mirror image of its action in the mirrored situation.
        action, image = self._network(obs), self._network(obs @ self.arrays["mirror_obs"].T)
        return np.asarray(np.tanh(0.5 * (action + image @ self.arrays["mirror_action"].T)))

    def targets(self, action: Array) -> np.ndarray:
        """Joint targets of actions (..., nu) [rad, m]; NaN for motors without a position servo."""
        return self._drives["reach"] * self._clipped(action) + self._drives["rest"]

    def torques(self, action: Array, q: Array, qd: Array) -> np.ndarray:
        """The torques of the simulation's servos and motors at joint coordinates and rates (..., nu), in the order of the actions."""
        drive = self._drives
        feedforward = drive["force"] * self._clipped(action) + drive["offset"]
        return np.clip(feedforward - drive["kp"] * np.asarray(q) - drive["kd"] * np.asarray(qd), drive["force_low"], drive["force_high"])

    def _clipped(self, action: Array) -> np.ndarray:
        return np.clip(np.asarray(action, dtype=np.float64), self._drives["low"], self._drives["high"])

    def _network(self, obs: np.ndarray) -> np.ndarray:
        clip = self.about["network"]["clip"]
        x = (obs - self.arrays["mean"]) * self.arrays["scale"]
        x = x if clip is None else np.clip(x, -clip, clip)
        for i, layer in enumerate(self.layers):
            if layer["type"] == "linear":
                x = x @ self.arrays[f"{i}.weight"].T + self.arrays[f"{i}.bias"]
            elif layer["type"] == "layer_norm":
                away = x - x.mean(-1, keepdims=True)
                x = away / np.sqrt((away * away).mean(-1, keepdims=True) + layer["eps"])
                x = x * self.arrays[f"{i}.weight"] + self.arrays[f"{i}.bias"]
            elif layer["type"] == "elu":
                x = np.where(x > 0.0, x, layer["alpha"] * np.expm1(np.minimum(x, 0.0)))
            else:
                x = np.tanh(x) if layer["type"] == "tanh" else np.maximum(x, 0.0)
        return x


if __name__ == "__main__":
    place = Path(sys.argv[1] if len(sys.argv) > 1 else __file__).resolve()
    place = place if place.is_dir() else place.parent
    policy, episode = NumpyPolicy.load(place), np.load(place / "episode.npz")
    actions = policy(episode["obs"])
    off = np.abs(actions - episode["actions"]).max()
    targets = np.abs(policy.targets(actions) - episode["targets"])
    largest = f", of targets {np.nanmax(targets):.1e}" if np.isfinite(targets).any() else ""
    print(f"{len(actions)} steps: largest difference of actions {off:.1e}{largest}")
    sys.exit(0 if off <= 1e-5 else 1)  # rounding of float32 is below 1e-6 for usual networks
