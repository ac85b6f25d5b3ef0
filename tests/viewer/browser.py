"""A headless Chromium without a network for the tests of pages, driven by playwright."""

from __future__ import annotations

import io
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

NAMES = ("chromium", "chromium-browser", "google-chrome")
# WebGL on the CPU; nothing that a browser does on its own over the network.
FLAGS = [
    *("--no-sandbox", "--use-angle=swiftshader", "--enable-unsafe-swiftshader", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
]
SIZE = {"width": 480, "height": 420}
#: Only the picture: no text over it.
PLAIN = "#labels, #legend, #note, #plots { display: none !important }"


@contextmanager
def chromium() -> Iterator[Any]:
    """A browser, or a skip with the reason; with TORCHDOJO_REQUIRE_BROWSER=1 (.ci/run sets it) a failure instead."""
    path = next(filter(None, map(shutil.which, NAMES)), None)
    if path is None:
        _missing(f"no browser: none of {', '.join(NAMES)} is on the PATH")
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        _missing("no driver of the browser: pip install playwright")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=FLAGS)  # in a new, empty profile
        yield browser
        browser.close()


def _missing(reason: str) -> None:
    if os.environ.get("TORCHDOJO_REQUIRE_BROWSER") == "1":
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)


@contextmanager
def opened(browser: Any, path: Path, **size: int) -> Iterator[Any]:
    """The page of a file, paused at its start. It must ask for nothing but itself, and write no error to the console."""
    context = browser.new_context(viewport=SIZE | size, offline=True)
    page, errors, requests = context.new_page(), [], []
    page.on("console", lambda message: errors.append(message.text) if message.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("request", lambda request: requests.append(request.url))
    page.goto(path.as_uri())
    page.wait_for_function("document.getElementById('clock').textContent !== ''", timeout=60_000)
    page.evaluate("torchdojo.play(false); torchdojo.seek(0)")
    _settle(page)
    yield page
    context.close()
    assert errors == [] and requests == [path.as_uri()]


def picture(page: Any, time: float | None = None) -> np.ndarray:
    """The picture at a time: (height, width, 3), 0 to 255."""
    if time is not None:
        page.evaluate("t => torchdojo.seek(t)", time)
    _settle(page)
    return np.asarray(Image.open(io.BytesIO(page.locator("#picture").screenshot())).convert("RGB")).astype(int)


def _settle(page: Any) -> None:
    """Wait until the page has drawn what was asked for."""
    page.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")


def projected(view: dict[str, Any], points: np.ndarray) -> np.ndarray:
    """Pixels (n, 2), x right and y down, of points (n, 3) in world axes, for the camera that `torchdojo.view()` tells."""
    eye, up = np.array(view["eye"]), np.array([0.0, 0.0, 1.0])
    forward = np.array(view["target"]) - eye
    forward /= np.linalg.norm(forward)
    right = np.cross(forward, up)
    right /= np.linalg.norm(right)
    x, y, depth = ((points - eye) @ axis for axis in (right, np.cross(right, forward), forward))
    scale = view["height"] / 2 / np.tan(np.radians(view["fov"]) / 2)
    return np.stack((view["width"] / 2 + scale * x / depth, view["height"] / 2 - scale * y / depth), axis=-1)


def bounds(pixels: np.ndarray) -> np.ndarray:
    """Left, top, right, bottom of points (n, 2)."""
    return np.concatenate((pixels.min(axis=0), pixels.max(axis=0)))


def drawn(image: np.ndarray) -> np.ndarray:
    """Points (n, 2) of pixels, at their centers, that differ from the sky in the corner."""
    rows, columns = np.nonzero(np.abs(image - image[2, 2]).max(axis=-1) > 12)
    return np.stack((columns, rows), axis=-1) + 0.5
