"""Jacobians of misfits, and parameters found again in recordings made with the engine itself."""

import dataclasses

import pytest
import torch
from made_up import recorded

from conftest import shared_path
from torchdojo.identification import (
    GaussNewtonOptions,
    LeastSquares,
    Parameter,
    ParametricMechanism,
    RobustLoss,
    Scales,
    WindowDataset,
    WindowLoss,
    WindowResidual,
    cube_model,
    elbow_model,
    gauss_newton,
    multi_start,
    open_loop,
    read_recordings,
)

TRUTH = {"friction": 0.21, "half_side": 0.05, "corner_radius": 0.004, "restitution": 0.3, "second_moments": (4e-4, 4.8e-4, 3.5e-4)}
GUESS = {"friction": 0.3, "half_side": 0.053, "corner_radius": 0.002, "restitution": 0.15, "second_moments": (4.2e-4, 4.2e-4, 4.2e-4)}


def sharp(model: ParametricMechanism, backend: str = "native") -> ParametricMechanism:
    """Solved to rounding, as differences need it (and on the path at kappa 1e-4, where the step is smooth on their scale)."""
    options = model.mechanism.options
    model.mechanism.options = dataclasses.replace(options, residual_tol=1e-12, min_iterations=8, kappa=1e-4, backend=backend)
    return model


def relative_error(estimate: torch.Tensor, exact: torch.Tensor) -> float:
    return float((estimate - exact).abs().max() / exact.abs().max())


def cube_case(substeps: int, backend: str):
    truth = cube_model(1 / 148, ("friction",))
    data = recorded(truth, 2, 40)
    names = ("friction", "half_side", "corner_radius", "plane_height", "gravity", "second_moments", "mass")
    model = cube_model(data.dt / substeps, names, start={"corner_radius": 0.003})
    return (
        sharp(model, backend),
        data,
        WindowDataset(data, 6 if backend == "native" else 2, 5).stack()[slice(None, None, 2) if backend == "native" else [3]],
    )


def off_centre_case(substeps: int, backend: str):
    """Recorded points away from the center of mass."""
    start = {"corner_radius": 0.003, "centre_of_mass": (0.004, -0.003, 0.006)}
    data = recorded(cube_model(1 / 148, ("friction",), start=start), 2, 40)
    model = cube_model(data.dt / substeps, ("friction", "half_side", "centre_of_mass", "gravity"), start=start)
    return sharp(model, backend), data, WindowDataset(data, 6, 5).stack()[::2]


def elbow_case(substeps: int, backend: str):
    data = read_recordings(shared_path("data", "contactnets_elbow", "contactnets_elbow_train.npz")).first(1)
    names = ("friction", "parent_anchor", "child_anchor", "axis", "hinge_damping", "size")
    model = elbow_model(data.dt / substeps, names, start={"hinge_damping": 1e-3})
    return sharp(model, backend), data, WindowDataset(data, 4, 30).stack()[:3]


def bending_case(substeps: int, backend: str):
    data = read_recordings(shared_path("data", "contactnets_elbow", "contactnets_elbow_train.npz")).first(1)
    names = ("friction", "parent_anchor", "axis", "bending_stiffness", "bending_damping", "bending_point", "second_moments")
    model = elbow_model(data.dt / substeps, names, start={"bending_stiffness": 20.0, "bending_point": 0.04})
    return sharp(model, backend), data, WindowDataset(data, 4, 30).stack()[:3]


@pytest.mark.parametrize(
    ("case", "substeps", "backend"),
    [
        (cube_case, 1, "native"),
        (cube_case, 2, "native"),
        pytest.param(cube_case, 1, "reference", marks=pytest.mark.slow),
        (off_centre_case, 2, "native"),
        (elbow_case, 2, "native"),
        (bending_case, 2, "native"),
    ],
)
def test_jacobians_are_those_of_differences(case, substeps, backend):
    """Five-point differences with steps of 4e-6 in units of the parameters, meters and radians agree to 1e-6 of the largest entry."""
    model, data, windows = case(substeps, backend)
    residual = WindowResidual(model, data, Scales(velocity=0.1, angular_velocity=0.5, joint_velocity=0.5))
    raw, start, step = model.raw.detach(), windows[:, 0], 4e-6
    linear = residual.linearize(windows, raw, start)
    assert bool(linear.solved.all())
    torch.testing.assert_close(residual.evaluate(windows, raw, start)[0].detach(), linear.misfit, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(residual.linearize(windows, raw).jacobian, linear.jacobian[:, 1:], rtol=1e-7, atol=1e-7)

    # Poses alone have derivatives written by hand.
    poses = WindowResidual(model, data).linearize(windows, raw, start)
    kept = [i for i in range(linear.misfit.shape[-1]) if linear.misfit.shape[-1] != 12 or i % 12 in (0, 1, 2, 6, 7, 8)]
    if len(kept) == poses.misfit.shape[-1]:
        torch.testing.assert_close(poses.misfit, linear.misfit[..., kept])
        torch.testing.assert_close(poses.jacobian, linear.jacobian[..., kept, :])

    def differences(value) -> torch.Tensor:
        return (8 * (value(step) - value(-step)) - (value(2 * step) - value(-2 * step))) / (12 * step)

    with torch.no_grad():
        for i, unit in enumerate(torch.eye(len(raw), dtype=raw.dtype)):
            exact = differences(lambda e, unit=unit: residual.evaluate(windows, raw + e * unit, start)[0])
            assert float((linear.jacobian[..., i] - exact).abs().max()) <= 1e-6 * float(linear.jacobian.abs().max()), model.labels[i]
        correction = torch.randn(residual.start_size, dtype=raw.dtype, generator=torch.Generator().manual_seed(0))
        exact = differences(lambda e: residual.evaluate(windows, raw, residual.correct(start, e * correction.expand(len(start), -1)))[0])
        assert linear.by_start is not None
        assert relative_error(linear.by_start @ correction, exact) <= 1e-6


def problem_of(model, data, horizon=1, stride=1, robust=None, **options):
    return LeastSquares(WindowResidual(model, data), WindowDataset(data, horizon, stride).stack(), robust, **options)


@pytest.mark.slow
def test_everything_is_recovered_from_20_noise_free_tosses():
    names = tuple(TRUTH)
    data = recorded(cube_model(1 / 148, names, start=TRUTH), 20, 80)
    fit = gauss_newton(problem_of(cube_model(1 / 148, names, start=GUESS), data), options=GaussNewtonOptions(max_iterations=40))
    assert fit.converged
    for name, truth in TRUTH.items():
        assert relative_error(fit.values[name], torch.tensor(truth, dtype=torch.float64)) <= 1e-4, name
    assert all(fit.identifiability.identifiable.values())


def test_friction_and_geometry_are_recovered_from_few_tosses():
    truth = {"friction": 0.21, "half_side": 0.05, "corner_radius": 0.004}
    data = recorded(cube_model(1 / 148, tuple(truth), start=truth), 4, 60)
    model = cube_model(1 / 148, tuple(truth), start={name: GUESS[name] for name in truth})
    fits = multi_start(problem_of(model, data), torch.stack((model.raw.detach() + 0.2, model.raw.detach())))
    assert fits[0].cost <= fits[1].cost
    for name, value in truth.items():
        # exact data: what is left are the tolerances of the solver
        assert float((fits[0].values[name] - value).abs()) <= 1e-4 * value, name
        assert float(fits[0].std[name]) <= 1e-3 * value, name


def test_the_centre_of_mass_is_recovered():
    """Also where the recording is of another point, and the shape is that of corners."""
    truth = {"friction": 0.21, "centre_of_mass": (0.002, -0.003, 0.006)}
    corners = 0.05 * torch.tensor([(x, y, z) for x in (-1, 1) for y in (-1, 1) for z in (-1, 1)], dtype=torch.float64)
    for geometry in ({"half_side": 0.05}, {"corners": corners}):
        data = recorded(cube_model(1 / 148, tuple(truth), start={**truth, **geometry}), 4, 60)
        guess = cube_model(1 / 148, tuple(truth), start={"friction": 0.25, **geometry})
        solution = gauss_newton(problem_of(guess, data), options=GaussNewtonOptions(max_iterations=20))
        assert relative_error(solution.values["centre_of_mass"], torch.tensor(truth["centre_of_mass"], dtype=torch.float64)) <= 1e-4
        assert relative_error(solution.values["friction"], torch.tensor(truth["friction"])) <= 1e-4
        fitted = cube_model(1 / 148, tuple(truth), start={**geometry, **solution.values})
        assert open_loop(fitted, data).summary()["position_error_mm"] <= 0.01 < open_loop(guess, data).summary()["position_error_mm"]


def test_outliers_do_not_move_a_robust_fit():
    truth = {"friction": 0.21, "half_side": 0.05}
    data = recorded(cube_model(1 / 148, tuple(truth), start=truth), 4, 60)
    spoilt = data.samples.clone()
    spoilt[17::41, :3] += 0.01  # a jump of the tracker of 1 cm
    data = dataclasses.replace(data, samples=spoilt)
    errors = {}
    for kind in ("squared", "cauchy"):
        model = cube_model(1 / 148, tuple(truth), start={"friction": 0.25, "half_side": 0.051})
        fit = gauss_newton(problem_of(model, data, robust=RobustLoss(kind, 0.3)))
        errors[kind] = {name: float((fit.values[name] - value).abs()) / value for name, value in truth.items()}
    assert errors["cauchy"]["friction"] <= 0.01 < errors["squared"]["friction"]
    assert errors["cauchy"]["half_side"] <= 0.001


def test_mass_alone_is_reported_as_unseen():
    """Motion of a free body under gravity and hard contact depends on inertia over mass only."""
    data = recorded(cube_model(1 / 148, ("friction",), kappa=1e-9), 3, 50)
    model = cube_model(1 / 148, ("friction", "mass", "second_moments"), start={"friction": 0.25}, kappa=1e-9)
    fit = gauss_newton(problem_of(model, data))
    assert fit.identifiability.identifiable == {"friction": True, "mass": False} | {f"second_moments[{i}]": False for i in range(3)}
    unseen = fit.identifiability.directions[~fit.identifiability.seen]
    assert unseen.shape == (1, 5)
    # all four in the same proportion (their raw values are logarithms)
    torch.testing.assert_close(unseen[0].abs(), torch.tensor([0.0, 0.5, 0.5, 0.5, 0.5], dtype=torch.float64), atol=1e-3, rtol=0)
    assert "mass" in fit.identifiability.unseen(model.labels)[0]
    assert bool(torch.isinf(fit.std["mass"]))
    # not guessed: no step goes along that direction
    moved = fit.raw - model.raw.detach()
    assert abs(float(moved @ unseen[0])) <= 1e-6
    assert float((fit.values["friction"] - 0.18).abs()) <= 1e-4 * 0.18


def test_optimizers_of_torch_minimize_the_same_loss():
    data = recorded(cube_model(1 / 148, ("friction",)), 2, 60)
    model = cube_model(1 / 148, ("friction",), start={"friction": 0.3})
    windows, loss = WindowDataset(data, 1).stack(), WindowLoss(model, data)
    with torch.no_grad():
        problem = problem_of(model, data)
        assert float(loss(windows)) * len(windows) == pytest.approx(float(problem.cost(model.raw)[0]), rel=1e-9)
    optimizer = torch.optim.LBFGS([model.raw], max_iter=20, line_search_fn="strong_wolfe")

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        value = loss(windows)
        value.backward()
        return value

    optimizer.step(closure)
    assert float(model.values()["friction"].detach()) == pytest.approx(0.18, rel=1e-4)


@pytest.mark.parametrize("kind", ["squared", "huber", "cauchy"])
def test_weights_are_derivatives_of_the_loss(kind):
    robust = RobustLoss(kind, 1.5)
    squared = torch.tensor([0.0, 0.3, 2.0, 2.5, 40.0], dtype=torch.float64, requires_grad=True)
    torch.testing.assert_close(torch.autograd.grad(robust(squared).sum(), squared)[0], robust.weight(squared.detach()))


def test_bounds_hold():
    model = cube_model(0.01, ("friction", "restitution"), start={"restitution": 0.5})
    values = model.values(torch.tensor([-50.0, 50.0], dtype=torch.float64))
    assert 0 <= float(values["friction"]) < 1e-20
    assert float(values["restitution"]) == 1.0
    torch.testing.assert_close(model.encode({"friction": 0.4, "restitution": 0.25}).exp()[0], torch.tensor(0.4, dtype=torch.float64))
    assert float(model.baked(model.encode({"friction": 0.4})).contacts["corner3"].friction) == pytest.approx(0.4)


@pytest.mark.parametrize(
    ("parameters", "ties", "message"),
    [
        ([Parameter("a", 1.0, "contacts.*.frction")], {}, "no field of the mechanism matches 'contacts.*.frction'"),
        ([Parameter("a", 1.0)], {}, "parameters a set no field"),
        ([Parameter("a", 1.0, "timestep")], {}, "is no unknown"),
        ([Parameter("a", 1.0, "bodies.cube.mass"), Parameter("b", 1.0, "bodies.*.mass")], {}, "is set by two parameters"),
        ([Parameter("a", [1.0, 2.0], "bodies.cube.mass")], {}, "would be set to (2,)"),
        ([Parameter("a", -1.0, "bodies.cube.mass")], {}, "positive masses"),
    ],
)
def test_parameters_that_do_not_fit_are_refused(parameters, ties, message):
    with pytest.raises(ValueError) as error:
        ParametricMechanism(cube_model(0.01, ("friction",)).mechanism, parameters, ties)
    assert message in str(error.value)


@pytest.mark.parametrize("keywords", [{"lower": 2.0}, {"lower": 0.0, "upper": 1.0}, {"upper": 2.0}, {"scale": 0.0}])
def test_starts_outside_their_bounds_are_refused(keywords):
    with pytest.raises(ValueError, match="Parameter 'a'"):
        Parameter("a", 1.0, "gravity", **keywords)


@pytest.mark.slow
def test_friction_and_corners_of_all_real_tosses():
    """One step from every sample of 454 tosses, 25 unknowns: at most 15 iterations. `scripts/bench_fit.py` measures the seconds."""
    data = read_recordings(shared_path("data", "contactnets_cube", "contactnets_cube_train.npz"))
    model = cube_model(data.dt, ("friction", "corners"), start={"gravity": 9.61})
    problem = problem_of(model, data, robust=RobustLoss("cauchy", 1.0))
    fit = gauss_newton(problem, options=GaussNewtonOptions(cost_tol=1e-4, max_iterations=15))
    assert len(problem.windows) == 47112 and len(problem.model.raw) == 25
    assert fit.converged and fit.iterations <= 15
    assert all(after < before for before, after in zip(fit.history, fit.history[1:], strict=False))
    assert fit.values["corners"].abs().mean() == pytest.approx(0.0524, rel=0.05)
