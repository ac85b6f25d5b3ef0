"""Residual physics on the real cube: a network's wrench against the pure model, on throws held back."""

import pytest

from conftest import REPOSITORY, shared_path
from torchdojo.identification import fit, read_config
from torchdojo.identification.lightning import LightningRunner

KINDS = ("position_error_percent_of_width", "rotation_error_degrees")


@pytest.mark.slow
def test_wrench_of_a_network_on_the_real_cube(tmp_path):
    """The shipped description, from training throws only, of a cube whose center of mass is wrongly in the middle.

    On throws held back the error falls from 11.8 to 11.0 % of the width, and from 14.7 to 12.9 degrees. From windows of 16 steps the
    network learns forces that push the cube about later. It does not help a cube with a fitted center of mass.
    """
    data = shared_path("data", "contactnets_cube", "contactnets_cube_train.npz")
    report = fit(read_config(REPOSITORY / "configs" / "residual_cube.yaml", data=str(data)), run=LightningRunner(tmp_path))
    pure, fitted = (report.errors[name] for name in ("pure", "fitted"))
    losses = report.fits[-1].history
    assert losses[-1] <= 0.85 * losses[0]
    for part in ("training", "validation"):
        assert fitted[part]["flagged_steps"] == 0
        for kind, bound in zip(KINDS, (0.97, 0.93), strict=True):
            assert fitted[part][kind] <= bound * pure[part][kind]
