"""Parity with the original engine from the few records that live in the repository; tests/dynamics/test_golden.py has the rest."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

import torchdojo as td
from conftest import REPOSITORY
from golden import load_case

# The laws of several rotations that the original has run on the reference, which says so.
pytestmark = pytest.mark.filterwarnings("ignore:SolverOptions.*the reference takes the steps")

TABLE = json.loads((REPOSITORY / "tests" / "data" / "golden_small.json").read_text())


def test_source_is_stated() -> None:
    assert all(word in TABLE["source"] for word in ("Dojo.jl", "be7b5183", "MIT"))
    assert (REPOSITORY / "tests" / "data" / "golden_small.json").stat().st_size < 300_000


@pytest.mark.parametrize("name", TABLE["cases"])
def test_one_step(name: str, tmp_path: Path) -> None:
    entry = TABLE["cases"][name]
    (tmp_path / f"{name}.json").write_text(json.dumps(entry["description"]))
    np.savez(tmp_path / f"{name}.npz", **{key: np.array(entry[key]) for key in ("z", "u", "z_next")})
    case = load_case(tmp_path, name)
    case.mechanism.options = td.SolverOptions(kappa=entry["kappa"] or 1e-6, residual_tol=1e-11, central_path_tol=1e-8)
    out = case.mechanism.step(case.arrays["z"], case.arrays["u"] @ case.input_map.T)
    assert not out.status.any()
    # Issue 2 asks for 1e-8 without contact and 1e-6 with contact.
    tolerance = 1e-8 if entry["kappa"] is None else 1e-6
    assert float((out.z - case.arrays["z_next"]).abs().max()) <= tolerance
    assert torch.equal(case.mechanism(case.arrays["z"], case.arrays["u"] @ case.input_map.T), out.z)
