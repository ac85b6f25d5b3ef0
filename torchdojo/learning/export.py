"""Policies of runs for other programs: TorchScript, ONNX, weights for numpy, and a description of all that a robot has to know.

    policy.json       observation, normalization, actions, joints, gains, clock, memory, versions, the run (`describe`)
    policy.pt         TorchScript of the mean action: float32 (B, num_obs) -> (B, nu)
    policy.onnx       the same, with the input "obs" and the output "action" (extra ``torchdojo[deploy]``)
    policy.npz        weights for numpy_policy.py, which needs numpy alone
    numpy_policy.py   the runner, a copy of torchdojo/learning/numpy_policy.py
    episode.npz       a recorded episode: obs (T, num_obs), actions and joint targets (T, nu)

Every form is compared with the policy along the recorded episode before a file is written. Observations and actions are those that the
environment gives and takes; noise, delays and kicks of training are no part of the policy.
"""

from __future__ import annotations

import contextlib
import importlib.util
import inspect
import io
import json
import logging
import re
import tempfile
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from torchdojo.envs import Env
from torchdojo.learning import numpy_policy
from torchdojo.learning.networks import Actor
from torchdojo.learning.numpy_policy import NumpyPolicy
from torchdojo.learning.rollouts import SEED, Policy, evaluate
from torchdojo.learning.runs import Run
from torchdojo.learning.sidecar import describe, layers_of
from torchdojo.runs import write_atomically

__all__ = ["FORMATS", "TOLERANCE", "Exported", "export_policy"]

FORMATS = ("torchscript", "onnx", "numpy")
#: Largest difference of actions, which lie within ±1. Policies are float32, whose numbers near 1 are 6e-8 apart. Each form adds the
#: products of a layer in an order of its own, and a few layers of 128 terms differ by several such distances.
TOLERANCE = 1e-6
#: Difference from which on a form is taken for another policy, and refused. Rounding of a badly conditioned network may exceed the
#: tolerance.
REFUSED = 1e-5
INSTALL = 'pip install "torchdojo[deploy]"'


@dataclass(frozen=True)
class Exported:
    """The files that `export_policy` wrote.

    folder: with the files. files: their names. steps: of the recorded episode. differences: largest difference of the actions of each
    format from those of the policy, along the episode. left_out: {what: why}, formats and parts of the
    description.
    """

    folder: Path
    files: tuple[str, ...]
    steps: int
    differences: dict[str, float]
    left_out: dict[str, str]


def export_policy(run: Run, output: str | Path, formats: Sequence[str] | None = None, steps: int = 250, seed: int = SEED) -> Exported:
    """Write the policy of a run's last checkpoint into a folder.

    Args:
        formats: of `FORMATS`; None: all for which packages are installed. steps: control steps of the recorded episode at most.
        seed: of its start.

    Raises:
        ValueError: no checkpoint, an unknown format, a network that numpy_policy.py does not have, or a form of the policy that gives other
            actions. No file is written then. ImportError: ONNX is asked for and its packages are missing.
    """
    for name in formats or ():
        if name not in FORMATS:
            raise ValueError(f"formats: got {name!r}; allowed: {', '.join(FORMATS)}")
    wanted, left_out = list(FORMATS if formats is None else dict.fromkeys(formats)), dict[str, str]()
    if "onnx" in wanted and (missing := _missing("onnx", "onnxscript")):
        why = f"ONNX needs {' and '.join(missing)}: {INSTALL}"
        if formats is not None:
            raise ImportError(why)
        wanted.remove("onnx")
        left_out["onnx"] = why
    policy = run.policy()
    network = _Network(policy).eval()
    obs, actions = _episode(run.config.make_env(1, seed=seed, autoreset="disabled", randomize={}), policy, steps)
    about = describe(run, network.policy)
    if "unknown" in about["observation"]:
        left_out["layout of the observation"] = about["observation"]["unknown"]
    files, differences = dict[str, bytes](), dict[str, float]()
    if "torchscript" in wanted:
        files["policy.pt"] = content = _torchscript(network, obs)
        differences["torchscript"] = _difference(actions, _run_torchscript(content, obs))
    if "onnx" in wanted:
        files["policy.onnx"] = content = _onnx(network, obs)
        differences["onnx"] = _difference(actions, _run_onnx(content, obs))
    if "numpy" in wanted:
        about["network"], arrays = layers_of(network.policy)
        runner = NumpyPolicy(about, arrays)
        differences["numpy"] = _difference(actions, torch.as_tensor(runner(obs.numpy())))
        episode = {"obs": obs.numpy(), "actions": actions.numpy(), "targets": runner.targets(actions.numpy())}
        files["policy.npz"], files["episode.npz"] = _archive(arrays), _archive(episode)
        files["numpy_policy.py"] = Path(numpy_policy.__file__).read_bytes()
    files["policy.json"] = _json(about)
    for name, difference in differences.items():
        if not difference <= REFUSED:
            others = ",".join(other for other in wanted if other != name)
            raise ValueError(
                f"{name}: got actions up to {difference:.2g} from those of the policy along {len(obs)} steps; allowed: {REFUSED:g}. The "
                "network does something that this form lacks, such as a branch on values, or a forward of its own around its layers; "
                f"correct that, or leave the form out: --formats {others}"
            )
    folder = Path(output)
    for name, content in files.items():
        write_atomically(folder / name, lambda file, content=content: file.write(content))  # type: ignore[misc]
    return Exported(folder, tuple(sorted(files)), len(obs), differences, left_out)


class _Network(nn.Module):
    """A policy as a module. SHAC's is a function around its actor."""

    def __init__(self, policy: Policy) -> None:
        super().__init__()
        inside = [policy] if isinstance(policy, nn.Module) else inspect.getclosurevars(policy).nonlocals.values()
        modules = [value for value in inside if isinstance(value, nn.Module)]
        self.policy: Any = modules[0].requires_grad_(False) if len(modules) == 1 else policy
        if isinstance(self.policy, Actor):  # made in torch's default dtype; onnxruntime has no ELU in float64
            self.policy.float()

    def forward(self, obs: Tensor) -> Tensor:
        action: Tensor = self.policy(obs)
        return action


@torch.no_grad()
def _episode(env: Env, policy: Policy, steps: int) -> tuple[Tensor, Tensor]:
    """Observations (T, num_obs) and actions (T, nu) of an episode, float32."""
    rows = list[tuple[Tensor, Tensor]]()

    def recorded(obs: Tensor) -> Tensor:
        action = policy(obs)
        rows.append((obs[0], action[0].float()))
        return action

    evaluate(env, recorded, min(steps, env.episode_length))
    obs, actions = (torch.stack(columns) for columns in zip(*rows, strict=True))
    return obs, actions


def _difference(actions: Tensor, others: Tensor) -> float:
    return float((others.double() - actions.double()).abs().max())


@contextlib.contextmanager
def _deprecated() -> Iterator[None]:
    """TorchScript is deprecated in PyTorch, but robots' computers read it. From PyTorch 2.14 on, the warnings are `FutureWarning`s."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        warnings.filterwarnings("ignore", r"`torch\.jit\.", FutureWarning)
        yield


def _torchscript(network: nn.Module, obs: Tensor) -> bytes:
    file = io.BytesIO()
    with _deprecated():
        traced: Any = torch.jit.freeze(torch.jit.trace(network, obs[:1], check_trace=False))
        torch.jit.save(traced, file)
    return file.getvalue()


def _run_torchscript(content: bytes, obs: Tensor) -> Tensor:
    with _deprecated():
        action: Tensor = torch.jit.load(io.BytesIO(content))(obs)
    return action


def _onnx(network: nn.Module, obs: Tensor) -> bytes:
    """The network in ONNX, for a batch of any size. Two rows are the example: an exporter takes a size of one for a constant."""
    logging.disable(logging.WARNING)  # it says that torchvision is not installed
    try:
        with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            path = Path(folder) / "policy.onnx"
            names: dict[str, Any] = {"input_names": ["obs"], "output_names": ["action"], "dynamic_shapes": ({0: "batch"},)}
            torch.onnx.export(network, (obs[:1].repeat(2, 1),), path, dynamo=True, external_data=False, verbose=False, **names)
            return path.read_bytes()
    finally:
        logging.disable(logging.NOTSET)


def _run_onnx(content: bytes, obs: Tensor) -> Tensor:
    """Actions by onnxruntime, or where it is not installed, by the slow evaluator of onnx."""
    try:
        from onnxruntime import InferenceSession

        session: Any = InferenceSession(content, providers=["CPUExecutionProvider"])
    except ImportError:
        import onnx
        from onnx.reference import ReferenceEvaluator

        session = ReferenceEvaluator(onnx.load_from_string(content))
    return torch.as_tensor(session.run(None, {"obs": obs.numpy()})[0])


def _json(about: Mapping[str, Any]) -> bytes:
    """With lists of numbers on one line."""
    text = json.dumps(about, indent=1, ensure_ascii=False, allow_nan=False, default=dict)
    short = re.sub(r"\[\s+([^\[\]{}]*?)\s+\]", lambda match: f"[{' '.join(match[1].split())}]", text)
    return (short + "\n").encode()


def _archive(arrays: Mapping[str, np.ndarray]) -> bytes:
    file = io.BytesIO()
    np.savez(file, **arrays)  # type: ignore[arg-type]
    return file.getvalue()


def _missing(*names: str) -> list[str]:
    """Packages that are not installed."""
    return [name for name in names if importlib.util.find_spec(name) is None]
