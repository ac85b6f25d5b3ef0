"""The live view without a browser: a running simulation, a batch, playbacks, pushes, pause, ports in use, closing."""

from __future__ import annotations

import socket
import threading
import time
import urllib.request
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from playbacks import ball, quadruped, with_gap

import torchdojo as td
from torchdojo.viewer.browser import Browser, multiply, rotate, surface
from torchdojo.viewer.live import LiveView, live
from torchdojo.viewer.simulation import Simulation

pytest.importorskip("viser")


def box() -> td.Mechanism:
    return td.Mechanism({"box": td.Body(mass=2.0, inertia=(0.1, 0.2, 0.3), shape=td.Box((0.3, 0.2, 0.1)))}, gravity=(0.0, 0.0, 0.0))


def wait_for(condition: Callable[[], bool]) -> None:
    """Up to 20 s, which a busy machine may need."""
    end = time.monotonic() + 20.0
    while not condition():
        assert time.monotonic() < end, "the view stands still"
        time.sleep(0.01)


def drawn(view: LiveView, body: int = 0) -> Any:
    """Positions (copies, 3) of the first part of a body, as the browser is told."""
    browser: Browser = view._browsers[0]
    return next(np.array(node.batched_positions) for node, index, _, _ in browser._moving if index == body)


@pytest.mark.parametrize("point", [None, (0.15, 0.1, 0.0)])
def test_push_adds_its_impulse(point: tuple[float, float, float] | None) -> None:
    """A free box in the orientation of a quarter turn: momentum from the impulse, angular momentum from its lever."""
    mech = box()
    turn = (np.sqrt(0.5), 0.0, 0.0, np.sqrt(0.5))
    simulation = Simulation(mech, mech.initial_state(box={"position": (1.0, 2.0, 3.0), "orientation": turn}))
    impulse = np.array((0.2, -0.4, 0.6))
    simulation.push("box", impulse, point=None if point is None else np.add((1.0, 2.0, 3.0), point))
    simulation.step()
    lever = np.cross(np.zeros(3) if point is None else point, impulse)
    np.testing.assert_allclose(mech.momentum(simulation.z)[0, :3], impulse, atol=1e-12)
    np.testing.assert_allclose(mech.momentum(simulation.z)[0, 3:], lever, rtol=1e-3, atol=1e-6)  # the step's half turn moves the lever
    before = simulation.z.clone()
    simulation.step()
    np.testing.assert_allclose(simulation.z[0, 3:6], before[0, 3:6], atol=1e-12)  # a push lasts one step


def test_hold_pulls_until_it_is_released() -> None:
    mech = box()
    simulation = Simulation(mech, mech.initial_state((2,)))
    simulation.hold("box", np.zeros(3), np.array((0.0, 1.0, 0.0)), 5.0, environment=1)
    for _ in range(10):
        simulation.step()
    assert float(simulation.z[1, 4]) > 0.2 and float(simulation.z[0, 3:6].abs().max()) == 0.0
    simulation.release()
    speed = float(simulation.z[1, 4])
    simulation.step()
    assert float(simulation.z[1, 4]) == pytest.approx(speed)


def test_view_runs_pauses_resets_and_closes() -> None:
    before = set(threading.enumerate())
    mech = td.models.quadruped()
    view = live(mech, port=0, speed=0.5)
    try:
        with urllib.request.urlopen(view.url) as page:
            assert b"<html" in page.read()
        wait_for(lambda: view.source.time > 0.05)
        view.pause()
        time.sleep(0.15)  # the step that was on its way
        held = view.source.time
        time.sleep(0.15)
        assert view.source.time == held and view.controls["pause"].label == "Play"
        view.reset()
        assert view.source.time == 0.0
        start = mech.initial_state(pose="home", on="ground")
        np.testing.assert_allclose(drawn(view), start[None, :3], atol=1e-9)
        view.controls["speed"].value = 2.0
        assert view.speed == 2.0
        view.controls["push"].value = 3.0
        view.hit(0, "trunk", SimpleNamespace(ray_direction=(0.0, 0.0, 2.0)))
        assert isinstance(view.source, Simulation)
        view.source.step()
        assert float(view.source.z[0, 5]) > 0.1
        view.hit(0, "trunk", SimpleNamespace(phase="update", start_position=(0.0, 0.0, 0.3), end_position=(1.0, 0.0, 0.3)))
        assert view.source.pull is not None
        view.hit(0, "trunk", SimpleNamespace(phase="end"))
        assert view.source.pull is None
        view.play()
        wait_for(lambda: view.source.time > 0.0)
    finally:
        view.close()
        view.close()
    view.wait()
    wait_for(lambda: not [thread for thread in set(threading.enumerate()) - before if not thread.daemon and "torchdojo" in thread.name])
    with pytest.raises(OSError):
        urllib.request.urlopen(view.url, timeout=2.0)


def test_batch_stands_on_a_grid_under_a_policy() -> None:
    mech = td.models.pendulum()
    z = mech.initial_state(**{next(iter(mech.joints)): {"q": torch.linspace(0.1, 1.0, 4)[:, None]}}, batch_shape=(4,))
    seen = []
    with live(mech, z, lambda state: seen.append(state.shape) or torch.zeros(4, mech.num_inputs), port=0, spacing=3.0) as view:
        wait_for(lambda: view.source.time > 0.0)
        places = drawn(view)
        assert places.shape == (4, 3) and np.ptp(places[:, 0]) > 2.0 and np.ptp(places[:, 1]) > 2.0
    assert set(seen) == {(4, 13 * mech.num_bodies)}


def test_playbacks_move_and_gaps_are_out_of_sight() -> None:
    with live([ball(30, "one"), with_gap(ball(30, "two"), 10)], port=0) as view:
        view.pause()
        time.sleep(0.1)
        for frame, there in ((5, 2), (10, 1)):
            view.source.time = 0.1 * frame
            view.draw()
            height = drawn(view)[:, 2]
            assert (height > 0.0).sum() == there
        np.testing.assert_allclose(drawn(view)[0], (1.0, 0.0, 0.5), atol=1e-6)
        assert "frame 10 of two" in view.source.note()
        view.source.advance(10.0)
        assert view.source.time == 0.0  # begins again


def test_port_in_use(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(OSError, match=rf"port {port} .*give another"):
            live(box(), port=port)
    with live(ball(2), port=0) as first, live(ball(2), port=0) as second:
        assert first.url != second.url


def test_next_free_port_is_said(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        monkeypatch.setattr("torchdojo.viewer.browser.DEFAULT_PORT", port)
        with live(ball(2)) as view:
            assert f"port {port} is in use" in capsys.readouterr().out and not view.url.endswith(str(port))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"shown": ball(0)}, "0 frames"),
        ({"shown": ball(2), "z": torch.zeros(13)}, "playback has its motion"),
        ({"shown": box(), "z": torch.zeros(26)}, r"\(26,\).*\(\.\.\., 13\)"),
        ({"shown": box(), "u": torch.zeros(0), "ctrl": torch.zeros(0)}, "both u and ctrl"),
        ({"shown": box(), "speed": 0.0}, "speed"),
    ],
)
def test_bad_input(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        live(**arguments, port=0)
    with pytest.raises(ValueError, match=r"'lid'.*box"):
        Simulation(box()).push("lid", np.zeros(3))
    with pytest.raises(ValueError, match="environment: got 3"):
        Simulation(box()).push("box", np.zeros(3), environment=3)


def test_missing_viser(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "viser", None)
    with pytest.raises(ImportError, match=r"torchdojo\[view\]"):
        live(ball(2))


def test_surfaces_and_turns() -> None:
    """Every vertex of a surface lies within the size of its part; quaternions turn as those of torchdojo."""
    for part in quadruped(1).scene.parts:
        if part.kind in ("box", "cylinder"):
            vertices, faces = surface(part, quadruped(1).scene)
            size = part.size if part.kind == "box" else (2 * part.size[0], 2 * part.size[0], part.size[1])
            np.testing.assert_allclose(np.ptp(vertices, axis=0), size, rtol=1e-2)
            assert faces.max() < len(vertices)
    generator = np.random.default_rng(0)
    q, p, x = (generator.normal(size=(5, n)) for n in (4, 4, 3))
    q /= np.linalg.norm(q, axis=-1, keepdims=True)
    from torchdojo import quaternion as quat

    np.testing.assert_allclose(rotate(q, x), quat.rotate(torch.tensor(q), torch.tensor(x)), atol=1e-12)
    np.testing.assert_allclose(multiply(q, p), quat.multiply(torch.tensor(q), torch.tensor(p)), atol=1e-12)
