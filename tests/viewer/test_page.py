"""The offline page: what the file holds, what it costs, and what a browser without a network shows of it."""

import base64
import json
import re
import time
import zlib
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from browser import PLAIN, bounds, chromium, drawn, opened, picture, projected

import torchdojo as td
from torchdojo import quaternion as quat
from torchdojo.viewer import ContactPoint, JointFrame, Part, Playback, Scene, Triangles, page, page_html, write_page

RED = (0.9, 0.05, 0.05, 1.0)
CORNERS = np.array([[x, y, z] for x in (-0.5, 0.5) for y in (-0.5, 0.5) for z in (-0.5, 0.5)])
TURN = np.linspace(0, 2 * np.pi, 40, endpoint=False)
RIM = np.stack((np.cos(TURN), np.sin(TURN), 0 * TURN), axis=-1)


def walk(bodies=1, frames=20, contacts=0, step=0.01, **fields):
    """Boxes that turn and move along x, with contacts that push now and then."""
    names = tuple(f"b{i}" for i in range(bodies))
    scene = Scene(
        names,
        (*(Part("box", (0.1, 0.08, 0.06), name) for name in names), Part("plane", (), None, role="ground")),
        tuple(ContactPoint(f"c{i}", names[0]) for i in range(contacts)),
        (JointFrame("j", names[0], (0.05, 0.0, 0.0), (1.0, 0.0, 0.0, 0.0)),),
    )
    t = step * np.arange(frames)
    rng = np.random.default_rng(0)
    positions = np.stack((t, 0 * t, 0.1 + 0 * t), -1)[:, None] + 0.3 * rng.standard_normal((bodies, 3)) * (bodies > 1)
    orientations = np.stack((np.cos(t), 0 * t, 0 * t, np.sin(t)), -1)[:, None] + np.zeros((bodies, 1))
    pushes = rng.standard_normal((frames, contacts, 3)) * (rng.random((frames, contacts, 1)) < 0.1)
    arguments = {
        "contact_points": rng.standard_normal((frames, contacts, 3)),
        "contact_forces": pushes,
        "curves": {"energy [J]": np.sin(t), "height [m]": positions[:, 0, 2]},
    }
    return Playback(scene, t, positions, orientations, "walk", **(arguments | fields))


def gap(playback, first, last):
    """The same with frames first to last lost."""
    positions = playback.positions.copy()
    positions[first : last + 1, 0, 1] = np.nan
    return replace(playback, positions=positions)


def data(html):
    """Header and arrays of a page."""
    blob = zlib.decompress(base64.b64decode(re.search(r'torchdojo.open\(await unpack\("([^"]*)"', html)[1]))
    start = 4 + int.from_bytes(blob[:4], "little")

    def array(value):
        return np.frombuffer(blob, {"f": "<f4", "u": "<u4"}[value["array"]], value["length"], start + value["offset"])

    return json.loads(blob[4:start]), array


def test_the_file_tells_what_the_playbacks_tell():
    first = gap(walk(2, 20, contacts=5), 3, 6)
    html = page_html([first, replace(walk(2, 20), scene=first.scene, contact_points=None, contact_forces=None, label="<b>")], title="<t>")
    assert "&lt;t&gt;" in html and not re.search(r"(src|href)\s*=|https?://|@import", re.sub(r'unpack\("[^"]*"\)', "", html))
    header, array = data(html)
    one, two = header["playbacks"]
    assert len(header["scenes"]) == 1 and one["gaps"] == [[3, 6]] and two["gaps"] == [] and two["starts"] is None
    poses = array(one["poses"]).reshape(20, 2, 7)
    assert np.array_equal(poses[..., :3], first.positions.astype("f4"), equal_nan=True)
    assert np.array_equal(poses[..., 3:], first.orientations.astype("f4"))
    assert np.isfinite(array(one["centers"])).all() and array(one["times"]).shape == (20,)
    starts, rows = array(one["starts"]), array(one["pushes"]).reshape(-1, 6)
    frame, contact = np.nonzero(np.linalg.norm(first.contact_forces, axis=-1) > 1e-3 * header["force"])
    assert np.array_equal(np.repeat(np.arange(20), np.diff(starts.astype(int))), frame) and len(frame) > 3
    assert np.array_equal(rows[:, 3:], first.contact_forces[frame, contact].astype("f4"))
    assert np.array_equal(array(one["curves"]["energy [J]"]), first.curves["energy [J]"].astype("f4"))


def test_size_and_seconds():
    """As many bodies, contacts and frames as 5 s of Atlas on its meshes. The issue asks for 6 MB and 2 s, and aims at 2 MB."""
    playback = walk(31, 500, contacts=460)
    start = time.process_time()
    html = page_html([playback])
    assert len(html) < 4e6 and time.process_time() - start < 2.0
    small = walk()
    assert len(page_html([small] * 16)) < 1.05 * len(page_html([small]))  # equal arrays are written once


def test_large_meshes_are_simplified_and_missing_ones_are_told(monkeypatch):
    monkeypatch.setattr(page, "MOST_TRIANGLES", 3000)
    u, v = (grid.ravel() for grid in np.meshgrid(*[np.linspace(0, 1, 81)] * 2, indexing="ij"))
    corner = (81 * np.arange(80)[:, None] + np.arange(80)).ravel()
    faces = np.concatenate([np.stack(three, -1) for three in ((corner, corner + 81, corner + 1), (corner + 1, corner + 81, corner + 82))])
    wave = Triangles(np.stack((u, v, 0.1 * np.sin(6 * u)), -1).astype("f4"), faces.astype("i4"))
    gone = Triangles(wave.vertices[:3], np.array([[0, 1, 2]]), missing="arm.stl is not there")
    parts = (Part("mesh", (1, 1, 1), "b0", mesh="wave"), Part("mesh", (1, 1, 1), "b0", mesh="gone"))
    header, array = data(page_html(replace(walk(), scene=Scene(("b0",), parts, meshes={"wave": wave, "gone": gone}))))
    assert "1 mesh is missing" in header["remarks"][0] and "simplified" in header["remarks"][1]
    moved = 1e-3 * float(re.search(r"([\d.]+) mm", header["remarks"][1])[1])
    vertices = array(header["scenes"][0]["meshes"][0]["vertices"]).reshape(-1, 3)
    triangles = array(header["scenes"][0]["meshes"][0]["faces"]).reshape(-1, 3)
    assert 500 < len(triangles) <= 3000 and triangles.max() < len(vertices)
    assert np.abs(vertices[:, 2] - 0.1 * np.sin(6 * vertices[:, 0])).max() < 2 * moved < 0.1
    a, b, c = vertices[triangles.T]
    assert (np.cross(b - a, c - a)[:, 2] > -1e-12).all()  # no triangle turned over


def test_bad_input(tmp_path, monkeypatch):
    good = walk()
    cases = [
        ([], "at least one Playback"),
        (walk(frames=0), "playback 0 .walk. has 0 frames"),
        (replace(good, times=-good.times), "decrease"),
        (replace(good, positions=good.positions[:-1]), r"positions has shape \(19, 1, 3\).*ask for \(20, 1, 3\)"),
        (replace(good, curves={"e": np.zeros(3)}), "curve 'e' has shape"),
    ]
    for playbacks, message in cases:
        with pytest.raises(ValueError, match=message):
            page_html(playbacks)
    with pytest.raises(FileNotFoundError, match="make it first"):
        write_page(good, tmp_path / "none" / "page.html")
    assert write_page(good, tmp_path / "page.html").stat().st_size < 1e6
    monkeypatch.setattr(page, "find_spec", lambda name: None)
    with pytest.raises(ImportError, match="torchdojo\\[pages\\]"):
        page_html(good)


# ---- in a browser


@pytest.fixture(scope="module")
def browser():
    with chromium() as started:
        yield started


def outline(playback, frame):
    """Points (n, 3) in the world that enclose all solids of the bodies at a frame."""
    points = []
    for part in playback.scene.parts:
        if part.body is None:
            continue
        own = {
            "box": lambda size=part.size: CORNERS * size,
            "cylinder": lambda size=part.size: np.concatenate([size[0] * RIM + [0, 0, side * size[1] / 2] for side in (-1, 1)]),
            "mesh": lambda key=part.mesh, size=part.size: playback.scene.meshes[key].vertices.astype(float) * size,
        }[part.kind]()
        body = playback.scene.bodies.index(part.body)
        for orientation, position in (
            (part.orientation, part.position),
            (playback.orientations[frame, body], playback.positions[frame, body]),
        ):
            own = quat.rotate(torch.as_tensor(orientation), torch.as_tensor(own)).numpy() + position
        points.append(own)
    return np.concatenate(points)


def quadruped():
    mech = td.models.quadruped()
    return Playback.of(mech, mech.rollout(mech.initial_state(pose="home", on="ground"), steps=40))


def cube():
    mech = td.models.box()
    z = mech.initial_state(box={"position": (0.0, 0.0, 1.0), "velocity": (1.0, 0.3, 0.0), "angular_velocity": (3.0, 2.0, 1.0)})
    return Playback.of(mech, mech.rollout(z, steps=40))


def robot_with_meshes():
    """A pyramid, and a wedge that turns on it."""
    pyramid = Triangles(
        np.array([[-1, -1, 0], [1, -1, 0], [1, 1, 0], [-1, 1, 0], [0, 0, 1.5]], dtype="f4") * 0.2,
        np.array([[0, 2, 1], [0, 3, 2], [0, 1, 4], [1, 2, 4], [2, 3, 4], [3, 0, 4]], dtype="i4"),
    )
    wedge = Triangles(
        np.array([[0, -1, 0], [3, -1, 0], [0, 1, 0], [3, 1, 0], [0, -1, 1], [0, 1, 1]], dtype="f4") * 0.1,
        np.array([[0, 2, 1], [1, 2, 3], [0, 4, 5], [0, 5, 2], [1, 3, 5], [1, 5, 4], [0, 1, 4], [2, 5, 3]], dtype="i4"),
    )
    parts = (Part("mesh", (1, 1, 1), "base", color=RED, role="visual", mesh="p"), Part("mesh", (1, 1, 1), "arm", mesh="w", color=RED))
    t = 0.01 * np.arange(41)
    positions = np.stack([np.stack((t, 0 * t, 0 * t + z), -1) for z in (0.0, 0.32)], axis=1)
    orientations = np.stack([np.stack((np.cos(rate * t), 0 * t, 0 * t, np.sin(rate * t)), -1) for rate in (0, 3)], axis=1)
    return Playback(Scene(("base", "arm"), parts, meshes={"p": pyramid, "w": wedge}), t, positions, orientations)


@pytest.mark.parametrize(
    "robot", [pytest.param(quadruped, marks=pytest.mark.slow), cube, pytest.param(robot_with_meshes, marks=pytest.mark.slow)]
)
def test_the_robot_is_where_the_state_says(robot, browser, tmp_path):
    playback = robot()
    parts = tuple(part for part in playback.scene.parts if part.body is not None)  # without the ground every pixel is the robot or the sky
    playback = replace(playback, scene=replace(playback.scene, parts=parts), contact_forces=None)
    images = []
    with opened(browser, write_page(playback, tmp_path / "page.html")) as page:
        page.add_style_tag(content=PLAIN)
        for frame in (0, 15, 40):
            image = picture(page, float(playback.times[frame]))
            expected = bounds(projected(page.evaluate("torchdojo.view()"), outline(playback, frame)))
            assert (expected > 0).all() and (expected[2:] < image.shape[1::-1]).all()  # the camera follows
            assert np.abs(bounds(drawn(image)) - expected).max() < 2.5  # [pixels]: half a pixel, and the line along an edge
            images.append(image)
    moved = [np.abs(a - b).max(axis=-1) > 12 for a, b in pairwise(images)]
    assert min(m.sum() for m in moved) > 100
    if robot is robot_with_meshes:
        pixels = images[0][tuple(drawn(images[0]).astype(int).T[::-1])]
        assert (pixels[:, 0] > 2 * pixels[:, 1]).mean() > 0.9  # the color of its parts


@pytest.mark.slow
def test_controls(browser, tmp_path):
    """Two playbacks, one with a gap: time, forces, frames, camera, labels, and the cursor of the plots."""
    first = walk(2, 40, contacts=3, contact_forces=np.full((40, 3, 3), 5.0))
    second = gap(replace(walk(2, 30), label="fitted", positions=walk(2, 30).positions + np.array([0, 0.5, 0])), 10, 12)
    with opened(browser, write_page([first, second], tmp_path / "page.html"), width=700, height=600) as page:
        clock, note, labels = (page.locator(f"#{name}") for name in ("clock", "note", "labels"))
        assert "frame 1 / 40" in clock.inner_text() and "grid" in note.inner_text() and page.locator("#gaps div").count() == 1
        still = picture(page, 0.05)
        for box in ("forces", "frames"):
            page.locator(f"#{box}").click()
            changed, still = still, picture(page)
            assert (np.abs(changed - still).max(axis=-1) > 12).sum() > 50, box
        picture(page, 0.11)
        assert "no finite pose at this time: fitted" in note.inner_text()
        picture(page, 0.2)
        assert "no finite" not in note.inner_text()
        page.keyboard.press("ArrowRight")
        picture(page)
        assert "frame 22 / 40" in clock.inner_text()

        eyes = []
        for follow in (True, False):
            page.locator("#follow").set_checked(follow)
            for t in (0.0, 0.3):
                picture(page, t)
                eyes.append(page.evaluate("torchdojo.view().eye"))
        assert 0.2 < eyes[1][0] - eyes[0][0] < 0.4 and np.allclose(eyes[2], eyes[3])

        box = page.locator("#plots canvas").first.bounding_box()  # curves lie from 56 to width - 14
        page.mouse.click(box["x"] + 56 + 0.5 * (box["width"] - 70), box["y"] + 60)
        picture(page)
        assert abs(page.evaluate("torchdojo.view().time") - 0.195) < 0.005
        page.locator("#time").fill("0.1")
        picture(page)
        assert abs(page.evaluate("torchdojo.view().time") - 0.1) < 1e-6

        both = picture(page)
        page.locator("#legend input").nth(1).uncheck()
        assert (np.abs(both - picture(page)).max(axis=-1) > 12).sum() > 50
        page.locator("#legend input").nth(1).check()
        page.locator("#split").check()
        picture(page)
        assert labels.inner_text().split() == ["walk", "fitted"]
        page.locator("#play").click()
        page.wait_for_function("torchdojo.view().time > 0.15")


@pytest.mark.slow
def test_a_batch_and_a_page_without_a_pose(browser, tmp_path):
    lost = gap(walk(1, 5), 0, 4)
    with opened(browser, write_page(lost, tmp_path / "lost.html")) as page:
        picture(page)
        assert "no finite pose" in page.locator("#note").inner_text()
    mech = td.models.quadruped()
    z = mech.initial_state((16,), pose="home", on="ground")
    batch = Playback.batch(mech, mech.rollout(z, steps=5))
    with opened(browser, write_page(batch, tmp_path / "batch.html", side_by_side=True), width=800) as page:
        image = picture(page, 0.02)
        assert page.locator("#labels div").count() == 16
        last = page.locator("#labels div").last.bounding_box()
        own = image[int(last["y"]) :, int(last["x"]) : int(last["x"]) + image.shape[1] // 6]
        assert last["y"] > 100 and own.std() > 5  # a robot stands under the last label


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:visual mesh")
def test_atlas(shared_path, tmp_path):
    """500 frames of Atlas on its meshes: at most 6 MB in 2 s, the aim is 2 MB."""
    mech = td.load(shared_path("models", "atlas", "atlas.urdf"))
    path = mech.rollout(mech.initial_state(on="ground"), steps=500)
    playback = Playback.of(mech, path, collision=True)  # the hulls: its visual meshes are not in the shared folder
    start = time.process_time()
    size = write_page(playback, tmp_path / "atlas.html").stat().st_size
    assert size < 2e6 and time.process_time() - start < 2.0
