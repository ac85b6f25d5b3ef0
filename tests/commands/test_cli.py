"""The command line, in process: what it prints and writes, and how it refuses bad input."""

import argparse
import json
import subprocess
import sys

import numpy as np
import pytest
import torch

from torchdojo import creep, kappa_for_gap, models, resting_gap
from torchdojo.commands.main import COMMANDS, main
from torchdojo.commands.simulate import add_arguments, build, place, spread
from torchdojo.testing import diagnostics

URDF = """<robot name="two">
  <link name="base"><inertial><mass value="1"/><inertia ixx=".01" iyy=".01" izz=".01" ixy="0" ixz="0" iyz="0"/></inertial>
    <collision><geometry><sphere radius="0.1"/></geometry></collision></link>
  <link name="tip"><inertial><mass value="1"/><inertia ixx=".01" iyy=".01" izz=".01" ixy="0" ixz="0" iyz="0"/></inertial></link>
  <link name="other"><inertial><mass value="1"/><inertia ixx=".01" iyy=".01" izz=".01" ixy="0" ixz="0" iyz="0"/></inertial></link>
  <joint name="elbow" type="revolute"><parent link="base"/><child link="tip"/><origin xyz="0 0 0.3"/><axis xyz="1 0 0"/>
    <limit lower="0.2" upper="1" effort="1" velocity="1"/></joint>
  <joint name="copy" type="continuous"><parent link="base"/><child link="other"/><origin xyz="0 0.3 0"/><axis xyz="1 0 0"/>
    <mimic joint="elbow"/></joint>
</robot>"""


@pytest.fixture
def urdf(tmp_path):
    path = tmp_path / "two.urdf"
    path.write_text(URDF)
    return path


def options(*arguments):
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return parser.parse_args([*map(str, arguments)])


def run_json(capsys, *arguments):
    assert main([*map(str, arguments), "--json"]) == 0
    return json.loads(capsys.readouterr().out.splitlines()[-1])


def test_simulate_reports_and_writes(capsys, tmp_path):
    report = run_json(capsys, "simulate", "sphere", "--steps", 6, "--batch", 2, "--check", "--height", 0.001, "--output", tmp_path / "out")
    assert report["flagged_steps"] == 0
    assert report["steps"] == 6
    assert report["smallest_distance_m"] > 0
    assert report["dissipates"] == ["contact"]
    assert report["gradient_error_relative"] <= 1e-6
    assert report["steps_per_second"] > 0
    assert report == json.loads((tmp_path / "out" / "report.json").read_text())
    with np.load(tmp_path / "out" / "trajectory.npz") as archive:
        assert archive["z"].shape == (2, 7, 13)
        assert archive["u"].shape == (2, 6, 0)
        assert archive["status"].shape == archive["iterations"].shape == (2, 6)
        assert archive["distances"].shape == (2, 7, 1)
        assert archive["timestep"] == 0.01
        assert archive["body_names"].tolist() == ["sphere"]
        assert archive["distances"][0, 0, 0] == pytest.approx(0.001, abs=1e-12)


def test_energy_drift_is_reported_where_nothing_dissipates(capsys):
    report = run_json(capsys, "simulate", "pendulum", "--steps", 10)
    assert report["dissipates"] == []
    assert 0 <= report["energy_drift_relative"] <= 1e-2
    assert report["smallest_distance_m"] is None
    assert report["largest_joint_error"] <= 1e-9


def test_table_is_printed(capsys):
    assert main(["simulate", "box", "--steps", "2"]) == 0
    out = capsys.readouterr().out
    for text in ("steps per second", "solver iterations", "flagged steps", "0 of 2", "smallest distance", "resting gap", "energy"):
        assert text in out


def test_large_kappa_is_commented(capsys):
    main(["simulate", "box", "--steps", "1", "--kappa", "1e-3"])
    assert "contacts at rest float" in capsys.readouterr().out


def test_self_collision_tells_what_touched(capsys, tmp_path):
    """Two cans land on the floor beside each other."""
    free = '<body name="{0}" pos="{1} 0 0.1"><freejoint/><geom type="cylinder" size=".1 .1"/></body>'
    floor = '<geom type="plane" size="1 1 1"/>'
    path = tmp_path / "cans.xml"
    path.write_text(f"<mujoco><worldbody>{floor}{free.format('one', 0.0)}{free.format('two', 0.2003)}</worldbody></mujoco>")
    report = run_json(capsys, "simulate", path, "--steps", 3, "--self-collision", "--height", 0.0001)
    assert report["near_slots"] >= report["near_slots_used"] > 0 and "one - world" in report["touched"]
    assert run_json(capsys, "simulate", path, "--steps", 1)["near_slots"] == 0
    assert main(["simulate", str(path), "--steps", "3", "--self-collision", "--height", "0.0001"]) == 0
    printed = capsys.readouterr().out
    assert "slots of near contacts" in printed and "one - world (" in printed
    assert main(["simulate", str(path), "--self-collision", "--contact", "one:0,0,0"]) == 2
    assert "give one of them" in capsys.readouterr().err


def test_robot_file_with_mimic_joint_limits_and_contacts(capsys, urdf):
    report = run_json(capsys, "simulate", urdf, "--steps", 2)
    assert (report["bodies"], report["contacts"], report["inputs"]) == (3, 1, 1)  # a mimic joint has no input of its own
    report = run_json(capsys, "simulate", urdf, "--steps", 2, "--ignore", "copy")
    assert report["inputs"] == 2
    report = run_json(capsys, "simulate", urdf, "--steps", 2, "--fixed-base", "--contact", "tip:0,0,.5,.01", "--contact", "tip:0,.1,.5")
    assert (report["bodies"], report["contacts"]) == (2, 2)

    mech, z = build(options(urdf))
    q, _ = mech.to_minimal(z)
    assert q[6:].tolist() == pytest.approx([0.2, 0.2])  # the elbow starts at its lower limit, since zero is outside; its mimic follows
    moved = spread(mech, z, 3, seed=0)
    assert float(mech.joint_errors(moved).abs().max()) < 1e-9
    rates = mech.to_minimal(moved)[1][:, 6:]
    torch.testing.assert_close(rates[:, 0], rates[:, 1], rtol=0, atol=1e-8)
    assert float(rates[1:, 0].abs().min()) > 1e-3
    alone, z = build(options(urdf, "--ignore", "copy"))
    assert alone.to_minimal(z)[0][6:].tolist() == pytest.approx([0.2, 0.0])
    assert float(mech.distances(place(mech, z, 0.1)).min()) == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["simulate", "dog"], "no built-in mechanism and no file 'dog'; built-in mechanisms: pendulum, "),
        (["simulate", "missing.urdf"], "does not exist"),
        (["simulate", "robot.sdf"], "unknown suffix '.sdf'"),
        (["simulate", "box", "--fixed-base"], "are for robot files"),
        (["simulate", "box", "--self-collision"], "are for robot files"),
        (["simulate", "pendulum", "--friction", "0.5"], "has no option 'friction'"),
        (["replay", "missing.npz"], "no file 'missing.npz'"),
    ],
)
def test_bad_input_is_one_line_without_traceback(capsys, arguments, message):
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert message in captured.err
    assert len(captured.err.strip().splitlines()) == 1
    assert "Traceback" not in captured.err


def test_malformed_robot_and_contacts_are_refused(capsys, tmp_path, urdf):
    (tmp_path / "bad.urdf").write_text("<robot><link")
    assert main(["simulate", str(tmp_path / "bad.urdf")]) == 2
    assert "malformed XML" in capsys.readouterr().err
    for contact, message in (
        ("tip", "is not LINK:X,Y,Z"),
        ("tip:1,2", "is not LINK:X,Y,Z"),
        ("leg:0,0,0", "the link 'leg'"),
        ("tip:0,0,0,-1", "radius"),
    ):
        assert main(["simulate", str(urdf), "--contact", contact]) == 2
        assert message in capsys.readouterr().err


def test_help_names_the_commands_and_both_formats(capsys):
    for arguments, texts in (
        (["--help"], [f"{name} " for name in COMMANDS]),
        (["simulate", "--help"], ["URDF or MJCF", "--timestep H", "(default: 200)"]),
        (["replay", "--help"], ["FILE.npz", "--substeps K"]),
        (["fit", "--help"], ["--data FILE", "--set KEY=VALUE"]),
        (["evaluate", "--help"], ["physics or gradients", "--quick"]),
    ):
        with pytest.raises(SystemExit) as caught:
            main(arguments)
        assert caught.value.code == 0
        out = " ".join(capsys.readouterr().out.split())
        for text in texts:
            assert text in out


def test_help_imports_no_command():
    """`torchdojo --help` and an unknown command answer without the modules of the commands, in a process of their own."""
    script = (
        "import sys; from torchdojo.commands.main import COMMANDS, main\n"
        "for arguments in (['--help'], [], ['dance']):\n"
        "    try: main(arguments)\n"
        "    except SystemExit: pass\n"
        "print([path for path, _ in COMMANDS.values() if path in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
    assert "simulate" in done.stdout and "invalid choice: 'dance'" in done.stderr


@pytest.mark.parametrize("arguments", [["--steps", "0"], ["--timestep", "-1"], ["--kappa", "nan"], ["--batch", "x"]])
def test_numbers_out_of_range_are_refused(capsys, arguments):
    with pytest.raises(SystemExit) as caught:
        main(["simulate", "box", *arguments])
    assert caught.value.code == 2
    assert arguments[0] in capsys.readouterr().err


def test_spread_keeps_the_first_environment_and_the_joints():
    mech = models.quadruped()
    z = models.initial_state("quadruped", mech)
    batch = spread(mech, z, 3, seed=1)
    torch.testing.assert_close(batch[0], z)
    assert mech.joint_errors(batch).abs().max() < 1e-12
    assert not torch.equal(batch[1], batch[2])
    torch.testing.assert_close(spread(mech, z, 3, seed=1), batch)


def test_gap_and_kappa_are_inverse():
    mech = models.box(mass=2.0, timestep=0.02)
    kappa = kappa_for_gap(mech, 1e-5)
    assert kappa == pytest.approx(1e-5 * 2.0 * 9.81 * 0.02 / 8)
    assert resting_gap(mech, kappa) == pytest.approx(1e-5)
    assert resting_gap(mech, kappa, contacts=4) == pytest.approx(0.5e-5)


def test_gap_is_what_a_resting_box_shows():
    mech = models.box()
    z = mech.initial_state(box={"position": (0, 0, 0.2501)})
    trajectory = mech.rollout(z, steps=10)
    assert float(mech.distances(trajectory.z[-1])[mech.distances(z) < 0.1].mean()) == pytest.approx(resting_gap(mech, contacts=4), rel=1e-3)


def test_creep_is_the_slip_of_a_sticking_contact():
    """A box pushed with half of its friction limit: the corners slip as fast as the formula says."""
    mech = models.box(friction=0.8)
    wrench = torch.tensor([0.4 * 9.81, 0, 0, 0, 0, 0])
    z = mech.initial_state(box={"position": (0, 0, 0.2501)})
    z = mech.rollout(z, steps=20, wrench=wrench).z[-1]
    out = mech.step(z, wrench=wrench)
    speeds = creep(mech, out)
    lower = mech.distances(z) < 0.1
    assert speeds.shape == (8,)
    assert (speeds[~lower] == 0).all()
    torch.testing.assert_close(speeds[lower].mean(), out.z[3:6].norm(), rtol=0.05, atol=0)


def test_gap_needs_contacts_and_gravity():
    with pytest.raises(ValueError, match="this mechanism has none"):
        resting_gap(models.pendulum())
    with pytest.raises(ValueError, match="needs gravity"):
        kappa_for_gap(models.box(gravity=(0.0, 0.0, 0.0)))
    for bad in (0.0, -1.0, float("nan")):
        with pytest.raises(ValueError, match="allowed: positive numbers"):
            kappa_for_gap(models.box(), bad)
    assert diagnostics.free_parts(models.pendulum()) == []
    assert diagnostics.free_parts(models.snake(2)) == [["link1", "link2"]]
