"""Tendons in playbacks, pages, videos and files: points along strings and around surfaces, and loads that color them."""

import numpy as np
import pytest
import torch
from browser import chromium, opened, picture
from playbacks import strung

from torchdojo.geometry.wrapping import arc_points, wrap
from torchdojo.viewer import Playback, load_playbacks, save_playbacks, video, write_page


@pytest.mark.parametrize("cylinder", [False, True])
def test_points_of_arcs_are_on_the_surface_and_as_long_as_the_arc(cylinder):
    """Chords of n parts of an arc r θ are shorter by r θ³/(24 n²): 3e-5 of its length with θ of at most 2π and 240 parts."""
    generator = torch.Generator().manual_seed(0)
    start, end = torch.randn(2, 400, 3, generator=generator, dtype=torch.float64)
    turn = torch.nn.functional.normalize(torch.randn(400, 4, generator=generator, dtype=torch.float64), dim=-1)
    center, radius = torch.tensor([0.1, 0.2, -0.1], dtype=torch.float64), torch.full((400,), 0.4, dtype=torch.float64)
    side = center + 3 * torch.randn(400, 3, generator=generator, dtype=torch.float64)
    wrapped = wrap(start, end, center, turn, radius, cylinder=cylinder, side=side)
    points = arc_points(wrapped, start, center.expand(400, 3), turn, cylinder=cylinder, count=241)
    touching = wrapped.wraps
    assert touching.sum() > 40 and (wrapped.arc[touching] > 0.4 * torch.pi).any()  # arcs of more than half a turn, too
    torch.testing.assert_close(points[touching][:, 0], wrapped.first[touching], atol=1e-12, rtol=0)
    torch.testing.assert_close(points[touching][:, -1], wrapped.second[touching], atol=1e-9, rtol=0)
    lengths = torch.linalg.vector_norm(points.diff(dim=-2), dim=-1).sum(-1)
    torch.testing.assert_close(lengths[touching], wrapped.arc[touching], rtol=1e-4, atol=1e-9)
    assert torch.equal(points[~touching], start[~touching, None].expand(-1, 241, 3))


def test_routes_are_as_long_as_tendons():
    """0.4 mm: eight chords of an arc of up to 2 rad around 4 cm are shorter by r θ³/(24 · 8²) = 0.2 mm."""
    mech, z = strung()
    routes, lengths = mech.tendon_routes(z), mech.tendon_lengths(z)
    assert list(routes) == ["biceps", "straight"] and routes["straight"].shape == (30, 2, 3)
    parts = torch.linalg.vector_norm(routes["biceps"].diff(dim=-2), dim=-1)
    (gap,) = routes["biceps"][0].isnan().any(-1).nonzero().squeeze(-1).tolist()
    drawn = parts[:, : gap - 1].sum(-1) + 0.5 * parts[:, gap + 1 :].sum(-1)
    assert (lengths[:, 0] - drawn).min() >= -1e-12 and 1e-6 < (lengths[:, 0] - drawn).max() < 4e-4
    torch.testing.assert_close(torch.linalg.vector_norm(routes["straight"].diff(dim=-2), dim=-1)[:, 0], lengths[:, 1], atol=1e-13, rtol=0)


def test_playbacks_and_files_have_strings_and_loads(tmp_path):
    mech, z = strung()
    playback = Playback.of(mech, z, loads={"biceps": torch.linspace(0, 5, 29)})
    assert playback.strings["biceps"].shape == (30, 14, 3) and playback.loads["biceps"].shape == (30,) and playback.loads["biceps"][1] == 0
    (again,) = load_playbacks(save_playbacks(tmp_path / "arm.npz", playback))
    for name, points in playback.strings.items():
        np.testing.assert_allclose(again.strings[name], points, atol=1e-7)
    np.testing.assert_allclose(again.loads["biceps"], playback.loads["biceps"], rtol=1e-7)
    batch = Playback.batch(mech, torch.stack((z, z.flip(0))))
    np.testing.assert_array_equal(batch[1].strings["straight"], playback.strings["straight"][::-1])
    with pytest.raises(ValueError, match="got the tendon 'triceps'; allowed: names of spatial tendons, \\['biceps', 'straight'\\]"):
        Playback.of(mech, z, loads={"triceps": np.zeros(30)})
    with pytest.raises(ValueError, match=r"loads of 'biceps': got shape \(7,\); allowed: \(30,\) of the frames, or \(29,\) of the steps"):
        Playback.of(mech, z, loads={"biceps": np.zeros(7)})


@pytest.mark.slow
def test_page_shows_strings_in_the_color_of_their_load(tmp_path):
    """The straight string is red at its largest load and blue without one; NaN between branches draws nothing, and no error is written."""
    mech, z = strung()
    playback = Playback.of(mech, z, loads={"straight": np.linspace(0, 5, 30)})
    with chromium() as browser, opened(browser, write_page(playback, tmp_path / "arm.html")) as page:
        pictures = [picture(page, float(playback.times[frame])) for frame in (1, 29)]
    red, blue = ([(image[..., c] - image[..., 2 - c] > 60).sum() for image in pictures] for c in (0, 2))
    assert blue[0] > 30 + blue[1] and red[1] > 30 + red[0], (red, blue)


def test_strings_of_a_gap_and_of_branches_are_not_drawn():
    playback = Playback.of(*strung())
    points = next(points for points in playback.strings.values() if np.isnan(points).any())
    pieces = len(points[0]) - 1
    drawn = list(video._cords(playback, np.zeros(3), 0, 0, True))
    assert 0 < len(drawn) < pieces + 1
    assert all(np.isfinite(np.concatenate(cord[:2])).all() for cord in drawn)
