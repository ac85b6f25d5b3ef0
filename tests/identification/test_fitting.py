"""Whole fits: noisy recordings, and the real ones. All slow but those of descriptions that are refused."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from made_up import thrown_cubes

from conftest import REPOSITORY, shared_path
from torchdojo import quaternion as quat
from torchdojo.identification import (
    FittedObject,
    GaussNewtonOptions,
    LeastSquares,
    Recordings,
    RobustLoss,
    Scales,
    ShootingStage,
    Stage,
    WindowDataset,
    WindowResidual,
    cube_model,
    fit,
    fit_starts,
    gauss_newton,
    multiple_shooting,
    read_config,
    read_recordings,
)
from torchdojo.identification.fitting import problem_of
from torchdojo.identification.recordings import recordings_of

CUBE, ELBOW = (REPOSITORY / "configs" / f"identify_{name}.yaml" for name in ("cube", "elbow"))

NOISE = 0.5e-3, math.radians(0.5)  # [m], [rad]


def noisy(arrays: dict[str, np.ndarray], seed: int) -> Recordings:
    """Recordings of poses with noise and without velocities."""
    generator = torch.Generator().manual_seed(seed)
    shift, turn = (s * torch.randn(len(arrays["position"]), 3, generator=generator, dtype=torch.float64) for s in NOISE)
    turned = quat.multiply(torch.from_numpy(arrays["quaternion"]), quat.exp(turn)).numpy()
    arrays = {**arrays, "position": arrays["position"] + shift.numpy(), "quaternion": turned}
    return recordings_of({name: array for name, array in arrays.items() if "velocity" not in name})


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("cube", {"corner_radius": 3e-4, "restitution": 1e-5}),
        ("cube", {"corner_radius": 1e-9, "restitution": 0.999}),
        ("cube", {"stiffness": 10.0, "damping": 1e-3}),
        ("elbow", {"corner_radius": 3e-4, "hinge_damping": [1e-7], "hinge_friction": [1e-6], "stiffness": 10.0, "damping": 1e-3}),
        ("elbow", {"restitution": 1e-5, "bending_stiffness": 1e-3, "bending_damping": 1e-7}),
    ],
)
def test_what_a_fit_has_found_comes_back(name, expected):
    """However small: a stage starts where the one before it ended, and a fitted object is what was expected."""
    fitted = FittedObject(object=name, parameters=expected, given={}, laws={}, substeps=4, kappa=1e-6, heading=False, width=None)
    values = fitted.model(1 / 148).values()
    assert values.keys() == expected.keys()
    for parameter, value in values.items():
        torch.testing.assert_close(value.detach(), torch.tensor(expected[parameter], dtype=torch.float64), rtol=1e-9, atol=0)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1])
def test_noisy_poses_of_cubes_that_bounce(seed):
    """As below, with an unknown restitution, by multiple shooting: everything within 3 %.

    Tosses and noise are both drawn with the seed. With corners of 8 mm, these windows have a Cramér-Rao bound of 0.8 % for the corner
    radius and 0.7 % for all else. With corners of 4 mm it would be 1.5 %, too much for random draws within 3 %.
    """
    truth = {"friction": 0.21, "half_side": 0.05, "corner_radius": 0.008, "restitution": 0.3, "second_moments": (4e-4, 4.8e-4, 3.5e-4)}
    guess = {"friction": 0.25, "half_side": 0.052, "corner_radius": 0.006, "restitution": 0.2, "second_moments": (4.2e-4,) * 3}
    data = noisy(thrown_cubes(cube_model(1 / 148, tuple(truth), start=truth), 20, 100, seed), 1000 + seed)
    residual = WindowResidual(cube_model(1 / 148, tuple(truth), start=guess), data, Scales(position=NOISE[0], rotation=NOISE[1]))
    stages = [ShootingStage(horizon=8, trim=0.3, iterations=12), *(ShootingStage(horizon=h, trim=0.3) for h in (16, 24, 48))]
    solution = multiple_shooting(residual, stages)
    for name, value in truth.items():
        value = torch.tensor(value, dtype=torch.float64)
        assert float(((solution.values[name] - value).abs() / value).max()) <= 0.03, name


@pytest.mark.slow
def test_noisy_poses_without_velocities():
    """20 tosses with 0.5 mm and 0.5 degrees of noise, velocities from their differences (0.1 m/s, 1.8 rad/s of noise): within 3 %.

    Windows from the first sample grow, so that each stage starts near enough to the answer of the one before it.
    """
    truth = {"friction": 0.21, "half_side": 0.05, "corner_radius": 0.004, "second_moments": (4e-4, 4.8e-4, 3.5e-4)}
    data = noisy(thrown_cubes(cube_model(1 / 148, tuple(truth), start=truth), 20, 100), 1)

    guess = {"friction": 0.25, "half_side": 0.052, "corner_radius": 0.003, "second_moments": (4.2e-4, 4.2e-4, 4.2e-4)}
    model = cube_model(1 / 148, tuple(truth), start=guess)
    residual, robust = WindowResidual(model, data, Scales(position=NOISE[0], rotation=NOISE[1])), RobustLoss("cauchy", 5.0)
    raw, start = model.raw.detach(), True
    for horizon in (8, 12, 16, 24, 34, 50, 75, 98):
        problem = LeastSquares(residual, WindowDataset(data, horizon, first_only=True).stack(), robust, free_start=start)
        start = problem.start = fit_starts(problem, raw)
        if horizon >= 16:  # before that they are in flight
            solution = gauss_newton(problem, raw, GaussNewtonOptions(max_iterations=15, cost_tol=1e-5, max_step=0.3, refit=4))
            raw, start = solution.raw, solution.start
    assert solution.converged
    for name, value in truth.items():
        value = torch.tensor(value, dtype=torch.float64)
        error = (solution.values[name] - value).abs()
        assert float((error / value).max()) <= 0.03, name
        # the uncertainty is that of the noise: an error of more than four deviations would be a bias
        assert bool((error <= 4 * solution.std[name]).all()), name


@pytest.mark.slow
def test_real_cube_on_throws_held_back():
    report = fit(read_config(CUBE, data=str(shared_path("data", "contactnets_cube", "contactnets_cube_train.npz"))))
    assert report.values["friction"] == pytest.approx(0.18, rel=0.05)
    assert report.values["half_side"] == pytest.approx(0.0524, rel=0.05)
    # The center of mass is 6 mm off the middle. Windows of 16 samples give 5.4 mm, whole throws 6.1 mm, and free flight 5.9 mm.
    for last in report.fits[1:]:
        torch.testing.assert_close(last.values["centre_of_mass"], torch.tensor([0.0, 0.0, 0.006], dtype=torch.float64), rtol=0, atol=1e-3)
    nominal, fitted = report.nominal["validation"], report.fitted["validation"]
    # measured: 9.96 % and 10.9 degrees (12 and 16.5 are what was asked for, 10 and 15 what was hoped for)
    assert fitted["flagged_steps"] == 0
    assert fitted["position_error_percent_of_width"] <= 10.5 < 12 < nominal["position_error_percent_of_width"]
    assert fitted["rotation_error_degrees"] <= 12 < nominal["rotation_error_degrees"]


@pytest.mark.slow
def test_free_flight_shows_the_centre_of_mass_of_the_real_cube():
    """Contacts play no part: windows of 12 samples whose lowest corner is 6 mm above the ground throughout, with free starts."""
    data = read_recordings(shared_path("data", "contactnets_cube", "contactnets_cube_train.npz"))
    windows = WindowDataset(data, 12, 6).stack()
    corners = 0.0525 * torch.tensor([(x, y, z) for x in (-1, 1) for y in (-1, 1) for z in (-1, 1)], dtype=torch.float64)
    down = quat.rotate(windows[..., None, 6:10].expand(*windows.shape[:2], 8, 4), corners.expand(*windows.shape[:2], 8, 3))[..., 2]
    windows = windows[(windows[..., 2] + down.amin(-1)).amin(-1) > 0.006]
    residual = WindowResidual(cube_model(data.dt, ("gravity", "centre_of_mass")), data)
    problem = LeastSquares(residual, windows, RobustLoss("cauchy", 1.0), free_start=True)
    problem.start = fit_starts(problem, iterations=6)
    solution = gauss_newton(problem, options=GaussNewtonOptions(max_iterations=40, cost_tol=1e-5))
    assert len(windows) > 400
    # measured: (-0.2, 0.3, 5.9) mm, with deviations by window of 0.2 to 0.3 mm
    torch.testing.assert_close(solution.values["centre_of_mass"], torch.tensor([0.0, 0.0, 0.006], dtype=torch.float64), rtol=0, atol=1e-3)
    assert float(solution.std_by_throw["centre_of_mass"].max()) <= 5e-4


@pytest.mark.slow
def test_real_hinge_is_where_it_is():
    """The shipped description, but for its last stage, which has 200 of 346 throws and 8 of 10 iterations here: half of the time."""
    config = read_config(ELBOW, data=str(shared_path("data", "contactnets_elbow", "contactnets_elbow_train.npz")))
    first, last = config.stages
    last = replace(last, throws=200, options={**last.options, "max_iterations": 8})
    report = fit(replace(config, stages=[first, last]))
    # Along the axis (y) only the difference of the anchors means something.
    parent, child = (np.array(report.values[name]) for name in ("parent_anchor", "child_anchor"))
    across = [0, 2]
    along = (parent[1] - child[1]) - 0.06
    assert np.linalg.norm([*(parent - (-0.035, 0.06, 0.0))[across], along]) <= 3e-3
    assert np.linalg.norm([*(child - (-0.035, 0.0, 0.0))[across], along]) <= 3e-3
    assert report.fits[0].identifiability.identifiable["parent_anchor[1]"] is False
    nominal, fitted = report.nominal["validation"], report.fitted["validation"]
    # On throws held back, the position error is 28.3 % less, the rotation error 22.3 % and the joint error 22.1 %. The whole description
    # gives 28 % (42.9 mm), 24 % (53.1 degrees) and 20.4 %. Both objects start as the flights say. Throws are chaotic: parameters changed
    # by a thousandth move the joint error by 0.5 %. Another machine's rounding may do so too, and the bounds leave room for it.
    assert fitted["flagged_steps"] == 0
    assert fitted["position_error_mm"] <= 0.77 * nominal["position_error_mm"]
    assert fitted["rotation_error_degrees"] <= 0.80 * nominal["rotation_error_degrees"]
    assert fitted["joint_error_degrees"] <= 0.83 * nominal["joint_error_degrees"]
    # The links are boxes of 0.1 x 0.05 x 0.05 m. Their second moments are nearer to solid boxes than to their URDF, which has equal ones
    # about all axes.
    x, y, z = report.values["second_moments"]
    assert x == pytest.approx(0.37 / 12 * 0.1**2, rel=0.2) and max(y, z) < 0.7 * x


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"object": "ball"}, "no object 'ball'; allowed: module:function, as in torchdojo.identification.objects.cube:cube_model"),
        ({"epochs": 3}, "FitConfig has no epochs; it has: data, object"),
        ({"stages": []}, "a fit needs at least one stage"),
        ({"stages": [{"parameters": ["friction"], "window": 3}]}, "Stage has no window; it has: parameters, horizon"),
        ({"stages": [{"parameters": ["friction"]}]}, "horizon"),
        ({"stages": [{"parameters": ["friction"], "horizon": 1, "throws": 0}]}, "Stage.throws: got 0"),
        ({"data": "nowhere.npz"}, "no file 'nowhere.npz'"),
    ],
)
def test_descriptions_that_mean_nothing_are_refused(changes, message):
    with pytest.raises(ValueError) as error:
        fit(read_config(CUBE, **{"data": "nowhere.npz", **changes}))
    assert message in str(error.value)


def test_a_stage_of_some_of_the_throws():
    model = cube_model(1 / 148)
    data = recordings_of(thrown_cubes(model, 5, 30))
    stage = Stage(parameters=["friction"], horizon=10, stride=5, substeps=1)
    few = problem_of(replace(stage, throws=2), model, data)
    assert torch.equal(few.windows, problem_of(stage, model, data.first(2)).windows)
    assert len(few.windows) < len(problem_of(stage, model, data).windows)


def test_a_short_fit_of_made_up_tosses(tmp_path):
    truth = {"friction": 0.25, "half_side": 0.05}
    arrays = thrown_cubes(cube_model(1 / 148, tuple(truth), start=truth), 6, 60)
    np.savez(tmp_path / "tosses.npz", **arrays, half_side=0.05)
    stage = {"parameters": list(truth), "horizon": 1, "stride": 1, "substeps": 1}
    lines: list[str] = []
    config = read_config({"data": str(tmp_path / "tosses.npz"), "object": "cube", "stages": [stage], "substeps": 1})
    report = fit(config, log=lines.append)
    for name, value in truth.items():
        assert report.values[name] == pytest.approx(value, rel=1e-4)
    assert lines and lines[0].startswith("friction, half_side: iteration 2, cost")
    # Chaos multiplies the errors that the solver's tolerance leaves.
    assert report.fitted["validation"]["position_error_mm"] < 0.01 < report.nominal["validation"]["position_error_mm"]
