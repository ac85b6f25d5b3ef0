"""The description that goes with an exported policy (policy.json), and its network as a list of layers."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from torchdojo.envs import Env
from torchdojo.learning.layout import coordinate_names, memory_layout, observation_layout
from torchdojo.learning.motors import actuators, efforts, places
from torchdojo.learning.networks import Normalizer
from torchdojo.learning.random_search import FLOOR, LinearPolicy
from torchdojo.learning.runs import REPORT, Run
from torchdojo.runs.versions import versions

__all__ = ["VERSION", "describe", "layers_of"]

VERSION = 1  # of the description
STARTS = 64  # episodes whose starts give the ranges of goals and memories
EPS, CLIP = 1e-5, 10.0  # of `Normalizer.forward`
UNITS = {
    "low, high": "of the action; beyond, it is clipped",
    "reach, rest": "rad or m: target of the position servo = reach · action + rest",
    "force, offset": "N·m or N: force = force · action + offset − kp · q − kd · q̇, the same law",
    "kp, kd": "N·m/rad and N·m·s/rad, or N/m and N·s/m; kd is what the servo adds to the joint's own damper",
    "force_low, force_high": "N·m or N, the largest force of the servo in the simulation; null: no limit",
    "motor": "N·m or N, the largest force of the motor of the model; null: not known",
    "damper, armature, friction": "of the joint itself in the simulation: N·m·s/rad, kg·m², N·m",
    "limits, speed": "of the joint: rad or m, rad/s or m/s; null: none",
}


def describe(run: Run, network: Any) -> dict[str, Any]:
    """All that a robot has to know to run a policy, as plain numbers, lists and mappings. network: of the policy."""
    config = run.config
    env = config.make_env(STARTS, pool=STARTS, randomize={})
    normal = _normalization(network)
    memory, parts, why = list[dict[str, Any]](), list[dict[str, Any]](), {}
    try:
        parts, memory = observation_layout(env), memory_layout(env)
    except Exception as error:  # code of one's own may refuse random motions
        why = {"unknown": f"observe() or remember() cannot be tried on random motions: {error}; read the environment's code"}
    goal = env.state.goal
    clocks = [{"memory": entry["name"], "frequency_hz": entry["frequency_hz"]} for entry in memory if entry["rule"] == "clock"]
    report = run.folder / REPORT
    return {
        "format": f"torchdojo policy {VERSION}",
        "environment": config.env,
        "algorithm": config.algorithm,
        "control": {"period_s": env.period, "frequency_hz": 1.0 / env.period, "timestep_s": env.timestep, "repeat": env.repeat},
        "observation": {"size": env.num_obs, "dtype": "float32", "parts": parts, **why},
        "normalization": None if normal is None else {"mean": normal[0].tolist(), "scale": normal[1].tolist(), "clip": normal[2]},
        "goal": {
            "size": goal.shape[-1],
            "range": [list(map(float, column.aminmax())) for column in goal.mT],
            "steps": env.resample or None,
        },
        "clock": clocks,
        "memory": {"size": env.state.memory.shape[-1], "entries": memory},
        "actions": _actions(env),
        "units": UNITS,
        "run": {
            "folder": str(run.folder.resolve()),
            "config": dataclasses.asdict(config),
            "report": json.loads(report.read_text()) if report.exists() else None,
            "checkpoint_sha256": hashlib.sha256(run.checkpoint.read_bytes()).hexdigest(),
        },
        "versions": {**versions(), "numpy": np.__version__},
    }


def layers_of(network: Any) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """The layers of a policy's network with their numbers, and the arrays of policy.npz, for numpy_policy.py.

    Raises:
        ValueError: another network than an MLP behind a `Normalizer`, or a layer that numpy_policy.py does not have.
    """
    normal, arrays = _normalization(network), dict[str, Tensor]()
    if normal is None or (not isinstance(network, LinearPolicy) and not isinstance(getattr(network, "body", None), nn.Sequential)):
        raise ValueError(
            f"numpy: got a network {type(network).__name__}; allowed: td.learning.Actor, symmetric or not, with `normalizer` and `body` (a "
            "Sequential), or the linear policy of ARS and AGS; leave it out, --formats torchscript,onnx"
        )
    arrays["mean"], arrays["scale"], clip = normal
    if isinstance(network, LinearPolicy):
        layers: list[dict[str, Any]] = [{"type": "linear"}]
        arrays["0.weight"], arrays["0.bias"] = network.weight, network.weight.new_zeros(len(network.weight))
    else:
        layers = [_layer(layer, f"{i}.", arrays) for i, layer in enumerate(_flat(network.body))]
    for name in ("mirror_obs", "mirror_action"):
        if hasattr(network, name):
            arrays[name] = getattr(network, name)
    about = {"layers": layers, "clip": clip, "output": "tanh", "symmetric": "mirror_obs" in arrays}
    return about, {name: value.detach().numpy() for name, value in arrays.items()}


def _normalization(network: Any) -> tuple[Tensor, Tensor, float | None] | None:
    """mean, scale and bound of (obs − mean) · scale; None where the network has no `Normalizer`."""
    normalizer = getattr(network, "normalizer", None)
    if not isinstance(normalizer, Normalizer):
        return None
    if isinstance(network, LinearPolicy):
        return normalizer.mean, normalizer.var.clamp_min(FLOOR).rsqrt(), None
    return normalizer.mean, (normalizer.var + EPS).rsqrt(), CLIP


def _flat(body: nn.Sequential) -> list[nn.Module]:
    """Layers, those of nested Sequentials in place, without those that do nothing."""
    parts = [_flat(layer) if isinstance(layer, nn.Sequential) else [layer] for layer in body]
    return [layer for part in parts for layer in part if not isinstance(layer, nn.Identity)]


def _layer(layer: nn.Module, place: str, arrays: dict[str, Tensor]) -> dict[str, Any]:
    """A layer by name, with its arrays put beside the others."""
    if isinstance(layer, nn.Linear):
        arrays[f"{place}weight"] = layer.weight
        arrays[f"{place}bias"] = layer.weight.new_zeros(layer.out_features) if layer.bias is None else layer.bias
        return {"type": "linear"}
    if isinstance(layer, nn.LayerNorm) and len(layer.normalized_shape) == 1:
        size = layer.normalized_shape[0]
        arrays[f"{place}weight"] = torch.ones(size) if layer.weight is None else layer.weight
        arrays[f"{place}bias"] = torch.zeros(size) if layer.bias is None else layer.bias
        return {"type": "layer_norm", "eps": layer.eps}
    if isinstance(layer, nn.ELU):
        return {"type": "elu", "alpha": layer.alpha}
    for kind, name in ((nn.ReLU, "relu"), (nn.Tanh, "tanh")):
        if isinstance(layer, kind):
            return {"type": name}
    raise ValueError(
        f"numpy: got a layer {type(layer).__name__}; allowed: Linear, LayerNorm of the last dimension, ELU, ReLU, Tanh; leave it out, "
        "--formats torchscript,onnx"
    )


def _actions(env: Env) -> list[dict[str, Any]]:
    """A row for each action: what it drives, and how."""
    mech = env.mech
    motors, names, strengths = actuators(mech), coordinate_names(mech), efforts(env).reshape(-1, env.num_actions)[0].tolist()
    rows = []
    for i, (name, place) in enumerate(zip(motors.names, places(mech), strict=True)):
        joint, coordinate = mech.joints[motors.joints[i]], motors.coordinates[i]
        gear, length0 = (_number(field, i) for field in (motors.gear, motors.length0))
        gain, bias, control, force = (
            field.detach()[..., i, :].reshape(-1, field.shape[-1])[0].tolist()
            for field in (motors.gain, motors.bias, motors.ctrlrange, motors.forcerange)
        )
        kp, kd = -(gear**2) * bias[1] + 0.0, -(gear**2) * bias[2] + 0.0  # no minus zero
        plain = gain[1] == gain[2] == 0.0 and kp >= 0.0 and kd >= 0.0
        push, offset = gear * gain[0], gear * (bias[0] + bias[1] * length0)
        kind = "other" if not plain else "position servo" if kp > 0 else "velocity servo" if kd > 0 else "motor"
        bounds = sorted(gear * bound for bound in force), _pair(joint, ("servo_lower", "servo_upper"), coordinate)
        inputs = motors.inputrange.detach().reshape(-1, *motors.inputrange.shape[-2:])[0][int(motors.input_index[i])].tolist()
        low, high = max(bounds[0][0], bounds[1][0], inputs[0]), min(bounds[0][1], bounds[1][1], inputs[1])
        servo = kind == "position servo"
        limits = _pair(joint, ("lower", "upper"), coordinate)
        law = {"force": push, "offset": offset, "kp": kp, "kd": kd}
        row = {
            "name": name,
            "kind": kind,
            "coordinate": names[place][0],
            "unit": names[place][1],
            "low": control[0],
            "high": control[1],
            "reach": push / kp if servo else None,
            "rest": offset / kp if servo else None,
            **(law if plain else dict.fromkeys(law)),
            "force_low": low,
            "force_high": high,
            "motor": strengths[i],
            **{field: _number(getattr(joint, field, None), coordinate) for field in ("damper", "armature", "friction")},
            "limits": [bound if math.isfinite(bound) else None for bound in limits],
            "speed": _number(getattr(joint, "velocity_limits", None), coordinate),
            **({} if plain else {"gear": gear, "gain": gain, "bias": bias, "length0": length0}),
        }
        rows.append({key: None if isinstance(value, float) and not math.isfinite(value) else value for key, value in row.items()})
    return rows


def _number(values: Any, place: int) -> float:
    """A number of a tensor (..., n) or (), NaN where there is none."""
    if values is None:
        return math.nan
    row = torch.as_tensor(values).detach()
    return float(row[..., place].flatten()[0]) if row.ndim else float(row)


def _pair(joint: Any, names: tuple[str, str], place: int) -> tuple[float, float]:
    """Lower and upper bound of a coordinate of a joint, infinite where it has none."""
    low, high = (_number(getattr(joint, name, None), place) for name in names)
    return (-math.inf if math.isnan(low) else low), (math.inf if math.isnan(high) else high)
