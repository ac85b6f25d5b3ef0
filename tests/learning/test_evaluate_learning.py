"""`torchdojo evaluate learning`: its curves and tables from made-up runs, and the quick version, which trains."""

import importlib.util
import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch

from torchdojo.commands.main import main
from torchdojo.evaluation import learning as evaluation
from torchdojo.evaluation import mujoco_reference, plots
from torchdojo.evaluation.experiment import Line, Plot, Setting
from torchdojo.evaluation.learning import STUDIES, StudyRun, check, planned
from torchdojo.evaluation.learning_curves import Spread, band, crossing, read_curve, value_at
from torchdojo.learning.runs import METRICS, REPORT

pytest.importorskip("jsonargparse", reason="needs the extra torchdojo[learn]")

ANT = next(study for study in STUDIES if study.name == "ant")
CONFIGS = Path(__file__).parents[2] / "configs"


def array(*values):
    return np.array(values, dtype=float)


# -- curves ------------------------------------------------------------------------------------------------------------------------------


def test_a_curve_has_the_rows_with_an_evaluation(tmp_path):
    path = tmp_path / METRICS
    assert not len(read_curve(path).samples)
    path.write_text("samples,cpu_seconds,reward,eval_return,eval_speed\n10,1.0,0.1,,\n20,2.0,0.2,5,1.5\n30,3.0,0.3,,\n40,4.0,0.4,7,\n")
    curve = read_curve(path)
    assert curve.samples.tolist() == [20, 40] and curve.cpu_seconds.tolist() == [2, 4]
    assert curve.measures["return"].tolist() == [5, 7] and math.isnan(curve.measures["speed"][1])


def test_thresholds_and_values_lie_on_straight_lines():
    x, y = array(10, 20, 30, 40), array(0, 2, 1, 4)
    assert crossing(x, y, 1.0) == 15 and crossing(x, y, 2.0) == 20 and crossing(x, y, 3.0) == pytest.approx(30 + 20 / 3)
    assert crossing(x, y, -1.0) == 10 and crossing(x, y, 5.0) == math.inf and crossing(array(), array(), 0.0) == math.inf
    assert crossing(x, array(0, math.nan, 3, 4), 2.0) == 30
    assert value_at(x, y, 25.0) == 1.5 and math.isnan(value_at(x, y, 41.0)) and math.isnan(value_at(array(), array(), 1.0))


def test_quartiles_lie_where_all_seeds_have_evaluations():
    slopes = (1.0, 2.0, 3.0, 4.0, 5.0)
    line = band([(x, slope * x) for slope, x in zip(slopes, (array(10, 20, 40), *[array(5, 12, 30, 50)] * 4), strict=True)])
    assert line.x[0] == 10 and line.x[-1] == 40
    for curve, slope in ((line.low, 2.0), (line.y, 3.0), (line.high, 4.0)):
        assert np.allclose(curve, slope * line.x, rtol=1e-12)
    assert band([]) is None and band([(array(), array())]) is None
    apart = band([(array(1), array(2)), (array(5), array(4))])
    assert apart.x.tolist() == [5] and apart.y.tolist() == [3]


def test_median_and_worst():
    assert Spread.of([3.0, 1.0, 2.0]) == (2.0, 1.0) and Spread.of([3.0, 1.0, 2.0], large_is_bad=True) == (2.0, 3.0)
    assert Spread.of([1000.0, 2000.0, math.inf], large_is_bad=True).words(",.0f") == "2,000 (never)"
    assert Spread.of([]).words(".1f") == Spread.of([1.0, math.nan]).words(".1f") == "– (–)"


def test_a_band_is_drawn_and_saved(tmp_path):
    line = Line([0, 1], [1, 2], [0, 1], [2, 3])
    plot = Plot("return_samples", "title", "x", "y", {"SHAC, 3 seeds": line})
    arrays = evaluation.Outcome([], [plot]).all_arrays()
    assert arrays["return_samples/SHAC, 3 seeds/low"].tolist() == [0, 1]
    if plots.available():
        plots.save(plot, tmp_path / "band.png")
        assert (tmp_path / "band.png").stat().st_size > 1000


def test_a_step_of_mujocos_ant_takes_microseconds():
    mujoco = pytest.importorskip("mujoco")
    pytest.importorskip("gymnasium")
    assert 1.0 < mujoco_reference.ant_step_us(mujoco, steps=50, repeats=2) < 10_000
    assert mujoco_reference.ant_step_us(None) is None


# -- made-up runs ------------------------------------------------------------------------------------------------------------------------


@pytest.fixture
def folders(tmp_path, monkeypatch):
    """Descriptions of an ant's runs, and an output folder, for which nothing is drawn."""
    monkeypatch.setattr(plots, "available", lambda: False)
    (tmp_path / "configs").mkdir()
    for algorithm, samples in (("shac", 500_000), ("ppo", 1_000_000)):
        text = f"env: ant\nalgorithm: {algorithm}\nenv_options: {{control: torque}}\nsettings: {{samples: {samples}}}\n"
        (tmp_path / "configs" / f"{algorithm}_ant.yaml").write_text(text)
    return tmp_path / "configs", tmp_path / "out"


def plan(folders, seeds=3):
    configs, output = folders
    return planned(ANT, Setting(configs=configs, output=output, seeds=seeds), output)


def make_up(run, speed):
    """A run that is finished, and whose speed rose linearly."""
    total = run.settings.samples
    run.begin()
    for share in np.linspace(0, 1, 11):
        row = {"samples": int(share * total), "cpu_seconds": 40 * share, "eval_return": 1000 * speed * share, "eval_speed": speed * share}
        run.add_metrics({**row, "eval_survival": 1.0})
    last = {"return": 1000 * speed, "speed": speed, "survival": 1.0, "flagged": 0}
    hard = {**last, "speed": 0.75 * speed, "survival": 0.5}
    names = {"nominal": last, "h/2": last, "kappa 1e-6": last, "h/2, kappa 1e-6": hard}
    report = {"samples": total, "cpu_seconds": 40.0, "variants": names, "mujoco_ant_step_us": 20.0 + run.config.seed}
    (run.folder / REPORT).write_text(json.dumps(report))


def command(folders, *more):
    configs, output = folders
    given = ["--only", "ant", "--algorithms", "shac,ppo", "--configs", str(configs), "--output", str(output)]
    return main(["evaluate", "learning", *given, *more])


def test_finished_runs_are_read_and_judged(folders, capsys, monkeypatch):
    for algorithm, runs in plan(folders).items():
        for run, speed in zip(runs, (10.0, 8.0, 7.0) if algorithm == "shac" else (8.0, 4.0, 8.0), strict=True):
            make_up(run, speed)
    monkeypatch.setattr(StudyRun, "train", lambda *_, **__: pytest.fail("a finished run is trained"))
    assert command(folders, "--json") == 1
    out = capsys.readouterr().out
    report = json.loads(out.splitlines()[-1])["experiments"]["ant"]
    measured = report["measured"]
    assert measured["shac_speed_at_150000_median"] == pytest.approx(0.3 * 8.0) and report["at_least"]["shac_speed_at_150000_median"] == 3.0
    assert (measured["shac_speed_at_500000_median"], measured["shac_speed_at_500000_worst"]) == (8.0, 7.0)
    assert measured["shac_return_at_500000_median"] == 8000.0
    assert measured["shac_speed_kept_median"] == pytest.approx(0.75)
    assert report["failed"] == ["shac_speed_at_150000_median", "shac_speed_kept_median"]
    # PPO's median needs 750,000 samples to 6 m/s, SHAC's 375,000.
    assert measured["ppo_samples_per_shac_sample_to_6"] == pytest.approx(2.0)
    assert (measured["mujoco_ant_step_median_us"], measured["mujoco_ant_step_slowest_us"]) == (21.0, 22.0)
    training, elsewhere = report["tables"]
    assert training[1][:6] == ["SHAC", "3", "500,000", "40 (40)", "12,500 (12,500)", "187,500 (214,286)"]
    assert training[2][7] == "750,000 (never)" and training[2][-2] == "100% (100%)"
    assert elsewhere[4] == ["SHAC", "h/2, kappa 1e-6", "8,000 (7,000)", "6.00 (5.25)", "50% (50%)", "0"]
    assert "| SHAC | 3 | 500,000 | 40 (40) |" in out
    with np.load(folders[1] / "ant.npz") as archive:
        median = archive["speed_samples/SHAC, 3 seeds/y"]
        assert median[-1] == 8.0 and archive["return_cpu_seconds/PPO, 3 seeds/low"][-1] == 6000.0


def test_a_killed_run_goes_on_and_is_evaluated_once(folders, monkeypatch):
    """Seed 0 is finished, seed 1 was killed, seed 2 has a report of `torchdojo train`, without an evaluation."""
    runs = plan(folders)["shac"]
    make_up(runs[0], 8.0)
    for run in runs[1:]:
        make_up(run, 7.0)
        (run.folder / REPORT).unlink()
    (runs[2].folder / REPORT).write_text('{"samples": 500000}')
    trained = []

    def train(self, resume=False):
        assert torch.is_grad_enabled()
        trained.append((self.config.seed, resume))
        return {"samples": 500_000, "cpu_seconds": 30.0}

    monkeypatch.setattr(StudyRun, "train", train)
    monkeypatch.setattr(StudyRun, "policy", lambda self: None)
    monkeypatch.setattr(StudyRun, "measured", lambda *_: {"return": 7000.0, "speed": 7.0, "survival": 1.0, "flagged": 0})
    monkeypatch.setattr(evaluation, "variants", lambda make, episodes: {name: lambda: None for name in ("nominal", *evaluation.HARDER)})
    monkeypatch.setattr(evaluation, "ant_step_us", lambda mujoco: None)
    for _ in range(2):
        command(folders, "--algorithms", "shac")
        assert trained == [(1, True), (2, True)]
    report = json.loads((runs[1].folder / REPORT).read_text())
    assert report["variants"]["nominal"]["speed"] == 7.0 and report["mujoco_ant_step_us"] is None
    assert report["env"] == "ant" and report["seed"] == 1


def test_ppo_that_never_gets_there_gives_a_lower_bound(folders):
    for algorithm, runs in plan(folders, seeds=1).items():
        make_up(runs[0], 10.0 if algorithm == "shac" else 2.0)
    configs, output = folders
    outcome = evaluation.EXPERIMENTS[1].run(Setting(configs=configs, output=output, seeds=1, algorithms=("shac", "ppo", "ars")))
    ratio = {m.key: m for m in outcome.measurements}["ppo_samples_per_shac_sample_to_6"]
    assert ratio.value == pytest.approx(1_000_000 / 300_000) and "at least" in ratio.label and ratio.at_least == 1.5
    assert any("no description of ars_ant" in note for note in outcome.notes)


def test_shac_that_never_gets_there_misses_the_bounds_alone(folders):
    for runs in plan(folders, seeds=1).values():
        make_up(runs[0], -0.1)
    configs, output = folders
    outcome = evaluation.EXPERIMENTS[1].run(Setting(configs=configs, output=output, seeds=1, algorithms=("shac", "ppo")))
    rows = {m.key: m for m in outcome.measurements}
    assert rows["ppo_samples_per_shac_sample_to_3"].value == 0.0 and rows["shac_speed_kept_worst"].value == 0.0
    assert all((m.at_least is None) == m.passed for m in outcome.measurements)


def test_bad_input_is_told_before_anything_is_trained(folders, capsys, tmp_path):
    configs = folders[0]
    make_up(plan(folders)["shac"][0], 8.0)
    text = (configs / "shac_ant.yaml").read_text()
    for arguments, message in (
        (["--configs", str(tmp_path / "none")], "lie in configs/ of the repository, which the package does not have"),
        (["--algorithms", "shac,sac"], "--algorithms: got 'sac'; there are: shac, ppo, ars, ags"),
        (["--envs", "ant,unicycle"], "no experiment 'unicycle' in 'learning'; there are: cartpole, ant"),
    ):
        assert command(folders, *arguments) == 2
        assert message in capsys.readouterr().err
    (configs / "shac_ant.yaml").write_text(text.replace("500000", "300000"))
    assert command(folders) == 2 and "describes another run" in capsys.readouterr().err
    assert main(["evaluate", "physics", "--seeds", "2"]) == 2
    assert "--seeds: of the topic learning alone" in capsys.readouterr().err


def test_descriptions_of_this_repository_fit():
    """Every study has a description for SHAC, and goals with measures that it has."""
    check(Setting(configs=CONFIGS), [study.name for study in STUDIES])
    for study in STUDIES:
        assert "shac" in planned(study, Setting(configs=CONFIGS), Path())
        assert {goal.measure for goal in study.goals} <= set(study.measures)


@pytest.mark.slow
def test_the_quick_version_trains_once(tmp_path, capsys, monkeypatch):
    pytest.importorskip("pytorch_lightning")
    algorithms = "shac,ppo" if importlib.util.find_spec("rsl_rl") else "shac"
    arguments = [
        "evaluate",
        "learning",
        "--quick",
        "--algorithms",
        algorithms,
        "--configs",
        str(CONFIGS),
        "--output",
        str(tmp_path),
        "--json",
    ]
    assert main(arguments) == 0
    report = json.loads(capsys.readouterr().out.splitlines()[-1])["experiments"]["cartpole"]
    names = [name.upper() for name in algorithms.split(",")]
    assert [row[:3] for row in report["tables"][0][1:]] == [[name, "2", "4,096"] for name in names]
    curve = read_curve(tmp_path / "runs" / "shac_cartpole" / "seed_1" / METRICS)
    assert len(curve.samples) >= 2 and 0 <= curve.measures["upright"].min() <= curve.measures["upright"].max() <= 1
    monkeypatch.setattr(StudyRun, "train", lambda *_, **__: pytest.fail("a finished run is trained"))
    assert main(arguments) == 0


def test_a_damaged_report_names_its_file(folders):
    for runs in plan(folders).values():
        for run in runs:
            make_up(run, 8.0)
    path = plan(folders)["shac"][0].folder / REPORT
    path.write_text(path.read_text()[:100])
    with pytest.raises(ValueError, match=r"report.json is damaged \(.*\); delete it, and the run is evaluated again"):
        command(folders)
