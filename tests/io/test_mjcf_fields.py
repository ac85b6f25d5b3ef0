"""Height fields of MJCF files: samples, files, places and turns as MuJoCo has them; what cannot be ground is named."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from mjcf_text import FLOOR, free_body, notes, quiet

import torchdojo as td

mujoco = pytest.importorskip("mujoco")
Write = Callable[..., Path]
ROWS, COLUMNS = 7, 9
BALL = free_body('<geom name="g" size=".1" friction=".7"/>')


def asset(elevation: np.ndarray, size: str = "2 1.5 .4 .1", name: str = "land") -> str:
    rows, columns = elevation.shape
    numbers = " ".join(f"{value:.17g}" for value in elevation[::-1].flatten())  # text begins with the row of largest y
    return f'<asset><hfield name="{name}" nrow="{rows}" ncol="{columns}" size="{size}" elevation="{numbers}"/></asset>'


def geom(place: str = "", name: str = "field", hfield: str = "land") -> str:
    return f'<geom name="{name}" type="hfield" hfield="{hfield}" {place}/>'


def ground(mech: td.Mechanism, name: str = "g") -> td.HeightField:
    field = mech.contacts[name].ground
    assert isinstance(field, td.HeightField)
    return field


def below(path: Path, places: np.ndarray) -> np.ndarray:
    """Heights that rays of MuJoCo from above find, (n,)."""
    model = mujoco.MjModel.from_xml_path(str(path))
    data, hit, down = mujoco.MjData(model), np.zeros(1, dtype=np.int32), np.array([0.0, 0.0, -1.0])
    mujoco.mj_forward(model, data)
    heights = []
    for x, y in places:
        heights.append(5.0 - mujoco.mj_ray(model, data, np.array([x, y, 5.0]), down, None, 1, 1, hit))
    return np.array(heights)


@pytest.mark.parametrize("turn", [0, 1, 2, 3])
def test_a_tilted_plane_is_where_the_rays_of_mujoco_hit(write_mjcf: Write, turn: int) -> None:
    """Splines are exact there, one cell from the border. MuJoCo has samples in single precision."""
    slanted = 0.2 * np.arange(ROWS)[:, None] / 6 + 0.7 * np.arange(COLUMNS) / 8
    slanted[0, 0], slanted[-1, -1] = 0.0, 0.9
    path = write_mjcf(geom(f'pos=".3 -.2 -.6" euler="0 0 {turn * np.pi / 2}"') + BALL.replace("0 0 1", "0 0 3"), asset(slanted))
    field, reach = ground(quiet(path)), (0.9, 1.3) if turn % 2 else (1.3, 0.9)
    places = np.random.default_rng(0).uniform(-1, 1, (40, 2)) * reach + (0.3, -0.2)
    ours = field.at(torch.as_tensor(places)).height.numpy()
    np.testing.assert_allclose(ours, below(path, places), rtol=0, atol=1e-6)


def test_samples_differ_from_mujoco_by_the_stated_smoothing(write_mjcf: Write) -> None:
    x, y = np.linspace(-1, 1, COLUMNS), np.linspace(-1, 1, ROWS)[:, None]
    path = write_mjcf(geom() + BALL, asset((x**2 + 0.5 * y**2) / 1.5))
    field = ground(quiet(path))
    i, j = np.meshgrid(np.arange(2, COLUMNS - 2), np.arange(2, ROWS - 2), indexing="ij")
    places = np.stack([2 * x[i], 1.5 * y[j, 0]], -1).reshape(-1, 2)
    # s = 0.4/1.5 (x²/4 + 0.5 y²/2.25), so c²/6 (∂²/∂x² + ∂²/∂y²) with cells of 0.5 m
    smoothing = 0.25 / 6 * (0.4 / 1.5) * (2 / 4 + 1 / 2.25)
    found = field.at(torch.as_tensor(places)).height.numpy() - below(path, places + 1e-9)
    np.testing.assert_allclose(found, smoothing, rtol=0, atol=1e-6)
    torch.testing.assert_close(field.heights[:, 0], torch.as_tensor(0.4 * (x**2 + 0.5) / 1.5), rtol=0, atol=1e-6)
    text = notes(path)
    assert "height fields of field: approximated; the ground is a cubic B-spline" in text and "no contact points" not in text


def test_files_have_the_samples_of_elevations(write_mjcf: Write, tmp_path: Path) -> None:
    samples = np.random.default_rng(1).integers(0, 256, (ROWS, COLUMNS)).astype(np.uint8)
    samples[0, 0], samples[0, 1] = 0, 255
    (tmp_path / "land.bin").write_bytes(struct.pack("ii", ROWS, COLUMNS) + samples.astype("<f4").tobytes())

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    lines = b"".join(b"\0" + row.tobytes() for row in samples[::-1])  # pictures begin at the top
    head = struct.pack(">IIBBBBB", COLUMNS, ROWS, 8, 0, 0, 0, 0)
    picture = chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(lines)) + chunk(b"IEND", b"")
    (tmp_path / "land.png").write_bytes(b"\x89PNG\r\n\x1a\n" + picture)
    found = []
    for rest in (
        asset(samples / 255),
        *(f'<asset><hfield name="land" file="land.{end}" size="2 1.5 .4 .1"/></asset>' for end in ("bin", "png")),
    ):
        found.append(ground(quiet(write_mjcf(geom() + BALL, rest))).heights.detach())
    torch.testing.assert_close(found[1], torch.as_tensor(0.4 / 255 * samples.T.astype(np.float64)), rtol=0, atol=1e-6)
    for other in found:
        torch.testing.assert_close(other, found[1], rtol=0, atol=1e-6)


def test_robots_stand_on_it_and_on_planes(write_mjcf: Write) -> None:
    level = np.ones((ROWS, COLUMNS))
    level[0, 0] = 0.0  # MuJoCo scales samples by their range
    path = write_mjcf(geom('pos="0 0 -.3"') + FLOOR + BALL, asset(level))
    mech = quiet(path)
    assert list(mech.contacts) == ["g_field", "g_floor"] and float(mech.contacts["g_field"].friction) == 1.0
    z = mech.place(mech.initial_state(), 1e-3)
    assert float(z[2]) == pytest.approx(0.1 + 0.1 + 1e-3)
    with torch.no_grad():
        end = mech.rollout(z, steps=100)
    assert not end.status.any() and float(end.z[-1, 2]) == pytest.approx(0.2, abs=1e-3)
    assert (
        len(
            {
                id(contact.ground)
                for contact in quiet(write_mjcf(geom() + free_body('<geom type="box" size=".1 .1 .1"/>'), asset(level))).contacts.values()
            }
        )
        == 1
    )


@pytest.mark.parametrize(
    ("world", "shape", "message"),
    [
        (geom('euler=".1 0 0"'), (7, 9), "height fields of field: ignored; they are tilted"),
        (geom('euler="0 0 .5"'), (7, 9), "height fields of field: ignored; they are tilted, or not turned by quarters"),
        (geom(), (3, 9), "height fields of field: ignored; they have less than 4 rows"),
        (geom() + geom('pos="9 0 0"', "other"), (7, 9), "height fields of other: ignored; the ground is one height field"),
        (f'<body name="lift"><joint type="slide"/><geom size=".1" pos="9 9 9"/>{geom()}</body>' + FLOOR, (7, 9), "moving height fields"),
    ],
)
def test_what_cannot_be_ground_is_named(write_mjcf: Write, world: str, shape: tuple[int, int], message: str) -> None:
    path = write_mjcf(world + BALL, asset(np.random.default_rng(2).random(shape)))
    assert message in notes(path)
    with pytest.raises(ValueError, match="height fields"):
        quiet(path, strict=True)
