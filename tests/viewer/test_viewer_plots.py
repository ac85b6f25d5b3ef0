"""Figures: the curves of playbacks, gaps and failed steps, gradients along a rollout, errors."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from playbacks import ball, with_gap

import torchdojo as td
from torchdojo.viewer import Playback, plot, plot_gradients
from torchdojo.viewer.plots import gradient_sizes

pytest.importorskip("matplotlib")


@pytest.fixture(scope="module")
def cartpole() -> tuple[td.Mechanism, td.Trajectory]:
    mech = td.models.cartpole()
    with torch.no_grad():
        u = torch.linspace(-1.0, 1.0, 6 * mech.num_inputs).reshape(6, -1)
        return mech, mech.rollout(mech.initial_state(), u, keep_solutions=True)


def lines(figure: Any) -> dict[str, list[Any]]:
    """Curves by the label of their panel."""
    return {axes.get_ylabel(): [line for line in axes.get_lines() if len(line.get_xdata()) > 2] for axes in figure.axes}


def test_states_alone_are_drawn_as_animate_takes_them(cartpole: tuple[td.Mechanism, td.Trajectory]) -> None:
    """States, NumPy arrays, lists and minimal trajectories; curves of what states have, which impulses are not."""
    mech, path = cartpole
    whole, alone = lines(plot(path, mech)), lines(plot(path.z, mech))
    assert set(alone) < set(whole) and "energy [J]" in alone
    for name, curves in alone.items():
        for one, other in zip(curves, whole[name], strict=True):
            np.testing.assert_array_equal(one.get_xydata(), other.get_xydata())
    assert lines(plot(path.z.numpy(), mech)).keys() == alone.keys()
    several = lines(plot([path.z, path], mech))
    assert len(several["energy [J]"]) == 2 * len(whole["energy [J]"])
    minimal = mech.rollout_minimal(*mech.to_minimal(path.z[0]), path.u)
    assert "energy [J]" in lines(plot(minimal, mech))
    for shown in (path.z, path, [path.z]):
        with pytest.raises(ValueError, match="got a trajectory or states alone; give the mechanism"):
            plot(shown)


def test_trajectory_of_a_box_on_the_ground() -> None:
    mech = td.models.box()
    with torch.no_grad():
        path = mech.rollout(mech.initial_state(on="ground"), steps=5)
    figure = plot(path, mech, title="box")
    panels = lines(figure)
    assert {"energy [J]", "smallest distance [m]", "iterations"} <= panels.keys() and any("impulse [N s]" in name for name in panels)
    np.testing.assert_allclose(panels["iterations"][0].get_ydata()[1:], path.iterations)
    energy = mech.kinetic_energy(path.z) + mech.potential_energy(path.z)
    np.testing.assert_allclose(panels["energy [J]"][0].get_ydata(), energy, atol=1e-6)
    assert figure.axes[-1].get_xlabel() == "time [s]" and figure.get_suptitle() == "box"
    assert figure.canvas.manager is None  # not one of pyplot's


def test_several_playbacks_share_panels() -> None:
    nominal = replace(ball(4, "nominal"), curves={"energy [J]": np.arange(4.0), "slip [m/s]": np.ones(4)})
    fitted = replace(ball(6, "fitted"), curves={"energy [J]": np.arange(6.0)})
    figure = plot([nominal, fitted])
    panels = lines(figure)
    assert [len(panels[name]) for name in ("energy [J]", "slip [m/s]")] == [2, 1]
    assert [text.get_text() for text in figure.axes[0].get_legend().get_texts()] == ["nominal", "fitted"]


def test_gaps_and_failed_steps_are_marked() -> None:
    flagged = np.array([np.nan, 0.0, 1.0, 0.0])
    playback = replace(with_gap(ball(4), 1), curves={"energy [J]": np.array([1.0, np.nan, 1.0, 1.0]), "flagged": flagged})
    (axes,) = plot(playback).axes
    marks = {(line.get_xdata()[0].round(3), line.get_color()) for line in axes.get_lines() if len(line.get_xdata()) == 2}
    assert marks == {(0.1, "0.5"), (0.2, "tab:red")}


def test_gradient_sizes_are_those_of_the_jacobians(cartpole: tuple[td.Mechanism, td.Trajectory]) -> None:
    mech, path = cartpole
    sizes = gradient_sizes(mech, path)
    by_z = gradient_sizes(mech, path, wrt="z")
    for k in (0, 5):
        with_z, with_u = mech.jacobians(path.z[k], path.u[k])
        for expected, received in ((with_u, sizes), (with_z, by_z)):
            norms = torch.linalg.vector_norm(expected.reshape(mech.num_bodies, 4, -1), dim=-1)
            np.testing.assert_allclose(received[k], norms, rtol=1e-6, atol=1e-10)
    without_solutions = gradient_sizes(mech, path._replace(solution=path.solution[-1:]))
    np.testing.assert_allclose(without_solutions, sizes, rtol=1e-6, atol=1e-10)
    one = [name for name, place in mech.input_layout.items() if place.stop > place.start][:1]
    assert (gradient_sizes(mech, path, inputs=one) <= sizes + 1e-12).all()


def test_heat_map(cartpole: tuple[td.Mechanism, td.Trajectory]) -> None:
    mech, path = cartpole
    failed = path._replace(z=path.z.clone().index_fill(0, torch.tensor([2]), torch.nan))
    assert np.isnan(gradient_sizes(mech, failed)[2]).all() and np.isfinite(gradient_sizes(mech, failed)[3]).all()
    figure = plot_gradients(mech, failed)
    panels = [axes for axes in figure.axes if axes.get_title()]
    assert [axes.get_title() for axes in panels] == ["position", "velocity", "rotation", "angular velocity"]
    assert [text.get_text() for text in panels[0].get_yticklabels()] == list(mech.bodies)
    (picture,) = panels[1].collections
    assert picture.get_array().shape == (mech.num_bodies, 6) and picture.get_array().mask[:, 2].all()
    figure.canvas.draw()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"wrt": "v"}, "'u' or 'z'"),
        ({"inputs": ["door"]}, "door.*has inputs at"),
        ({"environment": 1}, "0 to 0"),
        ({"wrt": "z", "inputs": ["slider"]}, "goes with"),
    ],
)
def test_bad_input_of_gradients(arguments: dict[str, Any], message: str, cartpole: tuple[td.Mechanism, td.Trajectory]) -> None:
    with pytest.raises(ValueError, match=message):
        gradient_sizes(*cartpole, **arguments)


def test_bad_input(cartpole: tuple[td.Mechanism, td.Trajectory], monkeypatch: pytest.MonkeyPatch) -> None:
    mech, path = cartpole
    with pytest.raises(ValueError, match=r"plot\(trajectory, mechanism\)"):
        plot(path)
    with pytest.raises(ValueError, match="0 frames"):
        plot(ball(0))
    with pytest.raises(ValueError, match="no curves"):
        plot(ball(2))
    with pytest.raises(ValueError, match="not of controls"):
        gradient_sizes(mech, path._replace(u=torch.zeros(6, mech.num_inputs + 1)))
    for call in (lambda: plot(Playback(**vars(ball(2)) | {"curves": {"energy [J]": np.zeros(2)}})), lambda: plot_gradients(mech, path)):
        with monkeypatch.context() as patch:
            for name in ("matplotlib", "matplotlib.figure", "matplotlib.colors"):
                patch.setitem(sys.modules, name, None)
            with pytest.raises(ImportError, match=r"torchdojo\[plots\]"):
                call()
