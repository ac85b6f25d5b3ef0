"""Descriptions beyond stages of parameters: networks of corrections, several starts, folds of cross-validation."""

import json

import numpy as np
import pytest
import torch
import yaml
from made_up import recorded, thrown_cubes
from test_fit_command import TRUTH, assert_same_run, checkpoint, describe, refused, run

from torchdojo.commands.main import main
from torchdojo.identification import ResidualWrench, cross_validate, cube_model, fit, plots, read_config
from torchdojo.identification.fitting import DivergenceError, derived_seed, run_stage
from torchdojo.runs import lightning as checkpoints

ADAM = {"horizon": 4, "stride": 4, "substeps": 1, "method": "Adam", "options": {"lr": 1e-2}, "batch_size": 16, "epochs": 12}
NETWORK = {**ADAM, "residual": {"kind": "wrench", "hidden": [8]}}
FRICTION = {"parameters": ["friction"], "horizon": 8, "stride": 4, "substeps": 1, "options": {"max_iterations": 4}}


class Drag(ResidualWrench):
    """The truth: a cube in syrup, force −0.4 v [N·s/m]."""

    def wrench(self, z):
        return torch.cat((-0.4 * z[..., 3:6], torch.zeros_like(z[..., 3:6])), dim=-1)


@pytest.fixture(scope="module")
def syrup(tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "syrup.npz"
    np.savez(path, **thrown_cubes(Drag(cube_model(1 / 148, ("friction",))), 10, 40))
    return path


@pytest.fixture(scope="module")
def tosses(tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "tosses.npz"
    np.savez(path, **thrown_cubes(cube_model(1 / 148, tuple(TRUTH), start=TRUTH), 8, 40), half_side=0.05)
    return path


@pytest.fixture
def undrawn(monkeypatch):
    """Figures take a second."""
    monkeypatch.setattr(plots, "available", lambda: False)


def reported(output):
    return json.loads((output / "report.json").read_text())


def interrupt_at(save, monkeypatch, *arguments):
    """Run until the n-th checkpoint is being written."""
    count, write = 0, checkpoints.save_checkpoint

    def interrupting(path, values):
        nonlocal count
        count += 1
        if count == save:
            raise KeyboardInterrupt
        write(path, values)

    with monkeypatch.context() as patch:
        patch.setattr(checkpoints, "save_checkpoint", interrupting)
        run(*arguments, code=130)


# -- residual physics --------------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_network_behind_a_stage_of_parameters(syrup, tmp_path, capsys):
    """It learns the drag that the pure model lacks, on throws held back; replay has it, too."""
    config, output = describe(tmp_path, FRICTION, {**NETWORK, "epochs": 40}), tmp_path / "out"
    run(config, "--data", syrup, "--output", output)
    assert "means: nominal -> pure -> fitted" in capsys.readouterr().out
    report = reported(output)
    pure, fitted = (report[name]["validation"]["position_error_mm"] for name in ("pure", "fitted"))
    assert fitted <= 0.6 * pure
    assert report["stages"][1]["parameters"] == {} and report["parameters"].keys() == {"friction"}
    assert report["stages"][1]["history"][-1] <= 0.7 * report["stages"][1]["history"][0]
    assert all((output / f"{name}.png").exists() for name in ("open_loop_error", "geometry", "rollouts"))
    with np.load(output / "open_loop.npz") as arrays:
        assert {"nominal_z", "pure_z", "fitted_z"} <= set(arrays)

    assert main(["replay", str(syrup), "--parameters", str(output), "--json"]) == 0
    replayed = json.loads(capsys.readouterr().out.splitlines()[-1])
    parts = report["trajectories"]
    expected = sum(parts[part] * report["fitted"][part]["position_error_mm"] for part in parts) / sum(parts.values())
    assert replayed["position_error_mm"] == pytest.approx(expected, rel=1e-9)
    description = json.loads((output / "parameters.json").read_text())
    description["residual"]["weights"].popitem()
    (output / "parameters.json").write_text(json.dumps(description))
    assert main(["replay", str(syrup), "--parameters", str(output)]) == 2
    assert "Residual.weights: not those of a network with hidden layers [8]" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.usefixtures("undrawn")
def test_corrected_distances_from_a_description(tosses, tmp_path):
    """A cube that is 2.4 mm too large, which a network of distances makes up for."""
    stage = {**NETWORK, "residual": {"kind": "distance", "hidden": [8]}, "epochs": 60}
    run(describe(tmp_path, stage, start={"friction": 0.25}), "--data", tosses, "--output", tmp_path / "out")
    report = reported(tmp_path / "out")
    assert report["parameters"] == {}
    assert report["fitted"]["validation"]["position_error_mm"] <= 0.5 * report["pure"]["validation"]["position_error_mm"]


@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize("save", [2, pytest.param(13, marks=pytest.mark.slow)])
def test_networks_go_on_bit_for_bit(save, syrup, tmp_path, monkeypatch):
    """With patience: interrupted in the stage before, and late in that of the network. The weights are those of the best epoch."""
    stages = {**FRICTION, "options": {"max_iterations": 2}}, {**NETWORK, "patience": 2, "options": {"lr": 0.05}}
    config = describe(tmp_path, *stages, seed=1)
    for name in ("whole", "out"):
        arguments = config, "--data", syrup, "--output", tmp_path / name
        if name == "out":
            interrupt_at(save, monkeypatch, *arguments)
            arguments = (*arguments, "--resume")
        run(*arguments)
    assert_same_run(tmp_path / "out", tmp_path / "whole", 2)
    fits = [json.loads((tmp_path / name / "parameters.json").read_text()) for name in ("out", "whole")]
    assert fits[0] == fits[1]
    best = torch.load(tmp_path / "out" / "stage_2" / "best.ckpt", weights_only=True)["state_dict"]
    assert fits[0]["residual"]["weights"]["2.bias"] == best["loss.model.network.2.bias"].tolist() != [0.0] * 6


@pytest.mark.usefixtures("undrawn")
def test_networks_stay_as_they_are_in_stages_behind_them_or_are_trained_further(syrup, tmp_path):
    """Together with a parameter; frozen under Gauss-Newton and under an optimizer; then trained further."""
    joint, adam = {**NETWORK, "parameters": ["friction"], "epochs": 2}, {**ADAM, "parameters": ["friction"], "epochs": 2}
    frozen = {**FRICTION, "horizon": 2, "stride": 20, "options": {"max_iterations": 2}}
    run(describe(tmp_path, joint, frozen, adam, {**NETWORK, "epochs": 1}), "--data", syrup, "--output", tmp_path / "out")
    states = [checkpoint(tmp_path / "out", stage)["state_dict"] for stage in (1, 2, 3, 4)]
    weights = [state["loss.model.network.2.weight"] for state in states]
    assert torch.equal(weights[0], weights[1]) and torch.equal(weights[1], weights[2]) and not torch.equal(weights[2], weights[3])
    report = reported(tmp_path / "out")
    frictions = [stage["parameters"]["friction"]["value"] for stage in report["stages"][:3]]
    assert len({0.18, *frictions}) == 4 and report["parameters"]["friction"] == frictions[-1]
    assert np.isfinite(report["stages"][0]["parameters"]["friction"]["standard_error"])


# -- starts ------------------------------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("undrawn")
def test_the_best_of_several_starts_counts_bit_for_bit(tosses, tmp_path, monkeypatch, capsys):
    stage = {"parameters": list(TRUTH), "horizon": 8, "stride": 8, "substeps": 1, "starts": 3, "options": {"max_iterations": 3}}
    config = describe(tmp_path, stage, seed=2)
    run(config, "--data", tosses, "--output", tmp_path / "whole")
    assert "stage 1, costs on the training throws of its starts" in capsys.readouterr().out
    interrupt_at(5, monkeypatch, config, "--data", tosses, "--output", tmp_path / "out")
    run(config, "--data", tosses, "--output", tmp_path / "out", "--resume")
    reports = [reported(tmp_path / name) for name in ("whole", "out")]
    assert reports[0]["parameters"] == reports[1]["parameters"] and reports[0]["stages"][0]["starts"] == reports[1]["stages"][0]["starts"]
    starts = reports[0]["stages"][0]["starts"]
    costs = [start["cost"] for start in starts]
    assert len(set(costs)) == 3 and [start["chosen"] for start in starts].index(True) == int(np.argmin(costs))
    assert starts[int(np.argmin(costs))]["parameters"] == reports[0]["parameters"]
    run(describe(tmp_path, stage, seed=3, fold=[1, 4]), "--data", tosses, "--output", tmp_path / "other")
    assert reported(tmp_path / "other")["stages"][0]["starts"][1]["parameters"] != starts[1]["parameters"]


def test_starts_that_diverge_are_left_out(tosses, tmp_path):
    stage = {**FRICTION, "starts": 3}
    config = read_config({"data": str(tosses), "object": "cube", "validation": 0.25, "stages": [stage]})
    begun = []

    def diverging(number, stage, model, training, validation, start):
        begun.append(float(model.values()["friction"].detach()))
        if start in failing:
            raise DivergenceError(f"start {start} went astray")
        return run_stage(number, stage, model, training, validation, start)

    failing: tuple[int, ...] = (1, 3)
    report = fit(config, run=diverging)
    assert begun[0] == pytest.approx(0.18) and len(set(begun)) == 3
    seed = torch.Generator().manual_seed(derived_seed(0, 1, 2))
    assert begun[1] == pytest.approx(0.18 * float(torch.exp(0.2 * torch.randn(1, generator=seed, dtype=torch.float64))), rel=1e-12)
    first, second, third = report.starts[0]
    assert (first.fit, first.cost, third.reason) == (None, np.inf, "start 3 went astray")
    assert second.fit is report.fits[0] and second.reached == 6 * 8 * 8
    failing = (1, 2, 3)
    with pytest.raises(DivergenceError, match="start 1 went astray; start 2 went astray; start 3 went astray"):
        fit(config, run=diverging)


# -- throws held back --------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("patience", "parts"), [(None, (6, 2)), (1, (4, 2))])
def test_throws_held_back_decide_nothing(patience, parts, tosses):
    """With patience, the throws that say when to stop are some of those that are trained on."""
    config = read_config({"data": str(tosses), "object": "cube", "validation": 0.25, "stages": [{**FRICTION, "patience": patience}]})
    seen = []

    def watching(number, stage, model, training, validation, start):
        seen[:] = training.throw_id.tolist(), validation.throw_id.tolist()
        return run_stage(number, read_config({**vars(config), "stages": [FRICTION]}).stages[0], model, training, validation, start)

    held_back = fit(config, run=watching).recordings["validation"].throw_id.tolist()
    assert tuple(map(len, seen)) == parts and not set(seen[0]) & set(seen[1]) and not set(seen[0]) & set(held_back)
    assert (set(seen[1]) == set(held_back)) is (patience is None) and (not set(seen[1]) & set(held_back)) is (patience is not None)


def test_folds_hold_every_throw_back_once():
    data = recorded(cube_model(1 / 148, ("friction",)), 7, 4)
    folds = [data.fold((number, 3), seed=5) for number in (1, 2, 3)]
    assert sorted(throw for _, held in folds for throw in held.throw_id.tolist()) == list(range(7))
    assert [len(held) for _, held in folds] == [3, 2, 2] and all(len(a) + len(b) == 7 for a, b in folds)
    assert data.fold((1, 7), seed=5)[1].throw_id.tolist() == data.split(1 / 7, seed=5)[1].throw_id.tolist()


@pytest.mark.slow
@pytest.mark.usefixtures("undrawn")
def test_cross_validation(tosses, tmp_path, monkeypatch, capsys):
    config, output = describe(tmp_path, FRICTION), tmp_path / "out"
    arguments = config, "--data", tosses, "--output", output, "--folds", 4
    interrupt_at(8, monkeypatch, *arguments)
    assert (output / "fold_1" / "report.json").exists() and not (output / "report.json").exists()
    capsys.readouterr()
    run(*arguments, "--resume", "--json")
    text = capsys.readouterr().out.splitlines()
    report = json.loads(text[-1])
    assert report == reported(output) and report["folds"] == 4
    (heading,) = [line.split() for line in text if line.startswith("  open loop of the throws held back, means")]
    assert heading[-6:] == ["fold", "3", "fold", "4", "mean", "deviation"]
    singles = [reported(output / f"fold_{number}") for number in (1, 2, 3, 4)]
    for model in ("nominal", "fitted"):
        errors = report["errors"][model]["rotation_error_degrees"]
        assert errors["folds"] == [single[model]["validation"]["rotation_error_degrees"] for single in singles]
        assert (errors["mean"], errors["deviation"]) == pytest.approx((np.mean(errors["folds"]), np.std(errors["folds"], ddof=1)))
    assert report["parameters"]["friction"]["folds"] == [single["parameters"]["friction"] for single in singles]
    whole = cross_validate(read_config(yaml.safe_load(config.read_text()), data=str(tosses)), 4)
    assert whole.errors["fitted"]["position_error_mm"].tolist() == report["errors"]["fitted"]["position_error_mm"]["folds"]

    assert "holds a run; give --resume" in refused(capsys, *arguments)
    assert "--resume: the run in" in refused(capsys, config, "--data", tosses, "--output", output, "--resume", "--folds", 2)
    assert "--resume: the run in" in refused(capsys, config, "--data", tosses, "--output", output, "--resume")


# -- what is refused ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("stage", "values", "folds", "message"),
    [
        ({"method": "gauss_newton", "options": {}, "epochs": None, "batch_size": None}, {}, None, "gauss_newton does not train networks"),
        ({"residual": {"kidn": "wrench"}}, {}, None, "Residual has no kidn; it has: kind, hidden, units, weights"),
        ({"residual": {"kind": "torque"}}, {}, None, "Residual.kind: got 'torque'; allowed: 'wrench', 'distance'"),
        ({"residual": {"hidden": []}}, {}, None, "Residual.hidden: got []; allowed: a list of one or more widths"),
        ({"residual": {"hidden": [8, 0]}}, {}, None, "Residual.hidden: got [8, 0]"),
        ({"residual": {"hidden": 8}}, {}, None, "hidden"),
        ({"residual": {"units": {"froce": 1.0}}}, {}, None, "a wrench has no froce; it has: force, torque, speed, spin, height"),
        ({"residual": {"kind": "distance", "units": {"force": 1.0}}}, {}, None, "a distance has no force; it has: length"),
        ({"residual": {"units": {"force": -1.0}}}, {}, None, "Residual.units: got force=-1.0; allowed: positive numbers"),
        ({"residual": {"weights": {"0.bias": [1.0]}}}, {}, None, "Residual.weights: not those of a network"),
        ({"residual": None}, {}, None, "allowed: one or more names, or a residual to train"),
        ({"epochs": None}, {}, None, "Adam needs epochs"),
        ({"starts": 0}, {}, None, "Stage.starts: got 0; allowed: a whole number of 1 or more"),
        ({"starts": 2, "spread": 0.0}, {}, None, "Stage.spread: got 0.0; allowed: positive numbers"),
        ({"patience": 1}, {"validation": 0.8}, None, "a split of 2 throws with a validation part of 0.8"),
        ({}, {"fold": [3, 2]}, None, "FitConfig.fold: got [3, 2]; allowed: [k, K], the k-th of K parts"),
        ({}, {"fold": [1, 9]}, None, "9 folds of 8 throws; allowed: from 2 folds to as many as there are throws"),
        ({}, {"fold": [1, 1]}, None, "1 folds of 8 throws"),
        ({}, {}, 1, "folds: got 1; allowed: 2 or more"),
        ({}, {}, 9, "9 folds of 8 throws; allowed: from 2 folds to as many as there are throws"),
        ({}, {"fold": [1, 2]}, 2, "folds: got 2, of a description with fold: [1, 2]; leave one of the two out"),
    ],
)
def test_descriptions_that_mean_nothing_are_refused_before_there_is_a_folder(stage, values, folds, message, tosses, tmp_path, capsys):
    config, output = describe(tmp_path, {**NETWORK, **stage}, **values), tmp_path / "out"
    error = refused(capsys, config, "--data", tosses, "--output", output, *(() if folds is None else ("--folds", folds)))
    assert message in error
    assert "Union" not in error or message == "hidden"  # a type that is wrong
    assert not output.exists()


def test_stages_that_do_not_agree_on_a_network_are_refused(tosses, tmp_path, capsys):
    arguments = "--data", tosses, "--output", tmp_path / "out"
    other = {**NETWORK, "residual": {"hidden": [4]}}
    assert "stage 2 has the residual Residual(kind='wrench', hidden=[4]" in refused(capsys, describe(tmp_path, NETWORK, other), *arguments)
    again = describe(tmp_path, NETWORK, {**NETWORK, "starts": 2})
    assert "stage 2 trains a network further, and has 2 starts; allowed: 1" in refused(capsys, again, *arguments)


def test_data_that_are_not_there_are_refused_before_there_are_folds(tmp_path, capsys):
    config, output = describe(tmp_path, FRICTION), tmp_path / "out"
    assert "no file 'none.npz'" in refused(capsys, config, "--data", "none.npz", "--output", output, "--folds", 3)
    assert not output.exists()
    with pytest.raises(SystemExit):
        main(["fit", str(config), "--data", "none.npz", "--output", str(output), "--folds", "0"])
    assert "0 is not a whole number of 1 or more" in capsys.readouterr().err


def test_networks_need_the_loop_of_lightning(tosses):
    config = read_config({"data": str(tosses), "object": "cube", "validation": 0.25, "stages": [NETWORK]})
    with pytest.raises(ValueError, match="method 'Adam' and patience need the loop of pytorch-lightning: torchdojo fit, or"):
        fit(config)
