"""Several MJCF joints on one body: the chain of joints that they become, its kinematics and its motion beside MuJoCo's."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from mjcf_text import FLOOR, GEOM, Write, X, Y, Z, body, hinge, notes, quiet, slide

from torchdojo import quaternion as quat
from torchdojo.io import mjcf_state, read_mjcf
from torchdojo.io.mjcf.light import SHARE
from torchdojo.solver.options import Status
from torchdojo.state.layout import split_state

mujoco = pytest.importorskip("mujoco")

Chain = list[tuple[str, list[tuple[str, float]]]]  # class of each joint, and the MJCF joint and sign of each of its coordinates

BALL = '<joint name="ball" type="ball" pos=".3 -.1 .2"/>'
TILTED = ('"1 1 0"', '"-1 1 1"', '"1 -1 2"')  # perpendicular to each other
THREE_SLIDES = slide("s1", X) + slide("s2", Y) + slide("s3", Z)
FAR = f'<joint name="far" axis={Y}/>'  # its axis does not meet those of `hinge` about x


def hinges(*names: str) -> Chain:
    return [("Revolute", [(name, 1)]) for name in names]


# joints of the file -> our joints
STACKS: dict[str, tuple[str, Chain]] = {
    "free": ('<freejoint name="f"/>', [("Floating", [("f", 1)] * 6)]),
    "ball": (BALL, [("Spherical", [("ball", 1)] * 3)]),
    "hinge": (hinge("h", '"1 2 3"'), hinges("h")),
    "slide": (slide("s", '"1 2 3"'), [("Prismatic", [("s", 1)])]),
    "two hinges": (hinge("h1", Y) + hinge("h2", Z), hinges("h1", "h2")),
    "three tilted hinges": ("".join(hinge(f"h{i}", a) for i, a in enumerate(TILTED)), hinges("h0", "h1", "h2")),
    "hinges at any angle": (hinge("h1", X) + hinge("h2", '"1 1 0"') + hinge("h3", X), hinges("h1", "h2", "h3")),
    "hinges that do not meet": (hinge("h", X) + FAR, hinges("h", "far")),
    "parallel hinges": (hinge("h", Y) + FAR, hinges("h", "far")),
    "four hinges": (hinge("h1", X) + hinge("h2", Y) + hinge("h3", Z) + FAR, hinges("h1", "h2", "h3", "far")),
    "two slides": (slide("s1", X) + slide("s2", Z), [("Planar", [("s1", 1), ("s2", 1)])]),
    "three slides": (THREE_SLIDES, [("FixedOrientation", [("s1", 1), ("s2", 1), ("s3", 1)])]),
    "three tilted slides": ("".join(slide(f"s{i}", a) for i, a in enumerate(TILTED)),
                            [("FixedOrientation", [("s0", 1), ("s1", 1), ("s2", 1)])]),
    "slides at any angle": (slide("s1", X) + slide("s2", '"1 1 0"'), [("Prismatic", [("s1", 1)]), ("Prismatic", [("s2", 1)])]),
    "cylinder": (slide("s", '"1 2 3"') + hinge("h", '"1 2 3"'), [("Cylindrical", [("s", 1), ("h", 1)])]),
    "backward cylinder": (slide("s", '"1 2 3"') + hinge("h", '"-1 -2 -3"'), [("Cylindrical", [("s", 1), ("h", -1)])]),
    "hinge before slide": (hinge("h", Z) + slide("s", Z), [("Cylindrical", [("s", 1), ("h", 1)])]),
    "slide that a hinge turns": (hinge("h", Z) + slide("s", X), [*hinges("h"), ("Prismatic", [("s", 1)])]),
    "slide across a hinge": (slide("s", '"1 1 0"') + hinge("h", X), [("Prismatic", [("s", 1)]), *hinges("h")]),
    "slide after a ball": (BALL + slide("s", X), [("Spherical", [("ball", 1)] * 3), ("Prismatic", [("s", 1)])]),
    "planar root": (slide("rootx", X) + slide("rootz", Z) + hinge("rooty", Y),
                    [("PlanarAxis", [("rootx", 1), ("rootz", 1), ("rooty", -1)])]),
    "planar root with a hinge in the plane": (slide("s1", X) + slide("s2", Y) + hinge("h", X),
                                              [("Planar", [("s1", 1), ("s2", 1)]), *hinges("h")]),
    "tilted plane": (slide("s1", TILTED[0]) + slide("s2", TILTED[1]) + hinge("h", TILTED[2]),
                     [("PlanarAxis", [("s1", 1), ("s2", 1), ("h", 1)])]),
    "gantry": (THREE_SLIDES + hinge("h", '"1 2 3"'), [("FreeRevolute", [("s1", 1), ("s2", 1), ("s3", 1), ("h", 1)])]),
    "gantry with three hinges": (THREE_SLIDES + hinge("h1", Z) + hinge("h2", Y) + hinge("h3", X),
                                 [("FreeRevolute", [("s1", 1), ("s2", 1), ("s3", 1), ("h1", 1)]), *hinges("h2", "h3")]),
    "slide and ball": (slide("s", '"1 2 3"') + BALL, [("CylindricalFree", [("s", 1)] + [("ball", 1)] * 3)]),
    "two slides and ball": (slide("s1", X) + slide("s2", Y) + BALL, [("PlanarFree", [("s1", 1), ("s2", 1)] + [("ball", 1)] * 3)]),
    "three slides and ball": (THREE_SLIDES + BALL, [("Floating", [("s1", 1), ("s2", 1), ("s3", 1)] + [("ball", 1)] * 3)]),
    "hinge and ball": (hinge("h", X) + BALL, [*hinges("h"), ("Spherical", [("ball", 1)] * 3)]),
}  # fmt: skip
ABOVE = {  # the joints of the body that carries the stack: none is the world
    "world": "",
    "body": hinge("p", '"1 -1 2"'),
    "turned body": slide("p1", TILTED[2]) + slide("p2", TILTED[0]),  # its frame is not MuJoCo's
}


@pytest.fixture(params=STACKS)
def stack(request: pytest.FixtureRequest) -> tuple[str, Chain]:
    return STACKS[request.param]


def test_stacks_become_chains_of_joints_of_the_table(write_mjcf: Write, stack: tuple[str, Chain]) -> None:
    joints, chain = stack
    path = write_mjcf(body(joints))
    mech, info = quiet(path), read_mjcf(path)
    assert [type(joint).__name__ for joint in mech.joints.values()] == [kind for kind, _ in chain]
    assert [list(entries) for entries in info.coordinates.values()] == [entries for _, entries in chain]
    assert list(info.tops) == ["a"]
    assert list(info.moved) == list(mech.bodies)
    assert sum(float(b.mass) for b in mech.bodies.values()) == pytest.approx(float(mech.bodies["a"].mass), rel=3.1 * SHARE)


@pytest.mark.parametrize("above", ABOVE)
def test_states_are_those_of_mujoco(write_mjcf: Write, stack: tuple[str, Chain], above: str) -> None:
    """Poses of bodies at random qpos, coordinates and their rates: on the world, on a moving body, and on one with other axes."""
    joints, _ = stack
    carrier = "" if "freejoint" in joints else ABOVE[above]  # MuJoCo has free bodies on the world alone
    inner = body(joints, name="b")
    path = write_mjcf(body(carrier, inside=inner, place='pos="0 1 0" euler="0 1 0"') if carrier else inner)
    info, mech = read_mjcf(path), quiet(path)
    model, generator = info.compiled.model, np.random.default_rng(0)
    for _ in range(2):
        data, step, qvel = mujoco.MjData(model), generator.uniform(-1.2, 1.2, model.nv), generator.uniform(-1, 1, model.nv)
        mujoco.mj_integratePos(model, data.qpos, step, 1.0)
        mujoco.mj_kinematics(model, data)
        z = mjcf_state(mech, info, qpos=data.qpos, qvel=qvel)
        assert (mech.joint_errors(z).abs() <= 1e-11).all()
        pose, names = split_state(z).pose, list(mech.bodies)
        for name, link in info.links.items():
            i, b = names.index(str(link.body)), model.body(name).id
            turned = quat.rotation_matrix(pose.q[i]).numpy() @ link.rotation
            np.testing.assert_allclose(turned, data.xmat[b].reshape(3, 3), rtol=0, atol=1e-10)
            np.testing.assert_allclose(pose.x[i].numpy(), data.xipos[b], rtol=0, atol=1e-10)
        q, qd = mech.to_minimal(z)
        for name, entries in info.coordinates.items():
            for place, (label, sign) in zip(range(*mech.coordinate_places()[name].indices(len(q))), entries, strict=True):
                j = model.joint(label).id
                if model.jnt_type[j] >= 2:  # slides and hinges
                    adr, dof = model.jnt_qposadr[j], model.jnt_dofadr[j]
                    assert float(q[place]) == pytest.approx(sign * (data.qpos[adr] - model.qpos0[adr]), abs=1e-10)
                    assert float(qd[place]) == pytest.approx(sign * qvel[dof], abs=1e-9)


ARM = (
    '<joint name="h1" axis="1 0 0" pos=".3 -.1 .2" damping=".2" stiffness="3" springref=".4" armature=".1" ref=".1"/>'
    '<joint name="h2" axis="0 1 .2" pos=".1 0 .2" damping=".1" armature=".05"/><joint name="s" type="slide" axis="1 1 0" stiffness="900"/>'
    '<joint name="h3" axis="0 0 1" damping=".05" stiffness="2"/>'
)


def test_stacks_move_as_in_mujoco(write_mjcf: Write) -> None:
    """Hinges that do not meet and a slide between them on a floating body, with springs, dampers and armatures: 0.2 s.

    Both are methods of first order: the motion extrapolated from two timesteps has errors of the second.
    """
    path = write_mjcf(f'<body name="base" pos="0 0 1"><freejoint/>{GEOM}{body(ARM, name="b")}</body>')
    info = read_mjcf(path)
    model = info.compiled.model
    qpos, qvel, generator = model.qpos0.copy(), np.zeros(model.nv), np.random.default_rng(1)
    qpos[7:], qvel[3:] = generator.uniform(-0.8, 0.8, model.nq - 7), generator.uniform(-1, 1, model.nv - 3)

    def theirs(h: float) -> np.ndarray:
        data = mujoco.MjData(model)
        data.qpos[:], data.qvel[:], model.opt.timestep = qpos, qvel, h
        model.opt.integrator = int(mujoco.mjtIntegrator.mjINT_IMPLICIT)
        for _ in range(round(0.2 / h)):
            mujoco.mj_step(model, data)
        mujoco.mj_kinematics(model, data)
        return np.array(data.xpos[2])

    def ours(h: float) -> np.ndarray:
        mech = quiet(path, contacts=None, timestep=h)
        with torch.no_grad():
            run = mech.rollout(mjcf_state(mech, info, qpos=qpos, qvel=qvel), steps=round(0.2 / h))
        assert (run.status == int(Status.SUCCESS)).all()
        pose, i = split_state(run.z[-1]).pose, list(mech.bodies).index("b")
        return pose.x[i].numpy() + quat.rotation_matrix(pose.q[i]).numpy() @ info.links["b"].position

    ends = [2 * run(1e-3) - run(2e-3) for run in (ours, theirs)]
    moved = np.linalg.norm(ends[1] - theirs(0.2)) + 0.1
    np.testing.assert_allclose(ends[0], ends[1], rtol=0, atol=1e-3 * moved)


def test_joints_of_a_chain_keep_their_numbers(write_mjcf: Write) -> None:
    joints = hinge("h1", '"-1 0 0"', 'range="-.5 1" stiffness="2" springref=".3" armature=".1"') + hinge("h2", Y, 'damping="3"')
    rest = '<actuator><motor joint="h1" gear="2" ctrlrange="-3 1"/><motor joint="h2"/></actuator>'
    rest += '<keyframe><key name="k" qpos=".2 .3"/></keyframe>'
    path = write_mjcf(body(joints) + FLOOR, rest)
    mech = quiet(path)
    first, second = mech.joints["h1"], mech.joints["h2"]
    assert (list(mech.bodies), first.child, second.parent) == (["a_h1", "a"], "a_h1", "a_h1")
    assert (first.parent, second.child) == (None, "a")
    assert [float(getattr(first, name)) for name in ("spring", "rest", "armature")] == pytest.approx([2, 0.3, 0.1])
    assert first.effort_limit == [6.0]
    assert [bound.tolist() for bound in first.limits] == [pytest.approx([-0.5]), pytest.approx([1])]
    assert (second.damper.tolist(), second.effort_limit, first.actuated, second.actuated) == ([3.0], None, True, True)
    assert mech.actuators.names == ("h1_actuator", "h2_actuator")
    assert {name: value["q"] for name, value in mech.poses["k"].values.items()} == {
        "h1": pytest.approx((0.2,)),
        "h2": pytest.approx((0.3,)),
    }
    assert {contact.body for contact in mech.contacts.values()} == {"a"}
    assert "h1" not in notes(path)


def test_backward_coordinates_carry_their_numbers_along(write_mjcf: Write) -> None:
    joints = slide("rootx", X) + slide("rootz", Z, 'range="0 2"') + hinge("rooty", Y, 'range="-.5 1" stiffness="2" springref=".3"')
    root = quiet(write_mjcf(body(joints))).joints["root"]
    assert root.spring.tolist() == [0, 0, 2]
    assert root.rest.tolist() == pytest.approx([0, 0, -0.3])
    assert root.limits[0].tolist() == pytest.approx([-math.inf, 0, -1])
    assert root.limits[1].tolist() == pytest.approx([math.inf, 2, 0.5])


def test_actuated_coordinates_keep_their_sign(write_mjcf: Write) -> None:
    joints = slide("s1", '"-1 0 0"') + slide("s2", Z) + hinge("h", Y)
    path = write_mjcf(body(joints), '<actuator><motor joint="s1" gear="2" ctrlrange="-3 1"/><motor joint="h"/></actuator>')
    (entries,) = read_mjcf(path).coordinates.values()
    assert dict(entries)["s1"] == dict(entries)["h"] == 1.0
    (joint,) = quiet(path).joints.values()
    efforts = dict(zip((label for label, _ in entries), joint.effort_limit, strict=True))
    assert efforts == {"s1": 6.0, "s2": 0.0, "h": math.inf}
