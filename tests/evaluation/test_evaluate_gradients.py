"""The experiments of `torchdojo evaluate gradients`, each as a test: every bound of every measurement."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from torchdojo.commands.main import main
from torchdojo.evaluation.experiment import Setting
from torchdojo.evaluation.gradients import EXPERIMENTS, SLOPE

BY_NAME = {experiment.name: experiment for experiment in EXPERIMENTS}


@pytest.mark.parametrize("name", BY_NAME)
def test_bounds_hold(name: str) -> None:
    with torch.no_grad():
        outcome = BY_NAME[name].run(Setting(quick=True))
    missed = [f"{m.key} = {m.value:.6g}, bound {m.bound}" for m in outcome.measurements if not m.passed]
    assert outcome.measurements and not missed, "; ".join(missed)
    curves = outcome.plots[0].lines
    # As in the figure, without force the point-wise gradient is zero, and ours is positive and grows with κ.
    at_rest = {label: float(line.y[0]) / SLOPE for label, line in curves.items()}
    ours = [at_rest[f"κ = {kappa:g}"] for kappa in (1e-1, 1e-2, 1e-3, 1e-4, 1e-5)]
    assert at_rest["point-wise (exact)"] < 1e-9 and ours == sorted(ours, reverse=True) and ours[0] > 0.3 and ours[-1] > 1e-4
    assert all(np.isfinite(line.y).all() for line in curves.values())


def test_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["evaluate", "gradients", "--quick", "--only", "impact", "--output", str(tmp_path), "--json"]) == 0
    report = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert report["topic"] == "gradients" and report["passed"] and report["experiments"]["impact"]["measured"]["exact_error"] < 1e-6
    assert (tmp_path / "impact.npz").is_file()
