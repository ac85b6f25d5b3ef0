"""Exported policies: every form gives the actions of the run, the description is that of the environment, and errors."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import torchdojo as td
from crawler import FILTER, PERIOD, Crawler
from torchdojo.commands.main import main
from torchdojo.learning import export as module
from torchdojo.learning import networks, sidecar
from torchdojo.learning.export import TOLERANCE, export_policy
from torchdojo.learning.layout import memory_layout, observation_layout
from torchdojo.learning.motors import places, torques
from torchdojo.learning.networks import Actor
from torchdojo.learning.random_search import LinearPolicy
from torchdojo.learning.rollouts import evaluate
from torchdojo.learning.runs import Run, load_run, read_config
from torchdojo.native import loader

pytestmark = pytest.mark.skipif(not loader.available(), reason="no compiler for the native kernel")

# The rates are high, so that a few steps of training lead to actions that are far from zero.
SHAC = {"num_envs": 4, "horizon": 8, "samples": 320, "actor": [64, 32], "critic": [8], "compile": False, "lr": 0.03}
PPO = {"num_envs": 8, "horizon": 16, "samples": 512, "actor": [64, 32], "critic": [8], "lr": 0.02, "desired_kl": None}
RUNS: dict[str, dict[str, Any]] = {
    "shac": {"env": "crawler:Crawler", "algorithm": "shac", "env_options": {"pool": 16}, "settings": SHAC},
    "ppo": {"env": "hopper", "algorithm": "ppo", "env_options": {"pool": 16}, "settings": PPO},
}
NEEDS = {"shac": "pytorch_lightning", "ppo": "rsl_rl"}


@pytest.fixture(autouse=True)
def _networks_are_float32(_same_start_for_every_test: None) -> None:
    """As in a program that leaves torch's default dtype alone."""
    torch.set_default_dtype(torch.float32)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Runs by the name of their algorithm, trained when they are asked for."""
    runs: dict[str, Run] = {}

    def get(name: str) -> Run:
        if name not in runs:
            pytest.importorskip(NEEDS[name], reason="needs the extra torchdojo[learn]")
            runs[name] = Run(tmp_path_factory.mktemp("runs") / name, read_config(RUNS[name]))
            runs[name].begin()
            runs[name].train()
        return runs[name]

    return get


def runner_of(folder: Path) -> ModuleType:
    """The copied numpy_policy.py, not that of the package."""
    spec = importlib.util.spec_from_file_location("copied_numpy_policy", folder / "numpy_policy.py")
    assert spec is not None and spec.loader is not None
    copied = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(copied)
    return copied


def episode(run: Run, steps: int = 60) -> tuple[Tensor, Tensor, Any]:
    """Observations and actions of an episode that the export has not seen, and its recording."""
    policy, rows = run.policy(), []

    def recorded(obs: Tensor) -> Tensor:
        rows.append((obs, policy(obs)))
        return rows[-1][1]

    env = run.config.make_env(1, seed=5, autoreset="disabled")
    record = evaluate(env, recorded, steps, record=True).recording
    obs, actions = (torch.cat(column) for column in zip(*rows, strict=True))
    return obs, actions, record


def run_onnx(path: Path, obs: Tensor) -> Tensor:
    if importlib.util.find_spec("onnxruntime") is None:
        from onnx.reference import ReferenceEvaluator as Session
    else:
        from onnxruntime import InferenceSession as Session
    return torch.as_tensor(Session(str(path)).run(["action"], {"obs": obs.numpy()})[0])


# -- actions -----------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["shac", "ppo"])
def test_every_form_gives_the_actions_of_the_run(trained: Any, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, has_onnx = trained(name), not module._missing("onnx", "onnxscript")
    assert main(["export", str(run.folder), "--output", str(tmp_path), "--steps", "40", "--json"]) == 0
    text = capsys.readouterr().out
    report = json.loads(text.splitlines()[-1])
    formats = {"torchscript", "numpy", *(["onnx"] if has_onnx else [])}
    assert set(report["differences"]) == formats and max(report["differences"].values()) < TOLERANCE
    assert has_onnx or 'pip install "torchdojo[deploy]"' in text

    obs, actions, record = episode(run)
    assert float(actions.abs().max()) > 0.1 and float(actions.std()) > 1e-3  # the policy does something
    policy = runner_of(tmp_path).NumpyPolicy.load(tmp_path)
    forms = {"torchscript": torch.jit.load(tmp_path / "policy.pt")(obs), "numpy": torch.as_tensor(policy(obs.numpy()))}
    if has_onnx:
        forms["onnx"] = run_onnx(tmp_path / "policy.onnx", obs)
    for form, found in forms.items():
        # Actions are float32 numbers near 1, which are 6e-8 apart, and the orders of sums differ.
        torch.testing.assert_close(found.double(), actions.double(), rtol=0, atol=1e-6, msg=lambda text, form=form: f"{form}: {text}")

    mech = run.config.make_env(1).mech
    q, qd = (values[:, 0][:, places(mech)] for values in mech.to_minimal(record.z[1:]))
    expected = torques(mech, actions.double(), q, qd)
    found = policy.torques(actions.numpy(), q.numpy(), qd.numpy())
    np.testing.assert_allclose(found, expected.numpy(), rtol=0, atol=1e-9 * float(expected.abs().max()))
    kp, kd = (np.array([row[key] for row in policy.about["actions"]]) for key in ("kp", "kd"))
    # No servo of these robots has a limit, so its torque is that of a spring to the target, and a damper.
    servo = kp * (policy.targets(actions.numpy()) - q.numpy()) - kd * qd.numpy()
    np.testing.assert_allclose(servo, expected.numpy(), rtol=0, atol=1e-9 * float(expected.abs().max()))


def test_the_runner_needs_numpy_alone(trained: Any, tmp_path: Path) -> None:
    export_policy(trained("ppo"), tmp_path, ["numpy"], steps=20)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["episode.npz", "numpy_policy.py", "policy.json", "policy.npz"]
    code = "import runpy, sys; sys.modules.update(torch=None, torchdojo=None); runpy.run_path('numpy_policy.py', run_name='__main__')"
    done = subprocess.run([sys.executable, "-I", "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.startswith("20 steps: largest difference of actions"), done.stderr
    with np.load(tmp_path / "episode.npz") as file:
        arrays = {**dict(file), "actions": file["actions"] + 0.01}
    np.savez(tmp_path / "episode.npz", **arrays)
    assert subprocess.run([sys.executable, "numpy_policy.py"], cwd=tmp_path, capture_output=True).returncode == 1
    with pytest.raises(ValueError, match=r"got observations \(3, 2\); allowed: \(\.\.\., 14\)"):
        runner_of(tmp_path).NumpyPolicy.load(tmp_path)(np.zeros((3, 2)))


class StandIn(Actor):
    """Stands in for `SymmetricActor` where networks.py has none yet: the same structure, tanh((f(o) + M f(M o)) / 2)."""

    def __init__(self, num_obs: int, num_actions: int, hidden: Any = (16,), std: float = 0.4, *, mirror: Any) -> None:
        super().__init__(num_obs, num_actions, hidden, std)
        self.register_buffer("mirror_obs", mirror.obs.float())
        self.register_buffer("mirror_action", mirror.action.float())

    def forward(self, obs: Tensor) -> Tensor:
        out = self.body(self.normalizer(torch.stack((obs, obs @ self.mirror_obs.mT))))
        return torch.tanh(0.5 * (out[0] + out[1] @ self.mirror_action.mT))


class Mirror:
    obs = torch.eye(14, dtype=torch.float64).flip(0)
    action = torch.tensor([[0.0, 0.0, -1.0], [0.0, 1.0, 0.0], [-1.0, 0.0, 0.0]], dtype=torch.float64)


class Plain(Actor):
    """Layers that `perceptron` does not make."""

    def __init__(self) -> None:
        super().__init__(14, 3, (8,))
        inner = nn.Sequential(nn.Linear(14, 9, bias=False), nn.ReLU(), nn.LayerNorm(9, elementwise_affine=False))
        self.body = nn.Sequential(inner, nn.Identity(), nn.Linear(9, 5), nn.Tanh(), nn.ELU(0.7), nn.Linear(5, 3))


def linear() -> LinearPolicy:
    policy = LinearPolicy(14, 3)
    policy.weight.copy_(torch.randn(3, 14))
    return policy


NETWORKS = {
    "symmetric": lambda: getattr(networks, "SymmetricActor", StandIn)(14, 3, (16,), 0.4, mirror=Mirror()),
    "layers": Plain,
    "linear": linear,
}


@pytest.mark.parametrize("name", list(NETWORKS))
def test_networks_of_other_kinds(trained: Any, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    network = NETWORKS[name]().requires_grad_(False)
    network.normalizer.update(1.0 + 2.0 * torch.randn(200, 14))
    if hasattr(network, "body"):
        network.body[-1].weight *= 3.0
    monkeypatch.setattr(Run, "policy", lambda self: network)
    result = export_policy(trained("ppo"), tmp_path, ["numpy", "torchscript"], steps=30)
    assert max(result.differences.values()) < TOLERANCE
    obs = 1.0 + 2.0 * torch.randn(50, 14)
    policy = runner_of(tmp_path).NumpyPolicy.load(tmp_path)
    np.testing.assert_allclose(policy(obs.numpy()), network(obs).numpy(), rtol=0, atol=1e-6)
    assert policy.about["network"]["symmetric"] == (name == "symmetric")
    if name == "symmetric":  # the runner is equivariant, too
        image = policy((obs @ Mirror.obs.float().mT).numpy())
        np.testing.assert_allclose(image, policy(obs.numpy()) @ Mirror.action.mT.numpy(), rtol=0, atol=1e-12)


def test_policies_are_float32_whatever_the_default_dtype_is(trained: Any, tmp_path: Path) -> None:
    run = trained("ppo")
    torch.set_default_dtype(torch.float64)
    result = export_policy(run, tmp_path, steps=10)
    assert max(result.differences.values()) < TOLERANCE
    assert torch.jit.load(tmp_path / "policy.pt")(torch.zeros(2, 14, dtype=torch.float32)).dtype == torch.float32


# -- description -------------------------------------------------------------------------------------------------------------------------


def test_layout_of_observation_and_memory_is_found() -> None:
    env = Crawler(num_envs=16, pool=16, observe_impulses=True)
    parts = observation_layout(env)
    assert [i for part in parts for i in part["indices"]] == list(range(env.num_obs))
    found = {(part["name"], part["unit"]): part for part in parts}
    assert [name for name, _ in found] == (
        ["position", "velocity", "orientation", "spin", "coordinate", "rate", "action", "goal", "sine", "cosine", "memory", "normal force"]
    )
    assert found["rate", "rad/s"]["scale"] == [0.2] and found["rate", "rad/s"]["entries"] == ["rate of shoulder"]
    assert found["spin", "rad/s"]["frame"] == "body trunk" and found["velocity", "m/s"]["frame"] == "world"
    assert found["normal force", "N"]["entries"][-1] == "normal force of contacts.hand"
    clock, speed, action = memory_layout(env)
    assert (clock["rule"], clock["frequency_hz"]) == ("clock", pytest.approx(1 / PERIOD))
    assert (speed["rule"], speed["of"], speed["keep"], speed["gain"]) == ("filter", "velocity x", FILTER, pytest.approx(1 - FILTER))
    assert (action["rule"], action["of"], action["scale"]) == ("copy", "action of shoulder", 1.0)
    assert not any(entry["drawn_anew"] for entry in (clock, speed, action))


def test_entries_say_scale_offset_or_what_they_depend_on() -> None:
    class Other(Crawler):
        def observe(self, motion: td.envs.Motion) -> Tensor:
            return torch.cat((3.0 * motion.q[:, 6:] - 0.5, motion.q[:, 6:] * motion.goal, motion.memory[:, :1].exp()), -1)

        def remember(self, before: td.envs.Motion, after: td.envs.Motion, fresh: Tensor) -> Tensor:
            kept = torch.where((after.time % 100 == 0)[:, None], fresh[:, :1], before.memory[:, :1])
            return torch.cat((kept, before.memory[:, 2:3], (before.memory[:, 2:3] * after.q[:, 6:]).sin()), -1)

    env = Other(num_envs=16, pool=16)
    angle, product, power = observation_layout(env)
    assert (angle["scale"], angle["offset"], angle["unit"]) == ([3.0], [-0.5], "rad")
    assert product["name"] == "other" and product["scale"] == [None]
    assert product["depends_on"] == ["q", "goal"] and power["depends_on"] == ["memory"] and power["indices"] == [2]
    kept, shifted, other = memory_layout(env)
    assert (kept["rule"], kept["drawn_anew"]) == ("constant", True)
    assert (shifted["rule"], shifted["of"], shifted["drawn_anew"]) == ("copy", "memory[2]", False)
    assert other["rule"] == "other"


def test_description_of_a_robot_with_limited_drives(trained: Any, tmp_path: Path) -> None:
    run = trained("ppo")
    export_policy(run, tmp_path, ["torchscript"], steps=5)
    about = json.loads((tmp_path / "policy.json").read_text())
    assert about["control"] == {"period_s": 0.02, "frequency_hz": 50.0, "timestep_s": 0.01, "repeat": 2}
    assert about["run"]["config"]["settings"] == PPO and len(about["run"]["checkpoint_sha256"]) == 64
    assert about["versions"]["torch"] == torch.__version__ and len(about["normalization"]["mean"]) == 14
    quadruped = Run(run.folder, read_config({"env": "quadruped"}))
    rows = module.describe(quadruped, None)["actions"]
    # The drives are those of the table in the README of environments: 0.9 of 33.5 N·m over 0.5 rad, and a limit of 33.5 N·m.
    assert rows[0]["name"] == "FR_hip_joint" and rows[0]["kind"] == "position servo" and rows[0]["unit"] == "rad"
    assert rows[0]["reach"] == pytest.approx(0.5) and rows[0]["kp"] == pytest.approx(0.9 * 33.5 / 0.5)
    assert rows[0]["kd"] + rows[0]["damper"] == pytest.approx(0.025 * rows[0]["kp"])
    assert (rows[0]["force_low"], rows[0]["force_high"], rows[0]["motor"], rows[0]["speed"]) == (-33.5, 33.5, 33.5, 21.0)
    assert rows[1]["rest"] == pytest.approx(td.models.unitree.STANDING["thigh"])
    motor = module.describe(Run(run.folder, read_config({"env": "cartpole_balance"})), None)["actions"][0]
    assert (motor["kind"], motor["reach"], motor["rest"], motor["unit"], motor["kp"]) == ("motor", None, None, "m", 0.0)


# -- errors ------------------------------------------------------------------------------------------------------------------------------


def test_without_packages_of_onnx_the_rest_is_written(
    trained: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = trained("ppo")
    monkeypatch.setattr(module, "_missing", lambda *names: [names[1]])
    assert main(["export", str(run.folder), "--steps", "3"]) == 0
    assert 'left out: onnx. ONNX needs onnxscript: pip install "torchdojo[deploy]"' in capsys.readouterr().out
    assert {path.name for path in (run.folder / "export").iterdir()} >= {"policy.pt", "policy.npz", "policy.json", "numpy_policy.py"}
    assert main(["export", str(run.folder), "--output", str(tmp_path / "other"), "--formats", "onnx"]) == 2
    assert "ONNX needs onnxscript" in capsys.readouterr().err and not (tmp_path / "other").exists()


def test_a_layout_that_cannot_be_found_is_told(trained: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(env: td.envs.Env) -> Any:
        raise RuntimeError("out of range")

    monkeypatch.setattr(sidecar, "observation_layout", refuse)
    result = export_policy(trained("ppo"), tmp_path, ["numpy"], steps=3)
    assert "out of range; read the environment's code" in result.left_out["layout of the observation"]


def test_bad_input(trained: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", str(tmp_path)]) == 2
    assert "holds no run" in capsys.readouterr().err
    Run(tmp_path / "new", read_config(RUNS["ppo"])).begin()
    assert main(["export", str(tmp_path / "new")]) == 2
    assert "holds no checkpoint yet; train first" in capsys.readouterr().err
    run = load_run(trained("ppo").folder)
    assert main(["export", str(run.folder), "--formats", "tflite"]) == 2
    assert "formats: got 'tflite'; allowed: torchscript, onnx, numpy" in capsys.readouterr().err

    convolution, sharper, output = Actor(14, 3), Actor(14, 3), tmp_path / "output"
    convolution.body[1] = nn.GELU()
    sharper.forward = lambda obs: torch.tanh(2.0 * sharper.body(sharper.normalizer(obs.float())) + 0.1)  # type: ignore[method-assign]
    for network, words in (
        (convolution, "numpy: got a layer GELU; allowed: Linear, LayerNorm of the last dimension"),
        (lambda obs: torch.zeros(len(obs), 3), "numpy: got a network function; allowed: td.learning.Actor"),
        (sharper, "numpy: got actions up to"),
    ):
        monkeypatch.setattr(Run, "policy", lambda self, network=network: network)
        with pytest.raises(ValueError, match=words.replace("(", r"\(")) as error:
            export_policy(run, output, ["torchscript", "numpy"], steps=3)
        assert "--formats torchscript" in str(error.value) and not output.exists()
        export_policy(run, tmp_path / "alone", ["torchscript"], steps=3)  # the remedy
