"""States that start inside a surface: resolved by the first step, and reported."""

from __future__ import annotations

import argparse
import warnings

import pytest
import torch
from torch import Tensor

import torchdojo as td
from torchdojo import models
from torchdojo.commands.simulate import add_arguments, run
from torchdojo.engine import penetration
from torchdojo.engine.penetration import deepest_penetration


class Slope(td.NonlinearContact):
    """A surface of the user's own: z = 0.2 x, its signed distance by hand."""

    def signed_distance(self, point: Tensor) -> Tensor:
        return (point[..., 2] - 0.2 * point[..., 0]) / 1.04**0.5


def mixed() -> tuple[td.Mechanism, Tensor]:
    """Two bodies and contacts of three kinds; only `rim`, in the last of four environments, is inside, by 2 mm."""
    mech = td.Mechanism(
        {"a": td.Body(1.0, (0.1, 0.1, 0.1)), "b": td.Body(1.0, (0.1, 0.1, 0.1))},
        contacts={
            "tip": td.NonlinearContact("a", point=(0, 0, -0.1)),
            "toe": td.ImpactContact("b", radius=0.05),
            "rim": td.NonlinearContact("b", point=(0.1, 0, -0.1), radius=0.02),
            "own": Slope("a", radius=0.1),
        },
    )
    z = mech.to_maximal(torch.zeros(12)).expand(2, 2, 26).unflatten(-1, (2, 13)).clone()
    z[..., 0, 2], z[..., 1, 2] = 1.0, torch.tensor(((0.4, 0.3), (0.5, 0.118)))
    return mech, z.flatten(-2)


def test_the_deepest_contact_is_found() -> None:
    mech, z = mixed()
    deepest = deepest_penetration(mech.backends, mech.options, z)
    assert deepest is not None and deepest.contact == "rim" and deepest.environment == 3
    assert abs(deepest.depth - 0.002) <= 1e-12
    assert abs(deepest.depth + float(mech.distances(z).min())) <= 1e-15
    assert deepest_penetration(mech.backends, mech.options, z[0]) is None
    mech.options = td.SolverOptions(backend="reference")
    assert deepest_penetration(mech.backends, mech.options, z) == deepest


@pytest.mark.parametrize("backend", ["native", "reference"])
def test_of_shapes_that_overlap(backend: str) -> None:
    """A box 0.8 mm inside another one is found at the states given, although slots have the terms of a step from others."""
    box = td.Box((0.2, 0.2, 0.2))
    bodies = {name: td.Body(1.0, shape=box) for name in "ab"}
    contacts = {"ground": td.NonlinearContact("a", radius=0.1), **td.near_contacts("a", box, "b", box, slots=40)}
    mech = td.Mechanism(bodies, (), contacts, options=td.SolverOptions(backend=backend))
    apart = mech.to_maximal(torch.zeros(12)).expand(3, 26).unflatten(-1, (2, 13)).clone()
    apart[..., 2] = torch.tensor((0.2, 0.45))
    inside = apart.clone()
    inside[1, 1, 2], inside[2, 1, 2] = 0.2 + 0.1992, 0.2 + 0.1998
    mech.step(apart.flatten(-2))
    assert deepest_penetration(mech.backends, mech.options, apart.flatten(-2)) is None
    deepest = deepest_penetration(mech.backends, mech.options, inside.flatten(-2))
    assert deepest is not None and deepest.environment == 1 and mech.contacts[deepest.contact].other == "b"
    assert abs(deepest.depth - 8e-4) <= 1e-12


def test_of_environments_with_parameters_of_their_own() -> None:
    mech = models.sphere()
    contact = next(iter(mech.contacts.values()))
    contact.radius = torch.tensor((0.5, 0.53, 0.51))
    deepest = deepest_penetration(mech.backends, mech.options, mech.to_maximal(torch.tensor((0.0, 0.0, 0.5, 0.0, 0.0, 0.0))))
    assert deepest is not None and deepest.environment == 1 and abs(deepest.depth - 0.03) <= 1e-12


@pytest.mark.parametrize("backend", ["native", "reference"])
def test_infinite_numbers_are_left_to_the_step(backend: str) -> None:
    """An infinite position, or a radius that an optimizer made infinite, is no depth to report: the step flags it."""
    mech = models.sphere(radius=0.1)
    mech.options = td.SolverOptions(backend=backend)
    z = mech.initial_state(sphere=dict(position=(0, 0, 1))).repeat(2, 1)
    z[0, 2] = -torch.inf
    assert deepest_penetration(mech.backends, mech.options, z) is None
    assert mech.rollout(z, steps=2).status.ne(0).tolist() == [[True, True], [False, False]]
    with torch.no_grad():
        next(iter(mech.contacts.values())).radius.fill_(torch.inf)
    assert deepest_penetration(mech.backends, mech.options, z) is None


def test_a_rollout_warns_once() -> None:
    mech = models.box()
    z = mech.to_maximal(torch.tensor((0.0, 0.0, 0.24, 0.0, 0.0, 0.0)))
    with pytest.warns(UserWarning, match=r"contact '\w+' starts 10 mm inside its surface.* at about 1 m/s") as caught:
        path = mech.rollout(z, steps=3)
    assert caught[0].filename == __file__
    assert not path.status.any() and float(mech.distances(path.z[1:]).min()) > 0  # one step resolves it
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        mech.rollout(z, steps=3)
        mech.initial_state(box=dict(position=(0, 0, 0)))


@pytest.mark.parametrize("backend", ["native", "reference"])
def test_initial_state_warns_of_a_position(backend: str) -> None:
    mech = models.box()
    mech.options = td.SolverOptions(backend=backend)
    with pytest.warns(UserWarning, match=r"250 mm inside its surface; mech.initial_state\(pose='home', on='ground'\)") as caught:
        mech.initial_state()
    assert caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        mech.initial_state()  # in the ground, for the user to lift, who knows by now
        mech.initial_state(box=dict(velocity=(0, 0, 1)))
        mech.initial_state(box=dict(position=(0, 0, 0.25 - 0.9e-6)))  # rounding
    with pytest.warns(UserWarning, match="of environment 1 starts 50 mm inside") as caught:
        mech.initial_state((2,), box=dict(position=torch.tensor(((0, 0, 0.3), (0, 0, 0.2)))))
    assert caught[0].filename == __file__


def test_good_starts_do_not_warn() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for name in models.names():
            mech = models.make(name)
            path = mech.rollout(models.initial_state(name, mech), steps=60)
            mech.rollout(path.z[-1], steps=1)  # from where it landed


def test_steps_and_transforms_do_not_look(monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(*_: object) -> None:
        raise AssertionError("looked for penetration")

    mech = models.box()
    z = mech.to_maximal(torch.tensor((0.0, 0.0, 0.24, 0.0, 0.0, 0.0)))
    monkeypatch.setattr(penetration, "deepest_penetration", forbidden)
    mech.step(z)
    mech(z)
    torch.func.jacrev(lambda start: mech.rollout(start, steps=2).z)(z)
    with pytest.raises(AssertionError):
        mech.rollout(z, steps=2)


@pytest.mark.parametrize(("source", "height", "depth"), [("box", -0.05, 50.0), ("box", 0.1, 0.0), ("pendulum", 0.1, None)])
def test_simulate_reports_it(source: str, height: float, depth: float | None, capsys: pytest.CaptureFixture[str]) -> None:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    options = parser.parse_args([source, "--steps", "5"])
    options.height = height  # the command line refuses a negative one
    report = run(options)
    assert report["initial_penetration_mm"] == (None if depth is None else pytest.approx(depth, abs=1e-9))
    assert ("starts 50 mm inside the ground" in capsys.readouterr().out) == (depth == 50.0)


#: Depth d of a flat 0.5 m cube [m], and the height of its flight at h = 0.01 s [m]. It leaves with the speed d/h.
@pytest.mark.parametrize(("depth", "height"), [(0.001, 0.0), (0.01, 0.046), (0.05, 1.25)])
@pytest.mark.filterwarnings("ignore:contact")
def test_what_the_first_step_does(depth: float, height: float) -> None:
    mech = models.box(timestep=0.01)
    mech.options = td.SolverOptions(depenetration_speed=None)
    path = mech.rollout(mech.initial_state(box=dict(position=(0, 0, 0.25 - depth))), steps=100)
    assert not path.status.any() and (path.substeps == 1).all()
    assert abs(float(path.z[1, 5]) * 0.01 / depth - 1) <= 0.03  # and the gap that κ leaves
    assert abs(float(mech.distances(path.z).max(0)[0].min()) - height) <= 1e-3
