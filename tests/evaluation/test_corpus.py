"""`torchdojo evaluate corpus` on packages of a few files: what counts, what is measured, and that a broken or a hanging file is a row."""

import json
import zipfile
from pathlib import Path

import mujoco
import pytest

from torchdojo.commands.main import main
from torchdojo.evaluation import corpus
from torchdojo.evaluation.corpus_files import RobotFile, find_robots, unpack
from torchdojo.evaluation.corpus_motion import compare_motion
from torchdojo.evaluation.corpus_mujoco import Reference, bare_urdf
from torchdojo.evaluation.experiment import Setting

PENDULUM = """<mujoco><option timestep="0.005"/><worldbody><geom type="plane" size="1 1 1"/>
  <body name="upper" pos="0 0 2"><joint name="shoulder" axis="0 1 0" damping="0.05" frictionloss="0.02"/>
    <geom type="capsule" size="0.04" fromto="0 0 0 0 0 -0.5"/>
    <body name="lower" pos="0 0 -0.5"><joint name="elbow" axis="1 0 0" stiffness="2" armature="0.01" range="-90 90"/>
      <geom type="capsule" size="0.04" fromto="0 0 0 0 0 -0.4"/></body></body>
</worldbody><actuator><position joint="elbow" kp="3"/></actuator></mujoco>"""

ARM = """<robot name="arm">
  <link name="base"><inertial><mass value="2"/><inertia ixx="0.02" ixy="0" ixz="0" iyy="0.02" iyz="0" izz="0.02"/></inertial>
    <visual><geometry><mesh filename="package://nowhere/base.dae"/></geometry></visual></link>
  <link name="link"><inertial><origin xyz="0 0 0.2"/><mass value="1"/><inertia ixx="0.02" ixy="0" ixz="0" iyy="0.02" iyz="0" izz="0.002"/>
    </inertial><collision><origin xyz="0 0 0.2"/><geometry><box size="0.1 0.1 0.4"/></geometry></collision></link>
  <joint name="pan" type="revolute"><parent link="base"/><child link="link"/><axis xyz="1 0 0"/>
    <limit lower="-1" upper="1" effort="5" velocity="0.01"/><dynamics damping="0.1"/></joint>
</robot>"""

SCENE = '<mujoco><include file="part.xml"/></mujoco>'
PART = '<mujoco><worldbody><body name="box"><geom size="0.1 0.1 0.1" type="box"/></body></worldbody></mujoco>'  # nothing moves


@pytest.fixture
def packages(tmp_path: Path) -> Path:
    folder = tmp_path / "packages"
    (folder / "other" / "robots").mkdir(parents=True)
    (folder / "other" / "robots" / "arm.urdf").write_text(ARM)
    (folder / "other" / "broken.xml").write_text(PENDULUM[:-30])
    with zipfile.ZipFile(folder / "zoo-1.0-py3-none-any.whl", "w") as wheel:
        for name, text in {"a/pendulum.xml": PENDULUM, "b/same.xml": PENDULUM, "scene.xml": SCENE, "part.xml": PART, "x.py": "1/0"}.items():
            wheel.writestr(f"zoo/{name}", text)
        wheel.writestr("zoo/settings.xml", "<settings/>")
    return folder


def test_robot_files_are_found_once(packages: Path, tmp_path: Path) -> None:
    robots = find_robots(unpack(packages, tmp_path / "unpacked"))
    assert [(robot.label, robot.kind, robot.included) for robot in robots] == [
        ("other/broken.xml", "mjcf", False),
        ("other/robots/arm.urdf", "urdf", False),
        ("zoo-1.0/zoo/a/pendulum.xml", "mjcf", False),
        ("zoo-1.0/zoo/part.xml", "mjcf", True),
        ("zoo-1.0/zoo/scene.xml", "mjcf", False),
    ]


def test_command(packages: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["evaluate", "corpus", "--packages", str(packages), "--output", str(tmp_path / "out"), "--json"]) == 0
    printed = capsys.readouterr().out.splitlines()
    report = json.loads(printed[-1])
    assert report == json.loads((tmp_path / "out" / "report.json").read_text())
    outcome = report["experiments"]["corpus"]
    rows = {row["file"]: row for row in outcome["records"]}
    assert rows["other/broken.xml"]["mujoco"]["kind"] == "ValueError"
    for name in ("zoo-1.0/zoo/a/pendulum.xml", "other/robots/arm.urdf"):
        row = rows[name]
        assert row["ended"] == 0
        assert row["motion"]["error"] < 1e-4, name  # extrapolated to steps of length zero: what is left is of second order
        assert row["gradients"]["error"] < 1e-6, name
        assert all(
            row[stage]["flagged"] == row[stage]["not_finite"] == 0 and row[stage]["steps"] == 200 for stage in ("own_steps", "steps")
        )
    assert outcome["measured"]["files"] == 3  # without the scene, in which nothing moves, and its part
    assert outcome["measured"]["taken"] == 2
    shares = {key: value for key, value in outcome["measured"].items() if key.endswith("_percent")}
    assert set(shares.values()) == {100.0}
    assert len(shares) == len(corpus.SHARES)
    assert any(line.startswith("| zoo-1.0 | 1 | 1 | 1 of 1, 100 % |") for line in printed)
    assert len(outcome["notes"]) == 2


def test_a_file_beyond_the_time_limit_is_a_row(packages: Path) -> None:
    outcome = corpus.corpus(Setting(packages=packages, mujoco=mujoco, time_limit=0.0, limit=3))
    assert [row["ended"] for row in outcome.records] == ["time limit"] * 3
    assert [m.value for m in outcome.measurements if m.key == "time_limits"] == [3]
    assert all(row["mujoco"]["kind"] in ("time limit", corpus.UNFINISHED) for row in outcome.records)


def test_a_law_that_differs_is_seen_and_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "pendulum.xml"
    path.write_text(PENDULUM)
    original = Reference._leave_out

    def stiffer(self: Reference, *arguments: object) -> None:
        original(self, *arguments)  # type: ignore[arg-type]
        self.model.jnt_stiffness[:] *= 1.5

    monkeypatch.setattr(Reference, "_leave_out", stiffer)
    row = compare_motion(mujoco, path, "mjcf")
    assert row["error"] > 0.01
    assert row["error"] > 10 * row["uncertainty"]
    assert row["reason"] == "a law differs, first at hinge"
    assert row["worst_joints"][0].startswith("lower: ")
    assert min(row["without"].values()) > 0.01


def test_a_crash_and_a_hang_are_rows(tmp_path: Path) -> None:
    robot = RobotFile("zoo", "a.xml", tmp_path / "a.xml", "mjcf", False)
    output = tmp_path / "0.json"
    output.write_text(json.dumps({"mujoco": {"nv": 1, "wall_s": 0.1}, "load": {"kind": corpus.UNFINISHED, "text": corpus.UNFINISHED}}))
    for ended, reason in ((-11, "crash, exit status -11"), ("time limit", "time limit")):
        row = corpus._row(robot, output, ended, 3.0)
        assert row["load"]["kind"] == reason
        assert corpus.taken(row)
        assert not corpus.loaded(row)
    assert corpus._row(robot, tmp_path / "none.json", -9, 0.1)["mujoco"]["kind"] == "crash, exit status -9"


def test_a_urdf_is_compared_without_geometry_and_largest_speeds(tmp_path: Path) -> None:
    path = tmp_path / "arm.urdf"
    path.write_text(ARM)
    text = bare_urdf(path)
    assert "<visual" not in text
    assert "<collision" not in text
    assert 'velocity="0"' in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["corpus"], "allowed: a folder with wheels"),
        (["corpus", "--packages", "no/such/folder"], "allowed: a folder with wheels"),
        (["physics", "--packages", "."], "--packages: of the topic corpus alone"),
        (["physics", "--jobs", "2", "--time-limit", "9"], "--jobs, --time-limit: of the topic corpus alone"),
    ],
)
def test_bad_arguments(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["evaluate", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_reasons_without_names_and_numbers_are_equal() -> None:
    texts = [f"/a/b{i}.xml: joint 'j{i}': got [{i}.5]; allowed: angles within ±2π" for i in range(2)]
    assert len({corpus.pattern(text) for text in texts}) == 1
    assert "allowed: angles within" in corpus.pattern(texts[0])
