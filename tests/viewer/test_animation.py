"""`Mechanism.animate`: one trajectory, several, a batch; in a file and in a notebook."""

import pytest
import torch

import torchdojo as td


@pytest.fixture(scope="module")
def ball():
    mech = td.models.make("sphere")
    z = td.models.initial_state("sphere", mech)
    return mech, z, mech.rollout(z, steps=4)


def test_pages_of_trajectories(ball, tmp_path):
    mech, z, path = ball
    one = mech.animate(path, tmp_path / "out.html", title="A ball")
    assert one.path == tmp_path / "out.html" and one.path.read_text() == one.page() and "A ball" in one.page()[:2000]
    assert repr(one) == f"Animation(1 x 5 frames, {one.path})" and one.playbacks[0].label == ""
    both = mech.animate([path, path.z], labels=["nominal", "fitted"])
    assert [p.label for p in both.playbacks] == ["nominal", "fitted"] and both.path is None and not both.side_by_side
    assert both._repr_html_().startswith('<iframe srcdoc="&lt;!')
    batch = mech.rollout(z.expand(16, -1), steps=2)
    assert len(mech.animate(batch).playbacks) == 16 and mech.animate(batch).side_by_side
    assert [p.label for p in mech.animate(batch, environments=[3]).playbacks] == ["3"]
    assert len(mech.animate([batch, batch], environments=[2]).playbacks) == 2
    q, qd = mech.to_minimal(z)
    assert mech.animate(mech.rollout_minimal(q, qd, steps=2)).playbacks[0].contact_forces is not None


@pytest.mark.parametrize(
    ("trajectory", "options", "message"),
    [
        (torch.zeros(3, 26), {}, "another mechanism"),
        (torch.zeros(0, 13), {}, "0 frames"),
        (torch.zeros(65, 2, 13), {}, "more environments than a page can show"),
        (torch.zeros(3, 2, 13), {"labels": ["a"]}, "got 1 labels for 3 environments"),
        ([], {}, "got no trajectory"),
        ([torch.zeros(2, 13)], {"labels": ["a", "b"]}, "got 2 labels for 1 trajectories"),
        ([torch.zeros(2, 13)], {"environments": [0, 1]}, "give one environment"),
    ],
)
def test_bad_trajectories(ball, trajectory, options, message):
    with pytest.raises(ValueError, match=message):
        ball[0].animate(trajectory, **options)


def test_no_such_folder(ball, tmp_path):
    with pytest.raises(FileNotFoundError, match="does not exist; make it first"):
        ball[0].animate(ball[2], tmp_path / "no" / "out.html")
