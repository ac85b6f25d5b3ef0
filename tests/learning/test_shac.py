"""SHAC: its parts against definitions, training that resumes to the last bit, and processes that learn as one."""

import json
import subprocess
import sys

import pytest
import torch

import torchdojo as td
from torchdojo.commands.main import main
from torchdojo.learning import read_config
from torchdojo.learning.adjoint import clip_adjoint
from torchdojo.learning.networks import Normalizer
from torchdojo.learning.returns import discounts, lambda_returns
from torchdojo.learning.runs import Run, load_run
from torchdojo.runs import locked
from torchdojo.runs.versions import versions

pytest.importorskip("pytorch_lightning", reason="needs the extra torchdojo[learn]")

from torchdojo.learning import shac_run
from torchdojo.learning.refinement import Refinement
from torchdojo.learning.shac import Shac, ShacSettings

SMALL = {"num_envs": 4, "horizon": 5, "samples": 500, "actor": [8], "critic": [8], "compile": False}
CARTPOLE = {"env": "cartpole_swingup", "env_options": {"pool": 16}, "settings": SMALL}


DISTURBED = {
    "kicks": [0.3, 5],
    "sensor_noise": {"noise": 0.02, "bias": 0.05, "delay": 1},
    "resample": 4,
    "episode_length": 15,
    "randomize": {"bodies.arm.mass": [0.5, 2.0]},
    "redraw": True,
}


def small(env=CARTPOLE, **settings):
    return {**env, "settings": {**SMALL, **settings}}


def weights(run):
    return shac_run.read_checkpoint_of_shac(run.checkpoint)["state_dict"]


def trained(folder, config, resume=False):
    run = Run(folder, read_config(config))
    run.begin(resume)
    return run, run.train(resume)


# -- parts -------------------------------------------------------------------------------------------------------------------------------


def test_adjoint_is_clipped_by_row_and_counted():
    z = torch.eye(4, dtype=torch.float64)[:3].requires_grad_()
    tally = torch.zeros(3, 3, dtype=torch.float64, requires_grad=True)
    grad = torch.tensor([[3.0, 4.0, 0, 0], [0.3, 0.4, 0, 0], [torch.inf, 0, 0, 0]], dtype=torch.float64)
    clip_adjoint(z, tally, 1.0).backward(grad)
    assert torch.allclose(z.grad, torch.tensor([[0.6, 0.8, 0, 0], [0.3, 0.4, 0, 0], [0, 0, 0, 0]], dtype=torch.float64))
    assert tally.grad.tolist() == [[1, 0, 5.0], [0, 0, 0.5], [1, 1, 0]]


def test_discounts_begin_anew_with_episodes():
    done = torch.tensor([[0, 0], [0, 1], [1, 0], [0, 0]], dtype=torch.bool)
    expected = torch.tensor([[1, 1], [0.5, 0.5], [0.25, 1], [1, 0.5]])
    assert torch.allclose(discounts(done, 0.5), expected)


@pytest.mark.parametrize("lam", [0.0, 0.7, 1.0])
def test_lambda_returns_are_weighted_sums_of_n_step_returns(lam):
    torch.manual_seed(0)
    rewards, values, gamma = torch.randn(5, 1), torch.randn(5, 1), 0.9
    done = torch.zeros(5, 1, dtype=torch.bool)

    def n_step(t, n):
        return sum(gamma**k * rewards[t + k, 0] for k in range(n)) + gamma**n * values[t + n - 1, 0]

    for t in range(5):
        left = 5 - t
        expected = sum((1 - lam) * lam ** (n - 1) * n_step(t, n) for n in range(1, left)) + lam ** (left - 1) * n_step(t, left)
        assert lambda_returns(rewards, values, done, gamma, lam)[t, 0] == pytest.approx(float(expected), abs=1e-6)
    done[2] = True
    cut = lambda_returns(rewards, values, done, gamma, lam)
    assert torch.allclose(cut[:3], lambda_returns(rewards[:3], values[:3], done[:3], gamma, lam))


def test_normalizer_has_the_moments_of_all_it_saw():
    torch.manual_seed(0)
    rows = 5.0 + 3.0 * torch.randn(1000, 3)
    normalizer = Normalizer(3)
    for part in rows.split(70):
        normalizer.update(part)
    assert torch.allclose(normalizer.mean, rows.mean(0), atol=1e-4)  # its start counts as 1e-4 of an observation
    assert torch.allclose(normalizer.var, rows.var(0, unbiased=False), rtol=1e-4)
    assert float(normalizer(1e9 * rows).abs().max()) == 10.0


def test_actor_loss_is_the_return_of_the_segment_and_its_gradient_agrees_with_differences():
    """Without clipping, in float64, with a target critic that stays."""
    env = td.envs.make("pendulum", num_envs=3, pool=8, seed=1)
    module = Shac(env, ShacSettings(num_envs=3, horizon=4, adjoint_clip=None, actor=(6,), critic=(6,), compile=False)).double()
    first, noise = env.state_dict(), module.generator.get_state()

    def loss():
        env.load_state_dict(first)
        module.generator.set_state(noise)
        segment = module.rollout(4)
        segment.rewards, segment.final_obs = segment.rewards.double(), segment.final_obs.double()
        return module._actor_loss(segment)

    module.rollout(4)
    bias = module.actor.body[-1].bias
    gradient = torch.autograd.grad(loss(), bias)[0]
    step, values = 1e-3, []
    for sign in (1, -1):
        with torch.no_grad():
            bias += sign * step
            values.append(float(loss()))
            bias -= sign * step
    assert float(gradient) == pytest.approx((values[0] - values[1]) / (2 * step), rel=1e-3)  # rewards pass through float32


# -- training ----------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "epoch"),
    [
        pytest.param({}, 0, marks=pytest.mark.slow),
        pytest.param({"critics": 2, "entropy": 0.1, "target_entropy": -0.5, "adaptive_horizon": [2, 8]}, 1, marks=pytest.mark.slow),
        ({"env": {"env": "crawler:Crawler", "env_options": {"pool": 16}, "training_options": DISTURBED}}, 0),
        pytest.param({"passes": 2, "horizon": 7}, 0, marks=pytest.mark.slow),
        pytest.param({"passes": 0, "actor_lam": 1.0, "adjoint_clip": 200.0}, 0, marks=pytest.mark.slow),
    ],
    ids=["plain", "entropy", "disturbed", "without gradients", "shac alone"],
)
def test_killed_and_resumed_training_continues_identically(tmp_path, monkeypatch, options, epoch):
    if options.get("passes") == 2:  # segments have a gradient now and then, as where it disagrees with likelihood ratios
        monkeypatch.setattr(Refinement, "ENOUGH", 2.0)
        monkeypatch.setattr(Refinement, "PROBE", 3)
    whole, report = trained(tmp_path / "whole", small(**options))
    assert report["samples"] >= 500 and report["skipped"] == 0

    class KilledError(Exception):
        pass

    def die(self, trainer, module):
        if trainer.current_epoch == epoch:
            raise KilledError

    with monkeypatch.context() as patch:
        patch.setattr(shac_run.Telling, "on_train_epoch_end", die)
        with pytest.raises(KilledError):
            trained(tmp_path / "parts", small(**options))
    parts, resumed = trained(tmp_path / "parts", small(**options), resume=True)
    one, other = weights(whole), weights(parts)
    assert all(torch.equal(one[name], other[name]) for name in one)
    rows = [[line.split(",")[0] for line in (run.folder / "metrics.csv").read_text().splitlines()] for run in (whole, parts)]
    assert rows[0] == rows[1] and len(rows[0]) >= 3
    header, last = [line.split(",") for line in (whole.folder / "metrics.csv").read_text().splitlines()[:: len(rows[0]) - 1]]
    parts_of_reward = [float(value) for name, value in zip(header, last, strict=True) if name.startswith("reward_")]
    assert sum(parts_of_reward) == pytest.approx(float(last[header.index("reward")]), rel=1e-4)
    assert resumed["samples"] == report["samples"]


def test_nan_never_reaches_a_weight(tmp_path):
    class Broken(td.envs.Env):
        """A pendulum whose reward and observation are NaN now and then, and whose gradient is infinite elsewhere."""

        broken = False

        def build(self):
            mech = td.models.make("pendulum", timestep=0.05)
            td.actuate(mech, {"hinge": td.Actuator.motor("hinge", gear=2.0, ctrlrange=(-1.0, 1.0))})
            return mech

        def reward(self, before, after, action):
            rate = after.qd[:, 0]
            root = rate.abs().sqrt()  # its slope at zero is infinite
            return torch.where(torch.rand(len(rate)) < 0.1, torch.nan, root) if self.broken else root

    env = Broken(num_envs=4, pool=8)
    env.broken = True
    module = Shac(env, ShacSettings(num_envs=4, horizon=4, actor=(6,), critic=(6,), samples=400, compile=False))
    import pytorch_lightning as pl

    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "enable_checkpointing": False}
    pl.Trainer(max_epochs=-1, accelerator="cpu", **quiet).fit(module)
    assert env.statistics["flagged"] > 0  # counted
    assert all(bool(p.isfinite().all()) for p in module.state_dict().values() if p.is_floating_point() and p.ndim)


@pytest.mark.slow
def test_two_processes_learn_as_one_with_twice_the_environments(tmp_path):
    torch.set_default_dtype(torch.float32)  # as in the processes; the next test sets its own
    config, options = tmp_path / "config.yaml", {"adaptive_horizon": [2, 8]}  # all processes have to agree on it
    one, numbers = trained(tmp_path / "one", small(num_envs=8, **options))
    config.write_text(json.dumps(small(num_envs=4, **options)))
    command = [sys.executable, "-m", "torchdojo", "train", str(config), "--output", str(tmp_path / "two"), "--processes", "2"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    first, second = weights(one), weights(load_run(tmp_path / "two"))
    for name, value in first.items():
        assert torch.allclose(second[name], value, rtol=1e-3, atol=1e-4), name  # float32 sums in another order, through all steps of Adam
    told = json.loads((tmp_path / "two" / "report.json").read_text())
    assert {**numbers, "cpu_seconds": told["cpu_seconds"]}.items() <= told.items()  # counts are those of all processes
    assert told["versions"] == versions()


def test_cartpole_learns_in_seconds(tmp_path):
    """The return of the last episodes is better than that of the first."""
    settings = {"num_envs": 16, "horizon": 32, "samples": 10_000, "reward_scale": 0.1, "compile": False, "lr": 5e-3}
    run, _ = trained(tmp_path, {"env": "cartpole_balance", "env_options": {"pool": 32}, "settings": settings})
    env = run.config.make_env(16, autoreset="disabled", seed=5)
    result = td.learning.evaluate(env, run.policy(), steps=200)
    first = td.learning.evaluate(run.config.make_env(16, autoreset="disabled", seed=5), lambda obs: torch.zeros(16, 1), steps=200)
    assert result.survival == 1.0 and first.survival < 0.5


# -- bad input ---------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"algorithm": "sac"}, "algorithm: got 'sac'; allowed: shac, ppo"),
        ({"env": "unicycle"}, "no environment 'unicycle'; there are: pendulum"),
        ({"env": "nowhere:Robot"}, "module:Class, of a module that Python finds"),
        ({"env": "torchdojo.envs:Robot"}, "has no environment 'Robot'"),
        ({"env_options": {"colour": "red"}}, "colour"),
        ({"settings": {"learning_rate": 1.0}}, "there is no learning_rate; allowed: samples"),
        ({"settings": {"lr": "fast"}}, "lr"),
        ({"settings": {"gamma": 1.5}}, "gamma: got 1.5; allowed: a number from 0 to 1"),
        ({"settings": {"adjoint_clip": -1.0}}, "adjoint_clip: got -1.0"),
        ({"settings": {"adaptive_horizon": [20, 30]}}, "adaptive_horizon"),
        ({"settings": {"adaptive_horizon": [2, 90], "compile": True}}, "with compile: true"),
        ({"seeds": 3}, "there is no seeds; allowed: env"),
        ({"logger": "nowhere:Logger"}, "logger 'nowhere:Logger'"),
    ],
)
def test_bad_descriptions(tmp_path, change, message):
    with pytest.raises(ValueError, match=message.replace("(", r"\(")):
        trained(tmp_path, {**CARTPOLE, **change})


@pytest.mark.parametrize("algorithm", ["ars", "ags", "ppo"])
def test_several_processes_are_for_shac(algorithm: str, tmp_path, capsys) -> None:
    output = tmp_path / "out"
    options = ["--env", "cartpole_swingup", "--algorithm", algorithm, "--processes", "2", "--output", str(output)]
    assert main(["train", *options]) == 2
    assert f"processes: got 2 for {algorithm}; allowed: 1, or more for shac; leave it out" in capsys.readouterr().err
    assert not output.exists()


def test_folders_that_do_not_fit(tmp_path):
    with pytest.raises(ValueError, match="holds no run"):
        load_run(tmp_path)
    run, _ = trained(tmp_path, small(samples=20))
    with pytest.raises(ValueError, match="holds a run; give --resume"):
        trained(tmp_path, small(samples=20))
    with locked(tmp_path), pytest.raises(ValueError, match="is in use by process"):
        run.train(resume=True)
    with pytest.raises(ValueError, match="describes another run"):
        trained(tmp_path, small(samples=40), resume=True)
    other = Run(tmp_path, read_config({**CARTPOLE, "env": "pendulum"}))
    with pytest.raises(ValueError, match="has a policy of 5 observations; the environment 'pendulum' has 3"):
        other.policy()
    run.checkpoint.write_bytes(b"no checkpoint")
    with pytest.raises(ValueError, match="is damaged, or no checkpoint of SHAC"):
        run.policy()
    run.checkpoint.unlink()
    with pytest.raises(ValueError, match="holds no checkpoint yet"):
        run.policy()


def test_a_checkpoint_of_other_defaults_is_refused(tmp_path):
    """An earlier revision had no passes, and another bound: its run goes on only where the description says so."""
    run, _ = trained(tmp_path, small(samples=20))
    old = shac_run.read_checkpoint_of_shac(run.checkpoint)
    old["shac"]["settings"] = {name: value for name, value in old["shac"]["settings"].items() if name not in ("passes", "actor_lam")}
    old["shac"]["settings"]["adjoint_clip"] = 200.0
    with pytest.raises(ValueError, match=r"settings.actor_lam=1.0, settings.passes=0, settings.adjoint_clip=200.0; allowed: the same"):
        Shac(run.config.make_env(4), run.settings).on_load_checkpoint(old)
