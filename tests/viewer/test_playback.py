"""Scenes and playbacks of mechanisms: forces balance momentum, poses are the states', batches and gaps."""

import numpy as np
import pytest
import torch

import torchdojo as td
from torchdojo import quaternion as quat
from torchdojo.parameters import as_tensor
from torchdojo.viewer import Playback, Scene

SLOPE = {"normal": (0.3, -0.2, 1.0), "offset": -0.1}
BALL = {"shape": td.Sphere(0.2)}
CONTACTS = {
    "frictionless": (td.ImpactContact, {"radius": 0.2, **SLOPE}),
    "cone": (td.NonlinearContact, {"radius": 0.2, "friction": 0.3, **SLOPE}),
    "turning and rolling": (td.NonlinearContact, {"radius": 0.2, "torsional_friction": 0.02, "rolling_friction": 0.01, **SLOPE}),
    "pyramid": (td.LinearContact, {"radius": 0.2, "facets": 6, **SLOPE}),
    "compliant": (td.NonlinearContact, {"radius": 0.2, "stiffness": 1e4, "damping": 10.0}),
    "a fixed box": (td.NonlinearContact, {**BALL, "other_shape": td.Box((2.0, 2.0, 0.2), position=(0.0, 0.0, -0.1))}),
    "a fixed capsule": (
        td.LinearContact,
        {**BALL, "other_shape": td.Capsule(0.1, 2.0, position=(0.1, 0.0, -0.1), orientation=(0.6, 0.8, 0.0, 0.0))},
    ),
}


def thrown(kind, keywords, batch=()):
    mech = td.Mechanism({"ball": td.Body(2.0, shape=td.Sphere(0.2))}, contacts={"skin": kind("ball", **keywords)})
    z = mech.initial_state(batch, ball={"position": (0.0, 0.0, 0.4), "velocity": (0.4, 0.2, -1.0), "angular_velocity": (1.0, 2.0, 3.0)})
    return mech, mech.rollout(z, steps=40)


@pytest.mark.parametrize("case", CONTACTS)
def test_contact_forces_and_gravity_change_the_momentum(case):
    mech, path = thrown(*CONTACTS[case])
    playback = Playback.of(mech, path, label=case)
    momentum = mech.momentum(path.z)[:, :3].detach().numpy()
    forces = playback.contact_forces.sum(1)
    expected = np.diff(momentum, axis=0) / 0.01 - 2.0 * mech.gravity.detach().numpy()
    assert np.abs(forces[1:] - expected).max() < 1e-5 * np.abs(expected).max()
    assert np.abs(forces).max() > 10.0 and not forces[0].any()
    (x, _), z = (playback.positions, playback.orientations), path.z.detach().numpy()
    assert np.array_equal(x[:, 0], z[:, :3]) and np.allclose(playback.orientations[:, 0], z[:, 6:10], atol=1e-14)
    gap = playback.curves["smallest distance [m]"]
    assert np.allclose(gap, mech.distances(path.z).detach().numpy()[:, 0]) and len(gap) == playback.num_frames == 41
    assert np.allclose(playback.times, 0.01 * np.arange(41)) and playback.timestep == 0.01 and playback.label == case


def test_contacts_of_several_kinds_keep_their_order():
    """All at once, `contact_impulses` has what each contact says by itself; a contact that does not say what its impulse is has NaN."""

    class Silent(td.NonlinearContact):
        def force(self, normal, impulse, tangents=None):  # only the residual gives the tangents
            return td.Contact.force(self, normal, impulse) if tangents is None else super().force(normal, impulse, tangents)

    kinds = [td.NonlinearContact, td.LinearContact, td.ImpactContact, td.NonlinearContact, td.LinearContact, Silent]
    points = [(0.1 * (i % 3) - 0.1, 0.2 * (i % 2) - 0.1, -0.1) for i in range(len(kinds))]
    contacts = {f"c{i}": kind("b", point=point) for i, (kind, point) in enumerate(zip(kinds, points, strict=True))}
    options = td.SolverOptions(backend="reference")
    mech = td.Mechanism({"b": td.Body(1.0, shape=td.Box((0.3, 0.3, 0.2)))}, contacts=contacts, options=options)
    z = mech.initial_state((2,), b={"position": (0.0, 0.0, 0.1001), "velocity": (0.5, 0.1, 0.0)})
    out = mech.step(z)
    together = mech.contact_impulses(out.z, out.impulses)
    for i, (name, contact) in enumerate(mech.named_contacts().items()):
        alone = contact.world_impulse(out.impulses[..., mech.impulse_layout[f"contacts.{name}"]], *mech.element_poses(out.z, contact))
        assert torch.allclose(together[:, i], alone, rtol=1e-12, atol=1e-14, equal_nan=True)
    assert together[:, -1].isnan().all() and together[:, :-1, 2].min() > 0


def test_two_bodies_push_each_other():
    bodies = {name: td.Body(1.0, shape=td.Sphere(0.1)) for name in ("a", "b")}
    contact = td.NonlinearContact("a", shape=td.Sphere(0.1), other="b", other_shape=td.Sphere(0.1))
    mech = td.Mechanism(bodies, contacts={"pair": contact}, gravity=(0.0, 0.0, 0.0))
    z = mech.initial_state(a={"position": (0.0, 0.0, 0.0), "velocity": (1.0, 0.1, 0.0)}, b={"position": (0.25, 0.0, 0.0)})
    path = mech.rollout(z, steps=10)
    force = Playback.of(mech, path).contact_forces[:, 0]
    change = np.diff(path.z[:, 3:6].detach().numpy(), axis=0) / 0.01
    assert np.abs(force[1:] - change).max() < 1e-6 < np.abs(change).max()


def test_scene_has_the_ground_fixed_shapes_and_joints():
    contacts = {
        "left": td.ImpactContact("ball", radius=0.2, **SLOPE),
        "right": td.ImpactContact("ball", point=(0.0, 0.0, 0.1), **SLOPE),
        "table": td.ImpactContact("ball", **CONTACTS["a fixed box"][1]),
    }
    joints = {"slide": td.Prismatic(None, "ball", axis=(0.0, -2.0, 0.0), child_anchor=(0.0, 0.1, 0.0))}
    mech = td.Mechanism({"ball": td.Body(2.0, shape=td.Sphere(0.2))}, joints, contacts)
    scene = Scene.of(mech)
    ball, ground, table = scene.parts  # both contacts have one ground
    assert (ball.kind, ball.body, ball.size) == ("sphere", "ball", (0.2,))
    normal = torch.tensor(SLOPE["normal"], dtype=torch.float64)
    normal = normal / normal.norm()
    assert (ground.kind, ground.body, ground.role) == ("plane", None, "ground")
    up = quat.rotate(as_tensor(ground.orientation, "q"), torch.eye(3, dtype=torch.float64)[2])
    assert torch.allclose(up, normal, atol=1e-14) and np.allclose(ground.position, (-0.1 * normal).tolist(), atol=1e-14)
    assert (table.kind, table.size, table.position) == ("box", (2.0, 2.0, 0.2), (0.0, 0.0, -0.1))
    (frame,) = scene.joints
    along = quat.rotate(as_tensor(frame.orientation, "q"), torch.eye(3, dtype=torch.float64)[2])
    assert torch.allclose(along, torch.tensor([0.0, -1.0, 0.0], dtype=torch.float64)) and frame.position == (0.0, 0.1, 0.0)
    assert [contact.name for contact in scene.contacts] == list(contacts)


class Hill(td.NonlinearContact):
    """Ground with a bump, but none within a meter of one edge."""

    def signed_distance(self, point):
        height = 0.5 * torch.exp(-point[..., :2].square().sum(-1))
        return torch.where(point[..., 0] > 2.0, 1.0, point[..., 2] - height)


class Broken(td.NonlinearContact):
    def signed_distance(self, point):
        assert point.ndim == 1, "one point at a time"
        return point[..., 2]


def test_sites_are_drawn_where_they_are_asked_for():
    mech = td.Mechanism({"ball": td.Body(1.0, shape=td.Sphere(0.2))})
    mech.sites.update(tip=td.Site("ball", (0.0, 0.1, 0.2)), post=td.Site(None, (1.0, 0.0, 0.0)))
    plain, marked = Scene.of(mech), Playback.of(mech, mech.initial_state()[None], sites=True).scene
    added = [part for part in marked.parts if part not in plain.parts]
    assert [(part.body, part.position, part.kind) for part in added] == [
        ("ball", (0.0, 0.1, 0.2), "sphere"), (None, (1.0, 0.0, 0.0), "sphere"),
    ]  # fmt: skip


def test_a_surface_of_the_users_own_is_drawn():
    contacts = {"one": Hill("ball", radius=0.1), "two": Hill("ball", point=(0.0, 0.0, 0.1)), "three": Broken("ball")}
    mech = td.Mechanism({"ball": td.Body(1.0, shape=td.Sphere(0.1))}, contacts=contacts)
    scene = Scene.of(mech)
    (hill,) = [part for part in scene.parts if part.role == "ground"]
    surface = scene.meshes[hill.mesh]
    x, y, z = surface.vertices.T
    assert np.abs(z - 0.5 * np.exp(-x * x - y * y)).max() < 1e-4 and x.max() == 2.0 and x.min() == -3.0
    a, b, c = (surface.vertices[surface.faces[:, i]] for i in range(3))
    assert (np.cross(b - a, c - a)[:, 2] > 0).all()


def test_environments_of_a_batch_with_parameters_of_their_own():
    size = torch.tensor([0.1, 0.2, 0.3], dtype=torch.float64)
    body = td.Body(torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64), inertia=(0.1, 0.1, 0.1), shape=td.Sphere(size))
    mech = td.Mechanism({"ball": body}, contacts={"skin": td.NonlinearContact("ball", radius=size)})
    z = mech.initial_state((3,), ball={"position": (0.0, 0.0, 0.4), "velocity": (1.0, 0.0, 0.0)})
    path = mech.rollout(z, steps=60)
    with pytest.raises(ValueError, match=r"batch \(3,\).*environment= \(0 to 2\)"):
        Playback.of(mech, path)
    for i, playback in enumerate(Playback.batch(mech, path)):
        assert playback.scene.parts[0].size == (float(size[i]),) and playback.label == str(i)
        assert playback.contact_forces[-1, 0, 2] == pytest.approx(9.81 * (i + 1), rel=1e-5)
        assert np.array_equal(playback.positions[:, 0], path.z[i, :, :3].detach().numpy())
        alone = Playback.of(mech, path, environment=i)
        assert all(np.array_equal(alone.curves[name], values, equal_nan=True) for name, values in playback.curves.items())
    assert [p.label for p in Playback.batch(mech, path, [2, 0], labels=["big", "small"])] == ["big", "small"]


def test_periods_bare_states_and_gaps():
    mech = td.models.make("sphere")
    z = td.models.initial_state("sphere", mech)
    periods = Playback.of(mech, mech.rollout(z, steps=3, repeat=4), repeat=4)
    assert np.allclose(periods.times, 4 * float(mech.timestep) * np.arange(4))
    states = mech.rollout(z, steps=4).z.detach().clone()
    states[2] = torch.nan
    bare = Playback.of(mech, states.numpy(), curves={"mine [m]": np.arange(5)})
    assert bare.contact_forces is None and "flagged" not in bare.curves and bare.curves["mine [m]"][4] == 4
    gaps = [np.isnan(bare.positions).all((1, 2)), np.isnan(bare.orientations).all((1, 2)), np.isnan(bare.curves["energy [J]"])]
    assert all(gap.tolist() == [False, False, True, False, False] for gap in gaps) and np.isfinite(bare.times).all()


@pytest.mark.parametrize(
    ("states", "options", "message"),
    [
        (torch.zeros(5, 26), {}, r"shape \(5, 26\).*1 bodies.*another mechanism"),
        (torch.zeros(13), {}, r"\(..., K, 13\)"),
        (torch.zeros(0, 13), {}, "0 frames"),
        (torch.zeros(2, 13), {"environment": 1}, "environment: got 1; allowed: 0 to 0"),
        (torch.zeros(2, 13), {"repeat": 0}, "repeat: got 0"),
        (torch.zeros(2, 13), {"curves": {"x": [1.0]}}, r"curve 'x'.*\(2,\)"),
    ],
)
def test_bad_trajectories(states, options, message):
    with pytest.raises(ValueError, match=message):
        Playback.of(td.models.make("sphere"), states, **options)
