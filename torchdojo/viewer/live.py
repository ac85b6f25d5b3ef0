"""A running simulation, or a playback, in the browser: pause, reset, speed, and pushes by mouse."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from torchdojo.engine.rollout import Policy
from torchdojo.mechanism import Mechanism
from torchdojo.viewer.browser import Browser, open_server
from torchdojo.viewer.playback import Playback
from torchdojo.viewer.scene import Scene
from torchdojo.viewer.simulation import Replay, Simulation, Source
from torchdojo.viewer.stage import as_playbacks, grid_offsets

__all__ = ["LiveView", "live"]

Array = NDArray[np.float64]

FRAMES_PER_SECOND = 30.0
#: A drag of one meter pulls with this many times the push per second: 40 N for a push of 1 N s.
PULL_RATE = 40.0


class LiveView:
    """A source in the browser at `url`, which goes on in a thread of its own until `close`. It is a context manager, too."""

    def __init__(self, source: Source, scenes: Sequence[Scene], offsets: Sequence[Array], *, speed: float, port: int | None, host: str):
        self.source, self.paused, self.speed = source, False, speed
        self._server = server = open_server(port, host)
        self._offsets = offsets
        self._closed = threading.Event()
        pushed = self.hit if isinstance(source, Simulation) else None
        overlay = isinstance(source, Replay) and not any(offset.any() for offset in offsets)
        groups: list[Any] = source.groups if overlay and isinstance(source, Replay) else [None] * len(scenes)
        server.scene.set_up_direction("+z")
        server.scene.configure_environment_map(environment_intensity=0.25)
        server.scene.configure_default_lights(enabled=True, cast_shadow=True)
        self._browsers = [
            Browser(server, scene, offset, tints=group, name=str(i), on_hit=pushed)
            for i, (scene, offset, group) in enumerate(zip(scenes, offsets, groups, strict=True))
        ]
        self._controls(source.mass if isinstance(source, Simulation) else 0.0)
        points = np.concatenate([(x + offset[:, None]).reshape(-1, 3) for (x, _), offset in zip(source.poses(), offsets, strict=True)])
        points = points[np.isfinite(points).all(-1)] if np.isfinite(points).any() else np.zeros((1, 3))
        center = 0.5 * (points.min(0) + points.max(0))
        self._browsers[0].look(center, float(np.linalg.norm(points - center, axis=-1).max()) + self._browsers[0].radius)
        self.draw()
        self._thread = threading.Thread(target=self._run, name="torchdojo live view", daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://{self._server.get_host()}:{self._server.get_port()}"

    def pause(self) -> None:
        self._set_paused(True)

    def play(self) -> None:
        self._set_paused(False)

    def reset(self) -> None:
        """Back to the start."""
        self.source.reset()
        self.draw()

    def draw(self) -> None:
        """Show the source as it stands."""
        with self._server.atomic():
            for browser, (positions, orientations) in zip(self._browsers, self.source.poses(), strict=True):
                browser.show(positions, orientations)

    def wait(self) -> None:
        """Until the view is closed, or the user interrupts, which closes it."""
        try:
            while not self._closed.wait(0.2):
                pass
        except KeyboardInterrupt:
            self.close()

    def close(self) -> None:
        """Stop the simulation and the server."""
        if self._closed.is_set():
            return
        self._closed.set()
        if threading.current_thread() is not self._thread:
            self._thread.join()
        self._server.stop()

    def __enter__(self) -> LiveView:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _controls(self, mass: float) -> None:
        """The panel of the page; `controls` holds its buttons and sliders by name."""
        gui = self._server.gui
        self._status = gui.add_markdown("")
        pause, reset = gui.add_button("Pause"), gui.add_button("Reset")
        pause.on_click(lambda _: self._set_paused(not self.paused))
        reset.on_click(lambda _: self.reset())
        speed = gui.add_slider("speed", min=0.05, max=2.0, step=0.05, initial_value=float(np.clip(self.speed, 0.05, 2.0)))
        speed.on_update(lambda _: setattr(self, "speed", float(speed.value)))
        self.controls = {"pause": pause, "reset": reset, "speed": speed}
        if mass > 0.0:
            size = float(f"{0.5 * mass:.1g}")  # half a meter per second of the whole
            hint = "Click on a body to push it away from you; drag it to pull."
            self.controls["push"] = gui.add_slider("push [N s]", min=0.0, max=10 * size, step=size / 10, initial_value=size, hint=hint)
            gui.add_markdown(hint)

    def _set_paused(self, paused: bool) -> None:
        self.paused = paused
        self.controls["pause"].label = "Play" if paused else "Pause"

    def hit(self, environment: int, body: str, event: Any) -> None:
        """A click pushes a body along the line of sight; a drag pulls the point under the mouse."""
        simulation, offset = self.source, self._offsets[0][environment]
        assert isinstance(simulation, Simulation)
        phase = getattr(event, "phase", None)
        if phase is None:
            direction = np.asarray(event.ray_direction, dtype=np.float64)
            simulation.push(body, float(self.controls["push"].value) * direction / np.linalg.norm(direction), environment=environment)
        elif phase == "end":
            simulation.release()
        else:
            start, end = (np.asarray(p, dtype=np.float64) - offset for p in (event.start_position, event.end_position))
            simulation.hold(body, start, end, PULL_RATE * float(self.controls["push"].value), environment=environment)

    def _run(self) -> None:
        last, owed = time.perf_counter(), 0.0
        shown, simulated, since = "", 0.0, last
        while not self._closed.wait(max(0.0, last + 1.0 / FRAMES_PER_SECOND - time.perf_counter())):
            seconds = time.perf_counter()
            owed = 0.0 if self.paused else owed + self.speed * (seconds - last)
            last = seconds
            if not self.paused:
                before = self.source.time
                owed -= self.source.advance(owed)
                simulated += max(0.0, self.source.time - before)
                self.draw()
            if seconds - since > 0.5:
                text = f"**{self.source.time:.2f} s** at {simulated / (seconds - since):.2f} × real time, {self.source.note()}"
                simulated, since = 0.0, seconds
                if text != shown:
                    self._status.content = shown = text


def live(
    shown: Mechanism | Playback | Sequence[Playback],
    z: Tensor | None = None,
    u: Tensor | Policy | None = None,
    *,
    ctrl: Tensor | Policy | None = None,
    speed: float = 1.0,
    spacing: float | None = None,
    port: int | None = None,
    host: str = "127.0.0.1",
) -> LiveView:
    """Show a mechanism that moves, or playbacks, in the browser, at the `url` of the view that is returned; it runs until `close`.

    Args:
        shown: a mechanism, which is simulated in real time, or playbacks, which are repeated.
        z: the start, (..., 13 nb); a batch stands on a grid. Without it, the mechanism starts on the ground, at its pose "home" if it has
            one. u, ctrl: held, or a policy z -> u, as in `Mechanism.step`; one or a batch.
        speed: seconds of the motion per second. spacing: of the grid [m]; without it, playbacks lie on top of each other, and environments
            stand as far apart as they are wide.
        port: at which the browser finds the view. Without it 8080, or the next one that is free; 0 is any free one.
        host: "0.0.0.0" opens the view to other machines.

    Raises:
        OSError: the port is in use. ImportError: viser is missing. ValueError: states of another mechanism, 0 frames.
    """
    if not 0.0 < speed < float("inf"):
        raise ValueError(f"speed: got {speed}; allowed: a positive finite number")
    if isinstance(shown, Mechanism):
        simulation = Simulation(shown, z, u, ctrl)
        scene = Scene.of(shown)
        x = simulation.poses()[0][0]
        width = 2.0 * float(np.linalg.norm(x - x.mean(1, keepdims=True), axis=-1).max()) + 0.5
        offsets = grid_offsets(simulation.environments, width if spacing is None else spacing)
        return LiveView(simulation, [scene], [offsets], speed=speed, port=port, host=host)
    if z is not None or u is not None or ctrl is not None:
        raise ValueError("live: got playbacks with z, u or ctrl; a playback has its motion already")
    playbacks = as_playbacks(shown)
    replay = Replay(playbacks)
    places = grid_offsets(len(playbacks), spacing or 0.0)
    scenes = [playbacks[group[0]].scene for group in replay.groups]
    return LiveView(replay, scenes, [places[group] for group in replay.groups], speed=speed, port=port, host=host)
