"""`torchdojo play`: a run without training, whose policy stands still, in numbers, files and errors."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from torchdojo.commands import play
from torchdojo.commands.main import main
from torchdojo.learning.runs import RunConfig
from torchdojo.native import loader
from torchdojo.viewer import load_playbacks, video

pytestmark = pytest.mark.skipif(not loader.available(), reason="no compiler for the native kernel")


def still(obs: Tensor) -> Tensor:
    return torch.zeros(len(obs), 8)


@pytest.fixture
def ant(monkeypatch: pytest.MonkeyPatch) -> None:
    config = RunConfig("ant", env_options={"pool": 4, "noise": 3.0})
    monkeypatch.setattr(play, "load_run", lambda folder: SimpleNamespace(config=config, policy=lambda: still))


@pytest.mark.slow
def test_all_that_can_be_asked_for(ant: None, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mujoco")
    pytest.importorskip("gymnasium")
    seen: list[Any] = []
    monkeypatch.setattr(video, "write_video", lambda playback, path: seen.append(playback) or path)
    arguments = ["--episodes", "3", "--steps", "12", "--report", "--variants", "--transfer", "--video", str(tmp_path / "ant.mp4"), "--json"]
    assert main(["play", str(tmp_path), *arguments]) == 0
    text = capsys.readouterr().out
    report = json.loads(text.splitlines()[-1])
    assert (report["env"], report["algorithm"], report["episodes"], report["survival"]) == ("ant", "shac", 3, 1.0)
    assert report["gait"]["verdict"].startswith("no gait: it does not travel") and report["gait"]["saturated"] == 0.0
    assert list(report["variants"]) == ["h/2", "kappa 1e-6", "h/2, kappa 1e-6", "wider starts"]
    assert report["transfer"]["survival"] == 1.0 and report["transfer"]["gait"]["verdict"].startswith("no gait: it does not travel")
    assert json.loads((tmp_path / "play" / "report.json").read_text()) == report
    both = load_playbacks(tmp_path / "play" / "trajectory.npz")
    assert [playback.label.split(",")[0] for playback in both] == ["torchdojo: ant", "MuJoCo: ant"]
    for playback in both:
        assert playback.num_frames == 13 and playback.times[-1] == pytest.approx(0.24)
        assert playback.contact_forces is not None and playback.contact_forces[:, :, 2].sum(-1).max() > 5.0  # its weight is 9 N
        assert sum(name.startswith("torque of ") for name in playback.curves) == 4 and "speed along the heading [m/s]" in playback.curves
    assert (tmp_path / "play" / "trajectory.html").stat().st_size > 1e5 and len(seen) == 1
    assert "verdict" in text and "in two simulators" in text and "wider starts" in text


def test_a_report_and_a_page(ant: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["play", str(tmp_path), "--episodes", "2", "--steps", "4", "--report", "--html", str(tmp_path / "ant.html")]) == 0
    assert json.loads((tmp_path / "play" / "report.json").read_text())["gait"]["survival"] == 1.0
    assert (tmp_path / "ant.html").stat().st_size > 1e5 and "verdict" in capsys.readouterr().out


def test_what_is_not_asked_for_is_not_done(ant: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["play", "run", "--episodes", "1", "--steps", "2", "--output", str(tmp_path), "--no-html"]) == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["report.json", "trajectory.npz"]
    assert not {"gait", "variants", "transfer"} & set(json.loads((tmp_path / "report.json").read_text()))
    assert "verdict" not in capsys.readouterr().out


@pytest.fixture
def quadruped(monkeypatch: pytest.MonkeyPatch) -> None:
    config = RunConfig("quadruped", env_options={"pool": 8, "resample": 20})
    policy = lambda obs: torch.zeros(len(obs), 12)  # noqa: E731
    monkeypatch.setattr(play, "load_run", lambda folder: SimpleNamespace(config=config, policy=lambda: policy))


def test_mujoco_beside_under_conditions(quadruped: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A quadruped that stands on its drives is pushed, in both simulators from the same starts and with the same commands."""
    pytest.importorskip("mujoco")
    given = {"friction": "0.4", "mass": "1.1", "armature": "0.01", "joint-friction": "0.2", "kicks": "0.3", "delay": "0.02"}
    conditions = [part for name, value in given.items() for part in (f"--{name}", value, *(["1"] if name == "friction" else []))]
    assert main(["play", str(tmp_path), "--episodes", "3", "--steps", "60", "--transfer", *conditions, "--json"]) == 0
    text = capsys.readouterr().out
    report = json.loads(text.splitlines()[-1])
    assert report["conditions"] == {
        "friction": [0.4, 1.0], "mass": 1.1, "armature": 0.01, "joint_friction": 0.2, "kicks": 0.3, "delay": 0.02
    }  # fmt: skip
    assert report["survival"] == report["transfer"]["survival"] == 1.0
    for name in ("height", "forward_error", "turning_error"):
        assert report["transfer"]["gait"][name] == pytest.approx(report["gait"][name], abs=0.05)
    table = text[text.index("in two simulators") :].splitlines()
    assert table[1].split() == ["torchdojo", "MuJoCo"] and table[2].split() == ["episodes", "to", "the", "end", "100%", "100%"]
    assert "torchdojo's verdict" in text and "MuJoCo's verdict" in text and "friction 0.4 to 1, mass 1.1 times" in text
    assert len(load_playbacks(tmp_path / "play" / "trajectory.npz")) == 2
    with np.load(tmp_path / "play" / "trajectory.npz") as arrays:
        assert arrays["goals"].shape == (60, 3) and len({tuple(goal) for goal in arrays["goals"].tolist()}) > 1


def test_conditions_and_files_that_do_not_fit(quadruped: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = ["play", str(tmp_path), "--episodes", "1", "--steps", "2", "--no-html"]
    for arguments, message in (
        (["--file", "a1.xml"], "--file: got a1.xml without --transfer; allowed: with --transfer"),
        (["--transfer", "--file", "a1.xml"], "MJCF file 'a1.xml' does not exist"),
        (["--friction", "1", "2", "3"], "--friction: got 3 numbers; allowed: one, or two for a range, LOW HIGH"),
        (["--mass", "2", "1"], "mass: got (2.0, 1.0); allowed: a finite number of 0.001 or more, or a range of two"),
        (["--delay", "0.03"], "delay: got 0.03 s; allowed: whole numbers of control steps of 0.02 s"),
    ):
        assert main([*run, *arguments]) == 2
        assert message in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["play", str(tmp_path), "--mass", "0"])
    assert "argument --mass: 0 is not a positive finite number" in capsys.readouterr().err


def test_bad_input(ant: None, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert main(["play", str(tmp_path), "--goal", "1", "0"]) == 2
    assert "--goal: got 2 numbers; allowed for this environment: none, it has no goal" in capsys.readouterr().err
    monkeypatch.undo()
    assert main(["play", str(tmp_path)]) == 2
    assert "holds no run" in capsys.readouterr().err
