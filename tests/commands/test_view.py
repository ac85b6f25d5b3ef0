"""`torchdojo view`, the files that it reads, and the pages that other commands write."""

import json
import sys
import types
from pathlib import Path

import numpy as np
import pytest

from torchdojo.commands import drawing, view
from torchdojo.commands.main import main
from torchdojo.viewer import load_playbacks, video


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """two/trajectory.npz, of a batch of two spheres, and one/trajectory.npz, of a box, with pages."""
    folder = tmp_path_factory.mktemp("runs")
    assert main(["simulate", "sphere", "--steps", "5", "--batch", "2", "--output", str(folder / "two")]) == 0
    assert main(["simulate", "box", "--steps", "3", "--output", str(folder / "one")]) == 0
    return folder


def run_json(capsys, *arguments):
    assert main([*map(str, arguments), "--json"]) == 0
    return json.loads(capsys.readouterr().out.splitlines()[-1])


def test_simulate_writes_what_view_shows(folder):
    first, second = load_playbacks(folder / "two" / "trajectory.npz")
    assert (first.label, second.label) == ("environment 0", "environment 1") and first.num_frames == 6
    assert first.contact_forces.shape == (6, 1, 3) and "flagged" in first.curves
    with np.load(folder / "two" / "trajectory.npz") as arrays:
        assert np.allclose(first.positions[:, 0], arrays["z"][0, :, :3], atol=1e-6)
    assert all((folder / name / "trajectory.html").stat().st_size > 1e5 for name in ("one", "two"))


@pytest.mark.parametrize(
    ("options", "printed", "pages"),
    [
        (["--output", "{}/out"], "to see it: open {}/out/trajectory.html", ["out/trajectory.html"]),
        (["--output", "{}/out", "--no-html"], "written to", []),
        (["--html", "{}/page.html"], "to see it: open {}/page.html", ["page.html"]),
        (["--output", "{}/out", "--html", "{}/page.html"], "to see it: open {}/page.html", ["page.html"]),
    ],
)
def test_where_the_page_goes(tmp_path, capsys, options, printed, pages):
    assert main(["simulate", "sphere", "--steps", "1", *(option.format(tmp_path) for option in options)]) == 0
    assert printed.format(tmp_path) in capsys.readouterr().out
    assert [str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.html")] == pages


def test_without_the_extra_a_note_says_so(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(drawing, "find_spec", lambda name: None)
    assert main(["simulate", "sphere", "--steps", "1", "--output", str(tmp_path)]) == 0
    assert 'note: no page of the motion, since meshcat is not installed: pip install "torchdojo[pages]"' in capsys.readouterr().out
    assert load_playbacks(tmp_path / "trajectory.npz")


def test_view_overlays_files(folder, tmp_path, capsys):
    files = [folder / "two" / "trajectory.npz", folder / "one" / "trajectory.npz"]
    report = run_json(capsys, "view", *files, "--html", tmp_path / "all.html")
    assert [(p["label"], p["frames"]) for p in report["playbacks"]] == [
        ("two/trajectory: environment 0", 6),
        ("two/trajectory: environment 1", 6),
        ("one/trajectory", 4),
    ]
    assert (tmp_path / "all.html").stat().st_size > 1e5
    report = run_json(
        capsys, "view", *files, "--label", "a", "--label", "b", "--select", 1, "--html", tmp_path / "b.html", "--side-by-side"
    )
    assert [p["label"] for p in report["playbacks"]] == ["a", "b"]


def test_view_opens_a_browser_where_there_is_a_screen(folder, capsys, monkeypatch):
    opened = []
    monkeypatch.setattr(view.webbrowser, "open", lambda url: not opened.append(url))
    for screen, options, count, says in (
        (":0", [], 1, "opened"),
        (":0", ["--no-open"], 1, "open this page"),
        ("", [], 1, "open this page"),
    ):
        monkeypatch.setattr(view.sys, "platform", "linux")
        monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
        monkeypatch.setenv("DISPLAY", screen)
        assert main(["view", str(folder / "one" / "trajectory.npz"), *options]) == 0
        assert says in capsys.readouterr().out and len(opened) == count
    assert opened[0].startswith("file:///") and opened[0].endswith("/one/trajectory.html")


def test_view_as_a_video_and_live(folder, tmp_path, capsys, monkeypatch):
    calls = []
    monkeypatch.setattr(video, "write_video", lambda playbacks, path, **options: calls.append((len(playbacks), options)) or path)
    file = str(folder / "two" / "trajectory.npz")
    assert main(["view", file, "--video", str(tmp_path / "a.mp4"), "--side-by-side", "--fps", "20"]) == 0
    assert calls[0][0] == 2 and calls[0][1]["fps"] == 20 and calls[0][1]["spacing"] >= 0.5

    class View:
        url, closed = "http://127.0.0.1:8080", False

        def close(self):
            View.closed = True

    def interrupted(seconds):
        raise KeyboardInterrupt

    monkeypatch.setitem(
        sys.modules, "torchdojo.viewer.live", types.SimpleNamespace(live=lambda *a, **o: calls.append((len(a[0]), o)) or View())
    )
    monkeypatch.setattr(view.time, "sleep", interrupted)
    assert main(["view", file, "--live", "--no-open", "--port", "8080"]) == 130
    assert View.closed and calls[1] == (2, {"speed": 1.0, "port": 8080, "spacing": None})
    monkeypatch.setattr(video, "write_video", lambda *a, **o: (_ for _ in ()).throw(RuntimeError("no ffmpeg here")))
    assert main(["view", file, "--video", str(tmp_path / "a.mp4")]) == 2
    assert "error: no ffmpeg here" in capsys.readouterr().err


def test_plain_old_trajectories(folder, tmp_path, capsys):
    """A file of states alone says how to draw it, and is drawn with the mechanism that it is of."""
    with np.load(folder / "one" / "trajectory.npz") as arrays:
        plain = {name: arrays[name] for name in ("z", "timestep", "body_names")}
    np.savez(tmp_path / "old.npz", **plain)
    old = str(tmp_path / "old.npz")
    assert main(["view", old, "--no-open"]) == 2
    assert "has no drawing" in (said := capsys.readouterr().err) and "--mechanism NAME" in said
    report = run_json(capsys, "view", old, "--mechanism", "box", "--no-open")
    assert report["playbacks"] == [{"label": "box", "bodies": 1, "frames": 4, "duration_s": pytest.approx(0.03)}]
    assert main(["view", old, "--mechanism", "sphere"]) == 2
    assert "is of another mechanism: its bodies are ['box'], and sphere has ['sphere']" in capsys.readouterr().err


def test_a_robot_at_the_start(tmp_path, capsys):
    robot = tmp_path / "robot.urdf"
    inertial = '<inertial><mass value="1"/><inertia ixx=".1" iyy=".1" izz=".1" ixy="0" ixz="0" iyz="0"/></inertial>'
    shapes = "".join(f'<{tag}><geometry><sphere radius="{r}"/></geometry></{tag}>' for tag, r in (("visual", 0.2), ("collision", 0.3)))
    robot.write_text(f'<robot name="r"><link name="ball">{inertial}{shapes}</link></robot>')
    report = run_json(capsys, "view", robot, "--no-open")
    assert Path(report["html"]).is_file() and list(tmp_path.iterdir()) == [robot]
    assert report["playbacks"] == [{"label": "robot", "bodies": 1, "frames": 1, "duration_s": 0.0}]
    (playback,) = view.read([robot])
    assert playback.positions[0, 0, 2] == pytest.approx(0.3) and playback.scene.parts[0].size == (0.2,)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["gone.urdf"], "'gone.urdf' does not exist"),
        (["gone.npz"], "trajectory file 'gone.npz' does not exist"),
        (["{}/one/trajectory.html"], "is not an .npz file"),
        (["{}/one/trajectory.npz", "--label", "a", "--label", "b"], "got 2 --label for 1 files"),
        (["{}/one/trajectory.npz", "--select", "2"], "has 1 motions; got --select 2"),
        (["{}/one/trajectory.npz", "--html", "{}/no/a.html"], "the folder {}/no does not exist"),
        (["{}/one/report.json", "--mechanism", "box"], "is not an .npz file of plain arrays"),
        (["gone.npz", "--mechanism", "box"], "'gone.npz' does not exist"),
    ],
)
def test_bad_input(folder, capsys, arguments, message):
    assert main(["view", *(argument.format(folder) for argument in arguments)]) == 2
    assert message.format(folder) in capsys.readouterr().err
