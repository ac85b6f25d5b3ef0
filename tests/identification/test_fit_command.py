"""`torchdojo fit`: what it finds and writes, runs that are interrupted or killed and go on, and bad input."""

import csv
import importlib
import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import torch
import yaml
from made_up import thrown_cubes

from conftest import REPOSITORY, shared_path
from torchdojo.commands.main import main
from torchdojo.identification import cube_model, plots, read_config, record_rollouts
from torchdojo.identification.lightning import read_checkpoint_of_fit
from torchdojo.runs import lightning as checkpoints
from torchdojo.runs import locked
from torchdojo.viewer import load_playbacks

TRUTH = {"friction": 0.25, "half_side": 0.05}
FILES = ("run.json", "parameters.json", "report.json", "open_loop.npz", "open_loop_error.png", "geometry.png", "rollouts.png")
GAUSS_NEWTON = {"parameters": list(TRUTH), "horizon": 20, "stride": 4, "substeps": 1, "options": {"max_iterations": 12}}
ADAM = {
    "parameters": ["friction", "half_side"],
    "horizon": 2,
    "stride": 3,
    "substeps": 1,
    "method": "Adam",
    "options": {"lr": 0.02},
    "epochs": 6,
    "batch_size": 16,
}


@pytest.fixture(scope="module")
def tosses(tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "tosses.npz"
    np.savez(path, **thrown_cubes(cube_model(1 / 148, tuple(TRUTH), start=TRUTH), 8, 60), half_side=0.05)
    return path


def describe(folder, *stages, **values):
    path = folder / "description.yaml"
    path.write_text(yaml.safe_dump({"object": "cube", "substeps": 1, "validation": 0.25, **values, "stages": list(stages)}))
    return path


def run(*arguments, code=0):
    assert main(["fit", *map(str, arguments)]) == code


def checkpoint(output, stage):
    return read_checkpoint_of_fit(output / f"stage_{stage}" / "last.ckpt")


def found_by(checkpoint):
    state = checkpoint["identification"].get("state")
    return checkpoint["state_dict"]["loss.model.raw"] if state is None else state["raw"]


def assert_same_run(first, second, stages):
    for stage in range(1, stages + 1):
        a, b = checkpoint(first, stage), checkpoint(second, stage)
        assert torch.equal(found_by(a), found_by(b))
        assert a["identification"]["losses"] == b["identification"]["losses"]
    reports = [json.loads((folder / "report.json").read_text()) for folder in (first, second)]
    for key in ("parameters", "nominal", "fitted"):
        assert reports[0][key] == reports[1][key]
    for a, b in zip(reports[0]["stages"], reports[1]["stages"], strict=True):
        assert {**a, "seconds": 0} == {**b, "seconds": 0}


def test_fit_finds_and_writes(tosses, tmp_path, capsys):
    config, output = describe(tmp_path, GAUSS_NEWTON), tmp_path / "out"
    run(config, "--data", tosses, "--output", output, "--json")
    text = capsys.readouterr().out.splitlines()
    report = json.loads(text[-1])
    assert report == json.loads((output / "report.json").read_text())
    for name, value in TRUTH.items():
        assert report["parameters"][name] == pytest.approx(value, rel=1e-4)  # exact data: the tolerance of the issue
        assert 0 <= report["stages"][0]["parameters"][name]["standard_error"] <= 1e-3 * value
    assert report["stages"][0]["not_identifiable"] == []
    assert report["trajectories"] == {"training": 6, "validation": 2}
    # nominal: half a side 2.4 mm too long; fitted: what is left are the tolerances of the solver, multiplied by chaos
    assert report["fitted"]["validation"]["position_error_mm"] < 0.01 < report["nominal"]["validation"]["position_error_mm"]
    assert {name for name in FILES if (output / name).stat().st_size > 0} == set(FILES)
    labels = [playback.label.split(", ")[1] for playback in load_playbacks(output / "trajectory.npz")]
    assert labels == ["recorded", "nominal", "fitted"]
    with np.load(output / "open_loop.npz") as arrays:
        assert arrays["fitted_z"].shape == (120, 13) and arrays["offsets"].tolist() == [0, 60, 120]
        means = [1e3 * arrays["nominal_position_error_m"][a + 1 : a + 60].mean() for a in (0, 60)]
        assert np.mean(means) == pytest.approx(report["nominal"]["validation"]["position_error_mm"])
    with (output / "stage_1" / "version_0" / "metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert {"epoch", "train_loss", "validation_loss", *TRUTH} <= set(rows[0])
    logged = [row for row in rows if row["friction"]]
    assert float(logged[0]["friction"]) == pytest.approx(0.18) and float(logged[-1]["friction"]) == report["parameters"]["friction"]

    # replay builds the same object again: errors of all throws are the weighted mean of those of both parts
    assert main(["replay", str(tosses), "--parameters", str(output), "--json"]) == 0
    replayed = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (replayed["object"], replayed["substeps"], replayed["flagged_steps"]) == ("cube", 1, 0)
    for key in ("position_error_mm", "rotation_error_degrees", "position_error_percent_of_width"):
        for model, errors in (("nominal", replayed["nominal"]), ("fitted", replayed)):
            expected = (6 * report[model]["training"][key] + 2 * report[model]["validation"][key]) / 8
            assert errors[key] == pytest.approx(expected, rel=1e-9)
    assert main(["replay", str(tosses), "--parameters", str(output), "--friction", "0.3"]) == 2
    assert main(["replay", str(tosses), "--parameters", str(tmp_path)]) == 2
    errors = capsys.readouterr().err
    assert "--parameters brings all of its own" in errors and "it comes with a finished `torchdojo fit`" in errors


@pytest.fixture
def undrawn(monkeypatch):
    """Figures take a second."""
    monkeypatch.setattr(plots, "available", lambda: False)


@pytest.fixture(scope="module")
def uninterrupted(tosses, tmp_path_factory):
    """Gauss-Newton, then Adam with batches in random order, in one go."""
    folder = tmp_path_factory.mktemp("whole")
    run(describe(folder, GAUSS_NEWTON, ADAM), "--data", tosses, "--output", folder / "out")
    return folder / "out"


@pytest.mark.usefixtures("undrawn")
# Saves of Gauss-Newton, which takes 9 iterations, and of Adam.
@pytest.mark.parametrize("saves", [4, *(pytest.param(saves, marks=pytest.mark.slow) for saves in (1, 12))])
def test_interrupted_runs_go_on_bit_for_bit(saves, tosses, uninterrupted, tmp_path, monkeypatch, capsys):
    """Interrupted while the n-th checkpoint is being written: the one before it holds, and the rest is as if nothing had happened."""
    config, output = describe(tmp_path, GAUSS_NEWTON, ADAM), tmp_path / "out"
    count, write = 0, checkpoints.save_checkpoint

    def interrupting(path, values):
        nonlocal count
        count += 1
        if count == saves:
            path.with_name(path.name + f".{count:016x}.partial").write_bytes(b"half of")
            raise KeyboardInterrupt
        write(path, values)

    with monkeypatch.context() as patch:
        patch.setattr(checkpoints, "save_checkpoint", interrupting)
        run(config, "--data", tosses, "--output", output, code=130)
    assert "interrupted" in capsys.readouterr().err
    assert not (output / "report.json").exists()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    run(config, "--data", tosses, "--output", output, "--resume")
    assert_same_run(output, uninterrupted, 2)


@pytest.mark.usefixtures("undrawn")
def test_free_starts_go_on_bit_for_bit(tosses, tmp_path, monkeypatch):
    """The first samples that a fit has moved belong to its state."""
    config = describe(tmp_path, {**GAUSS_NEWTON, "horizon": 10, "stride": 20, "free_start": True, "substeps": 2})
    run(config, "--data", tosses, "--output", tmp_path / "whole")
    write = checkpoints.save_checkpoint

    def interrupting(path, values):
        if (tmp_path / "out" / "stage_1" / "last.ckpt").exists():
            raise KeyboardInterrupt
        write(path, values)

    with monkeypatch.context() as patch:
        patch.setattr(checkpoints, "save_checkpoint", interrupting)
        run(config, "--data", tosses, "--output", tmp_path / "out", code=130)
    run(config, "--data", tosses, "--output", tmp_path / "out", "--resume")
    assert_same_run(tmp_path / "out", tmp_path / "whole", 1)
    states = [checkpoint(tmp_path / name, 1)["identification"]["state"] for name in ("out", "whole")]
    assert torch.equal(states[0]["start"], states[1]["start"]) and len(states[0]["history"]) > 3


def kill_when_there_is_a_checkpoint(stage, output, *arguments):
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1"}
    path, deadline = output / f"stage_{stage}" / "last.ckpt", time.monotonic() + 300
    process = subprocess.Popen(
        [sys.executable, "-m", "torchdojo", "fit", *map(str, arguments)],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    try:
        while not path.exists() and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.001)
    finally:
        process.kill()
    _, errors = process.communicate()
    assert process.returncode == -signal.SIGKILL, errors.decode()
    assert not checkpoint(output, stage)["identification"]["finished"]


@pytest.mark.slow
@pytest.mark.usefixtures("undrawn")
def test_killed_runs_go_on_bit_for_bit(tosses, uninterrupted, tmp_path):
    """kill -9 once the second stage has checkpoints, and is not done; real tosses, below, are killed in the first as well."""
    config, output = describe(tmp_path, GAUSS_NEWTON, ADAM), tmp_path / "out"
    kill_when_there_is_a_checkpoint(2, output, config, "--data", tosses, "--output", output)
    run(config, "--data", tosses, "--output", output, "--resume")
    assert_same_run(output, uninterrupted, 2)


@pytest.mark.usefixtures("undrawn")
def test_patience_keeps_the_parameters_with_the_smallest_validation_loss(tosses, tmp_path, capsys):
    stage = {**ADAM, "options": {"lr": 0.3}, "epochs": 20, "patience": 2}  # steps too long to settle
    config, output = describe(tmp_path, stage), tmp_path / "out"
    run(config, "--data", tosses, "--output", output)
    report = json.loads((output / "report.json").read_text())
    with (output / "stage_1" / "version_0" / "metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    losses = [float(row["validation_loss"]) for row in rows if row["validation_loss"]]
    best = int(np.argmin(losses))
    assert len(losses) == best + 3 < 20
    assert report["stages"][0]["reason"] == "smallest loss on validation throws, patience of 2 epochs"
    assert report["parameters"]["friction"] == float([row for row in rows if row["friction"]][best]["friction"])


def test_stages_that_end_on_a_bound_are_errors(tosses, tmp_path, capsys):
    config = describe(tmp_path, {**ADAM, "parameters": ["friction"], "method": "SGD", "options": {"lr": 1e9}})
    error = refused(capsys, config, "--data", tosses, "--output", tmp_path / "out")
    assert "stage 1 ended with friction = 0.0" in error and "shorten the steps of SGD" in error


@pytest.mark.usefixtures("undrawn")
def test_values_of_the_description_are_replaced(tosses, tmp_path):
    config, output = describe(tmp_path, ADAM), tmp_path / "out"
    changes = ("seed=3", "stages.0.epochs=1", "start.friction=0.2", "stages.0.options.lr=1e-9", "limit=6")
    run(config, "--data", tosses, "--output", output, *(word for change in changes for word in ("--set", change)))
    described = json.loads((output / "run.json").read_text())["description"]
    assert (described["seed"], described["limit"], described["stages"][0]["epochs"]) == (3, 6, 1)
    # 1e-9 is a number; Adam then moves the logarithm of the friction by some 1e-8.
    assert json.loads((output / "report.json").read_text())["parameters"]["friction"] == pytest.approx(0.2, rel=1e-6)


BALL = """
import torchdojo as td
from torchdojo.identification import DataError, Parameter, ParametricMechanism

WIDTH = 0.1


def check_recordings(recordings, label):
    if recordings.num_bodies != 1:
        raise DataError(f"{label}: got {recordings.num_bodies} bodies; allowed: one ball")


def ball(timestep, parameters=("friction",), *, start=None, kappa=1e-6, radius=0.05):
    contact = td.NonlinearContact("ball", point=(0, 0, 0), radius=radius, friction=0.5)
    mech = td.Mechanism({"ball": td.Body(1.0, (1e-3,) * 3)}, (), {"ground": contact}, timestep=timestep)
    mech.options = td.SolverOptions(kappa=kappa)
    known = {"friction": ("contacts.*.friction", 0.5), "radius": ("contacts.*.radius", radius)}
    given = {name: (start or {}).get(name, value) for name, (_, value) in known.items()}
    return ParametricMechanism(mech, [Parameter(name, given[name], known[name][0], lower=0.0) for name in parameters])
"""


@pytest.mark.usefixtures("undrawn")
def test_any_mechanism_can_be_fitted(tmp_path, capsys, monkeypatch):
    (tmp_path / "my_objects.py").write_text(BALL)
    monkeypatch.syspath_prepend(tmp_path)
    truth = {"friction": 0.2, "radius": 0.04}
    model = importlib.import_module("my_objects").ball(0.01, tuple(truth), start=truth)
    z = torch.zeros(4, 13)
    z[:, 2], z[:, 6] = 0.05, 1.0
    z[:, 3], z[:, 10] = torch.tensor([0.5, 1.0, 1.5, 2.0]), torch.tensor([3.0, 0.0, -3.0, 1.0])
    np.savez(tmp_path / "rolls.npz", **record_rollouts(model, z, 30))
    stage = {"parameters": list(truth), "horizon": 4, "stride": 2, "substeps": 1}
    config = describe(tmp_path, stage, object="my_objects:ball")
    run(config, "--data", tmp_path / "rolls.npz", "--output", tmp_path / "out", "--json")
    report = json.loads(capsys.readouterr().out.splitlines()[-1])
    for name, value in truth.items():
        assert report["parameters"][name] == pytest.approx(value, rel=1e-4)
    assert main(["replay", str(tmp_path / "rolls.npz"), "--parameters", str(tmp_path / "out"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["position_error_percent_of_width"] < 0.01
    two = {"position": np.zeros((6, 2, 3)), "quaternion": np.tile([1.0, 0, 0, 0], (6, 2, 1)), "offsets": np.array([0, 6]), "dt": 0.01}
    np.savez(tmp_path / "two.npz", **two)
    assert "got 2 bodies; allowed: one ball" in refused(capsys, config, "--data", tmp_path / "two.npz", "--output", tmp_path / "none")


def refused(capsys, *arguments):
    run(*arguments, code=2)
    error = capsys.readouterr().err
    assert len(error.strip().splitlines()) == 1
    return error


@pytest.mark.usefixtures("undrawn")
def test_folders_belong_to_one_run(tosses, tmp_path, capsys):
    config, output = describe(tmp_path, {**ADAM, "epochs": 1}), tmp_path / "out"
    arguments = (config, "--data", tosses, "--output", output)
    assert f"--resume: --output {output} holds no run" in refused(capsys, *arguments, "--resume")
    run(*arguments)
    assert "holds a run; give --resume to go on with it" in refused(capsys, *arguments)
    other = refused(capsys, *arguments, "--resume", "--set", "seed=1", "--set", "stages.0.horizon=3")
    assert "description.seed: 0 there, 1 here" in other and "description.stages.0.horizon: 2 there, 3 here" in other
    np.savez(tmp_path / "other.npz", **thrown_cubes(cube_model(1 / 148), 8, 50))
    assert "data_sha256" in refused(capsys, config, "--data", tmp_path / "other.npz", "--output", output, "--resume")
    assert "threads: 1 there, 2 here" in refused(capsys, *arguments, "--resume", "--threads", "2")
    (tmp_path / "moved.npz").write_bytes(tosses.read_bytes())  # the same data elsewhere are the same run
    before = json.loads((output / "report.json").read_text())
    run(config, "--data", tmp_path / "moved.npz", "--output", output, "--resume")  # finished: it is only evaluated again
    after = json.loads((output / "report.json").read_text())
    assert {**before, "data": "", "wall_time_s": 0} == {**after, "data": "", "wall_time_s": 0}
    for folder in (output, output / "stage_1"):  # of the command, and of a runner that is used by itself
        with locked(folder):
            assert f"{folder} is in use by process" in refused(capsys, *arguments, "--resume")
    last = output / "stage_1" / "last.ckpt"
    whole = last.read_bytes()
    for damaged in (whole[: len(whole) // 2], b"", b"no checkpoint", whole[:2000] + bytes(200) + whole[2200:]):
        last.write_bytes(damaged)
        assert f"{last} is damaged, or no checkpoint of a fit" in refused(capsys, *arguments, "--resume")
    (output / "run.json").write_text('{"half')
    assert "run.json is damaged" in refused(capsys, *arguments, "--resume")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["epochs=3"], "FitConfig has no epochs; it has: data, object"),
        (["object=ball"], "no object 'ball'; allowed: module:function, as in torchdojo.identification.objects.cube:cube_model"),
        (["object=nowhere:ball"], "object 'nowhere:ball': No module named 'nowhere'"),
        (["seed=x"], "Expected a <class 'int'>. Got value: x"),
        (["seed=-1"], "FitConfig.seed: got -1"),
        (["stages=[]"], "a fit needs at least one stage"),
        (["stages.0.window=3"], "Stage has no window; it has: parameters, horizon"),
        (["stages.0.robust.kindd=cauchy"], "RobustLoss has no kindd; it has: kind, threshold"),
        (["stages.0.robust.kind=round"], "RobustLoss: got kind='round'"),
        (["stages.0.scales.position=-1"], "Scales.position: got -1"),
        (["stages.0.parameters=[frction]"], "no parameter frction; there are: friction"),
        (["start.frction=0.2"], "no parameter frction"),
        (["nominal.frction=0.2"], "no parameter frction"),
        (["laws.restitutoin=0.2"], "restitutoin"),
        (["stages.0.horizon=0"], "Stage.horizon: got 0; allowed: a whole number of 1 or more"),
        (["stages.0.horizon=70"], "no trajectory has the 71 samples of a window"),
        (["stages.0.method=Adm"], "Stage.method: got 'Adm'; allowed: 'gauss_newton', 'Adafactor'"),
        (["stages.0.options.lrr=1"], "Stage.options of Adam: "),
        (["stages.0.epochs=null"], "Adam needs epochs"),
        (["stages.0.free_start=true"], "only gauss_newton has free starts"),
        (["stages.0.method=gauss_newton", "stages.0.options={}"], "epochs and batch_size belong to optimizers of torch.optim"),
        (["validation=0.01"], "a split of 8 throws with a validation part of 0.01"),
        (["seed"], "got 'seed'; allowed: KEY=VALUE"),
        (["stages.1.horizon=2"], "stages.1.horizon: no such place in the description"),
        (["kappa.x=2"], "kappa.x: no such place in the description"),
    ],
)
def test_descriptions_that_mean_nothing_are_refused_before_there_is_a_folder(changes, message, tosses, tmp_path, capsys):
    config, output = describe(tmp_path, ADAM, kappa=1e-6), tmp_path / "out"
    arguments = [word for change in changes for word in ("--set", change)]
    assert message in refused(capsys, config, "--data", tosses, "--output", output, *arguments)
    assert not output.exists()


def test_files_that_are_not_there_are_refused(tosses, tmp_path, capsys):
    config, output = describe(tmp_path, ADAM), tmp_path / "out"
    assert "no file 'none.yaml'" in refused(capsys, "none.yaml", "--data", tosses, "--output", output)
    assert "no file 'none.npz'" in refused(capsys, config, "--data", "none.npz", "--output", output)
    for text, message in (("a: [1", "is not YAML"), ("- 1", "holds list; allowed: a mapping")):
        (tmp_path / "bad.yaml").write_text(text)
        assert message in refused(capsys, tmp_path / "bad.yaml", "--data", tosses, "--output", output)
    (tmp_path / "parameters.json").write_text('{"object": "cube"}')
    assert main(["replay", str(tosses), "--parameters", str(tmp_path)]) == 2
    assert "does not hold the parameters of a fit, or is damaged" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("position", lambda x: x / 0.0524, "are positions in half-sides?"),
        ("position", lambda x: np.where(np.arange(len(x))[:, None] == 7, np.nan, x), "position is not finite in row 7"),
        ("quaternion", lambda q: 1.01 * q, "allowed: unit quaternions wxyz"),
        ("linear_velocity", lambda v: v[:-1], "linear_velocity is float64"),
        (None, lambda whole: whole[: len(whole) // 2], "or is damaged"),
    ],
)
def test_data_that_cannot_be_right_are_refused_before_there_is_a_folder(name, change, message, tosses, tmp_path, capsys):
    path = tmp_path / "bad.npz"
    if name is None:
        path.write_bytes(change(tosses.read_bytes()))
    else:
        with np.load(tosses) as arrays:
            np.savez(path, **{key: change(array) if key == name else array for key, array in arrays.items()})
    assert message in refused(capsys, describe(tmp_path, ADAM), "--data", path, "--output", tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("package", ["pytorch_lightning", "jsonargparse"])
def test_without_the_extra_it_is_named(package, tosses, tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.delitem(sys.modules, "torchdojo.identification.lightning")
    config = describe(tmp_path, ADAM)
    assert 'pip install "torchdojo[fit]"' in refused(capsys, config, "--data", tosses, "--output", tmp_path / "out")


def test_torchdojo_itself_imports_no_extra():
    code = "import sys, torchdojo\nprint([n for n in ('pytorch_lightning', 'jsonargparse', 'yaml', 'matplotlib') if n in sys.modules])"
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    assert subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True).stdout == "[]\n"


@pytest.mark.parametrize("name", ["identify_cube", "identify_elbow", "residual_cube"])
def test_shipped_descriptions_are_read(name):
    config = read_config(REPOSITORY / "configs" / f"{name}.yaml", data="somewhere.npz")
    kind = name.split("_")[1]
    assert config.object == f"torchdojo.identification.objects.{kind}:{kind}_model" and config.data == "somewhere.npz"
    assert all(isinstance(stage.gauss_newton_options.cost_tol, float) for stage in config.stages if stage.residual is None)


@pytest.mark.slow
@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize(("name", "limit", "stage"), [("cube", 40, 3), ("elbow", 10, 1)], ids=["cube", "elbow"])
def test_killed_fits_of_real_tosses_go_on_bit_for_bit(name, limit, stage, tmp_path):
    """The shipped descriptions, on the first throws, killed in the first stage or in the last, beside a run that goes through."""
    data = shared_path("data", f"contactnets_{name}", f"contactnets_{name}_train.npz")
    config = REPOSITORY / "configs" / f"identify_{name}.yaml"
    run(config, "--data", data, "--output", tmp_path / "whole", "--set", f"limit={limit}")
    output = tmp_path / "killed"
    kill_when_there_is_a_checkpoint(stage, output, config, "--data", data, "--output", output, "--set", f"limit={limit}")
    run(config, "--data", data, "--output", output, "--set", f"limit={limit}", "--resume")
    assert_same_run(output, tmp_path / "whole", len(read_config(config, data=str(data)).stages))
