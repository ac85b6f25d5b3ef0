"""Minimal and maximal coordinates, tangent maps and initial states."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import Tensor

import torchdojo as td
from torchdojo import quaternion as quat
from torchdojo.elements import joints as joint_types
from torchdojo.posing.loops import gaps

H = 0.01
NAMES = list(joint_types.JOINT_TYPES)
BATCHES = [(), (1,), (3, 4)]


def body() -> td.Body:
    return td.Body(mass=1.0, inertia=(0.1, 0.2, 0.25))


def random_joint(kind: str, parent: str | None, child: str) -> td.StandardJoint:
    return getattr(td, kind)(
        parent,
        child,
        axis=torch.randn(3),
        parent_anchor=torch.randn(3),
        child_anchor=torch.randn(3),
        orientation_offset=quat.normalize(torch.randn(4)),
    )


def tree(kind: str) -> td.Mechanism:
    """Three bodies: one on the world, one on that, a third on the world again, declared children first."""
    joints = {"b_c": random_joint(kind, "b", "c"), "w_b": random_joint(kind, None, "b"), "w_a": random_joint(kind, "world", "a")}
    return td.Mechanism({"a": body(), "b": body(), "c": body()}, joints, timestep=H)


def random_coordinates(mechanism: td.Mechanism, batch: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    # Rotation vectors below π, so that the shorter turn is the one meant; rates of order 1.
    return 0.8 * torch.randn(*batch, mechanism.num_coordinates).clamp(-1.5, 1.5), torch.randn(*batch, mechanism.num_coordinates)


def one_step_earlier(z: Tensor) -> Tensor:
    x, v, q, omega = z.unflatten(-1, (-1, 13)).split((3, 3, 4, 3), -1)
    return torch.cat((x - H * v, v, quat.multiply(q, quat.conjugate(quat.increment(omega, H))), omega), -1).flatten(-2)


@pytest.mark.parametrize("batch", BATCHES, ids=str)
@pytest.mark.parametrize("kind", NAMES)
def test_round_trip(kind: str, batch: tuple[int, ...]) -> None:
    mechanism = tree(kind)
    q, qd = random_coordinates(mechanism, batch)
    z = mechanism.to_maximal(q, qd)
    assert z.shape == (*batch, 39)
    back_q, back_qd = mechanism.to_minimal(z)
    assert back_q.shape == back_qd.shape == q.shape
    # Rounding of coordinates of order 10 m in the world, for the rates divided by h.
    torch.testing.assert_close(back_q, q, rtol=0, atol=1e-13)
    torch.testing.assert_close(back_qd, qd, rtol=0, atol=1e-11)
    torch.testing.assert_close(mechanism.to_maximal(back_q, back_qd), z, rtol=0, atol=1e-11)


@pytest.mark.parametrize("kind", NAMES)
def test_assembled_now_and_one_step_earlier(kind: str) -> None:
    mechanism = tree(kind)
    z = mechanism.to_maximal(*random_coordinates(mechanism, (20,)))
    # Rounding of positions of order 10 m.
    assert (mechanism.joint_errors(z).abs() <= 1e-12).all()
    assert (mechanism.joint_errors(one_step_earlier(z)).abs() <= 1e-12).all()
    norms = torch.linalg.vector_norm(z.unflatten(-1, (-1, 13))[..., 6:10], dim=-1)
    assert ((norms - 1).abs() <= 1e-14).all()


@pytest.mark.parametrize("kind", NAMES)
def test_coordinates_mean_what_they_say(kind: str) -> None:
    """One joint to the world without offsets: the body sits at the sum of free axes times coordinates, turned by the rotation vector."""
    joint = getattr(td, kind)(None, "a", axis=(0.3, -0.5, 0.8))
    mechanism = td.Mechanism({"a": body()}, {"j": joint}, timestep=H)
    q, qd = random_coordinates(mechanism, ())
    z = mechanism.to_maximal(q, qd)
    split = joint.free_translations
    torch.testing.assert_close(z[:3], q[:split] @ joint.free_translational_axes, rtol=0, atol=1e-14)
    torch.testing.assert_close(z[3:6], qd[:split] @ joint.free_translational_axes, rtol=0, atol=1e-12)
    turn = q[split:] @ joint.free_rotational_axes
    torch.testing.assert_close(quat.rotation_vector(z[6:10]), turn, rtol=0, atol=1e-14)


def test_gradients_of_the_maps() -> None:
    mechanism = tree("PlanarOrbital")
    q, qd = (value.requires_grad_() for value in random_coordinates(mechanism, ()))
    assert torch.autograd.gradcheck(mechanism.to_maximal, (q, qd))
    # Differences over h = 0.01 carry rounding of 1e-8 into finite differences.
    assert torch.autograd.gradcheck(lambda *args: mechanism.to_minimal(mechanism.to_maximal(*args)), (q, qd), atol=1e-5)
    at_rest = (torch.zeros_like(q).requires_grad_(), torch.zeros_like(qd).requires_grad_())
    assert torch.autograd.gradcheck(lambda *args: mechanism.to_minimal(mechanism.to_maximal(*args)), at_rest, atol=1e-5)


def test_random_trees_of_mixed_joints() -> None:
    kinds = [NAMES[i] for i in torch.randperm(16).tolist()]
    bodies = {f"b{i}": body() for i in range(16)}
    joints = {f"j{i}": random_joint(kind, f"b{int(torch.randint(i, ()))}" if i else None, f"b{i}") for i, kind in enumerate(kinds)}
    mechanism = td.Mechanism(bodies, joints, timestep=H)
    q, qd = random_coordinates(mechanism, (2,))
    z = mechanism.to_maximal(q, qd)
    # Anchors up to 10 joints away: ten times the rounding of the three-body trees.
    assert (mechanism.joint_errors(z).abs() <= 1e-12).all()
    back_q, back_qd = mechanism.to_minimal(z)
    torch.testing.assert_close(back_q, q, rtol=0, atol=1e-12)
    torch.testing.assert_close(back_qd, qd, rtol=0, atol=1e-10)


@pytest.mark.parametrize("batch", BATCHES, ids=str)
def test_retract_and_difference_are_inverse(batch: tuple[int, ...]) -> None:
    mechanism = tree("Floating")
    z = mechanism.to_maximal(*random_coordinates(mechanism, batch))
    delta = torch.randn(*batch, 36).clamp(-1.8, 1.8)  # turns below π: the shorter one is the one meant
    moved = mechanism.retract(z, delta)
    torch.testing.assert_close(mechanism.difference(moved, z), delta, rtol=0, atol=1e-13)  # rounding of order 10
    torch.testing.assert_close(mechanism.difference(z, z), torch.zeros_like(delta), rtol=0, atol=1e-15)
    quaternions = moved.unflatten(-1, (3, 13))[..., 6:10]
    assert ((torch.linalg.vector_norm(quaternions, dim=-1) - 1).abs() <= 1e-14).all()
    torch.testing.assert_close(mechanism.retract(z, mechanism.difference(moved, z)), moved, rtol=0, atol=1e-13)


def test_fixed_joints_beside_others() -> None:
    """A joint without coordinates starts in the vector where the next one does, and must not take its place."""
    joints = {"weld": td.Fixed("a", "b"), "hinge": td.Revolute(None, "a"), "end": td.Fixed("b", "c")}
    mechanism = td.Mechanism({"a": body(), "b": body(), "c": body()}, joints, timestep=H)
    q, qd = mechanism.to_minimal(mechanism.initial_state(hinge=dict(q=0.3, qd=1.0)))
    torch.testing.assert_close(q, torch.tensor([0.3]), rtol=0, atol=1e-15)
    torch.testing.assert_close(qd, torch.tensor([1.0]), rtol=0, atol=1e-13)


# -- loops ------------------------------------------------------------------------------------------------


def four_bar(ground: float = 1.0) -> td.Mechanism:
    """Crank, coupler and rocker of 1 m, hinges about y, the two on the ground `ground` apart along x; `pin` closes the loop."""

    def hinge(parent: str | None, child: str, parent_x: float, child_x: float = -0.5) -> td.Revolute:
        return td.Revolute(parent, child, axis=(0, 1, 0), parent_anchor=(parent_x, 0, 0), child_anchor=(child_x, 0, 0))

    joints = {
        "crank": hinge(None, "a", 0.0),
        "elbow": hinge("a", "b", 0.5),
        "rocker": hinge(None, "c", ground),
        "pin": hinge("b", "c", 0.5, 0.5),
    }
    return td.Mechanism({name: body() for name in "abc"}, joints, timestep=H)


def test_coordinates_of_loops_are_those_of_the_spanning_tree() -> None:
    mechanism = four_bar()
    assert mechanism.tree_joints == ["crank", "elbow", "rocker"]
    assert mechanism.num_coordinates == 3
    q, qd = torch.tensor([-0.7, 0.7, -0.7]), torch.tensor([0.3, -0.2, 0.1])  # a parallelogram
    assert (mechanism.joint_errors(mechanism.to_maximal(q)).abs() <= 1e-15).all()
    torch.testing.assert_close(mechanism.to_minimal(mechanism.to_maximal(q, qd)), (q, qd), rtol=0, atol=1e-13)


def test_a_later_joint_is_of_the_tree_where_the_first_ones_form_a_ring() -> None:
    joints = {"ab": td.Revolute("b", "a"), "ba": td.Revolute("a", "b"), "ground": td.Revolute(None, "b")}
    mechanism = td.Mechanism({"a": body(), "b": body()}, joints)
    assert mechanism.tree_joints == ["ab", "ground"]
    z = mechanism.initial_state(ground=dict(q=0.4))
    assert (mechanism.joint_errors(z).abs() <= 1e-12).all()
    torch.testing.assert_close(mechanism.to_minimal(z)[0], torch.tensor([0.0, 0.4]), rtol=0, atol=1e-12)


def test_user_written_joints_may_close_loops() -> None:
    mechanism = td.Mechanism({"a": body()}, {"weld": Weld(None, "a"), "free": td.Floating(None, "a")})
    assert mechanism.tree_joints == ["free"]
    turn = torch.tensor([0.1, 0.2, 0.3])
    z = mechanism.close_loops(mechanism.initial_state(free=dict(q=torch.tensor([0.0, 0, 0, 0.1, 0.2, 0.3]))))
    torch.testing.assert_close(mechanism.to_minimal(z)[0], torch.cat((torch.zeros(3), turn)), rtol=0, atol=1e-12)


@pytest.mark.parametrize("batch", [(), (3,)])
def test_initial_state_closes_loops_with_what_is_not_given(batch: tuple[int, ...]) -> None:
    mechanism = four_bar(ground=1.2)  # open by 0.2 m at coordinate zero
    angle, rate = -1.0 - 0.2 * torch.rand(*batch, 1), torch.randn(*batch, 1)
    z = mechanism.initial_state(batch, crank=dict(q=angle, qd=rate))
    q, qd = mechanism.to_minimal(z)
    assert (mechanism.joint_errors(z).abs() <= 1e-9).all()
    torch.testing.assert_close((q[..., :1], qd[..., :1]), (angle, rate), rtol=0, atol=1e-12)


@pytest.mark.parametrize("batch", [(), (3,)])
def test_close_loops_holds_what_it_is_told(batch: tuple[int, ...]) -> None:
    mechanism = four_bar(ground=1.2)
    q = torch.tensor([-1.0, 1.0, -1.0]) + 0.1 * torch.randn(*batch, 3)
    qd = torch.randn(*batch, 3)
    z = mechanism.close_loops(mechanism.to_maximal(q, qd), hold=["crank"])
    assert (mechanism.joint_errors(z).abs() <= 1e-9).all()
    assert (mechanism.joint_errors(one_step_earlier(z)).abs() <= 1e-9).all()  # so do the velocities
    closed, rates = mechanism.to_minimal(z)
    torch.testing.assert_close((closed[..., 0], rates[..., 0]), (q[..., 0], qd[..., 0]), rtol=0, atol=1e-12)
    assert ((closed - q).abs() < 0.5).all()  # the same branch
    torch.testing.assert_close(mechanism.close_loops(z), z, rtol=0, atol=1e-12)


def test_closing_a_stretched_loop() -> None:
    mechanism = four_bar()  # all rods on one line at coordinate zero: a singular configuration, with redundant rows
    z = mechanism.initial_state()
    torch.testing.assert_close(mechanism.to_minimal(z)[0], torch.zeros(3), rtol=0, atol=0)
    z = mechanism.initial_state(crank=dict(q=0.3))
    assert (mechanism.joint_errors(z).abs() <= 1e-9).all()


@pytest.mark.slow
def test_gradients_of_closed_states() -> None:
    """To given coordinates and rates, and to the parameters of the loop, where nothing else is free."""
    mechanism = four_bar(ground=1.2)
    anchor = mechanism.joints["pin"].parent_anchor

    def state(q: Tensor, qd: Tensor, shift: Tensor) -> Tensor:
        mechanism.joints["pin"].parent_anchor = anchor + shift * torch.tensor([1.0, 0.0, 0.5])
        start = dict(crank=dict(q=q, qd=qd), elbow=dict(), rocker=dict())
        return mechanism.initial_state(**start)

    inputs = [torch.tensor(value, requires_grad=True) for value in (-1.1, 0.7, 0.05)]
    assert torch.autograd.gradcheck(state, inputs, eps=1e-6, atol=1e-6, rtol=1e-6)
    # on the loop, the gradient to z is a projection
    z = state(*inputs).detach().requires_grad_()
    jacobian = torch.autograd.functional.jacobian(mechanism.close_loops, z)
    torch.testing.assert_close(jacobian @ jacobian, jacobian, rtol=0, atol=1e-8)
    moved = state(torch.tensor(-1.1 + 1e-6), *inputs[1:]).detach()
    torch.testing.assert_close(jacobian @ (moved - z) * 1e6, (moved - z) * 1e6, rtol=0, atol=1e-4)


def test_closing_a_straight_chain_that_is_too_long() -> None:
    mechanism = four_bar(ground=0.7)  # no first-order change of coordinate zero brings the ends together
    z = mechanism.initial_state((2,), crank=dict(qd=0.5))
    assert (mechanism.joint_errors(z).abs() <= 1e-9).all()
    assert (mechanism.joint_errors(one_step_earlier(z)).abs() <= 1e-9).all()


@pytest.mark.slow
def test_loops_that_cannot_close_say_by_how_much() -> None:
    mechanism = four_bar(ground=5.0)  # rods of 3 m do not reach
    with pytest.raises(ValueError, match=r"cannot be closed at these joint coordinates: .*joint 'pin' by 2 m and 0 rad stays open"):
        mechanism.initial_state(rocker=dict(q=3.1))
    with pytest.raises(ValueError, match=r"next to this state: .*'pin' by [2-4][.\d]* m and 0 rad"):
        mechanism.close_loops(mechanism.to_maximal(torch.zeros(3)))
    with pytest.raises(ValueError, match=r"joint 'pin' closes a loop, and its coordinates follow.*\['crank', 'elbow', 'rocker'\]"):
        mechanism.initial_state(pin=dict(q=0.1))
    with pytest.raises(ValueError, match=r"close_loops: hold names 'pin'; allowed: \['crank', 'elbow', 'rocker'\]"):
        mechanism.close_loops(mechanism.to_maximal(torch.zeros(3)), hold="pin")
    rates = dict(crank=dict(q=-1.0, qd=1.0), elbow=dict(qd=1.0), rocker=dict(qd=1.0))
    with pytest.raises(ValueError, match=r"loops are closed at these joint coordinates, but no velocities with the given ones keep"):
        four_bar(ground=1.2).initial_state(**rates)


@pytest.mark.slow
def test_trainable_loop_joints_do_not_make_torch_warn() -> None:
    """The size of a gap is a number for a message, so no gradient goes through it."""
    for ground in (1.2, 5.0):
        mechanism = four_bar(ground)
        pin = mechanism.joints["pin"]
        anchor = pin.parent_anchor
        del pin.parent_anchor
        pin.parent_anchor = torch.nn.Parameter(anchor)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            if ground == 5.0:
                with pytest.raises(ValueError, match=r"joint 'pin' by 2 m and 0 rad stays open"):
                    mechanism.initial_state(rocker=dict(q=3.1))
                continue
            z = mechanism.initial_state(crank=dict(q=-1.1))
            assert z.requires_grad
            (gap,) = gaps(mechanism, z).values()
            assert max(gap) <= 1e-9
            assert mechanism.close_loops(z).requires_grad


# -- what cannot be done ----------------------------------------------------------------------------------


def test_detached_cycle_raises_and_names_the_bodies() -> None:
    joints = {"j1": td.Revolute("b", "a"), "j2": td.Revolute("a", "b")}
    with pytest.raises(ValueError, match=r"no chain of joints connects the world.*'a', 'b'"):
        td.Mechanism({"a": body(), "b": body()}, joints).initial_state()


class Weld(td.Joint):
    num_rows = 3

    def constraint(self, parent: Any, child: Any) -> Tensor:
        return child.x - parent.x


def test_user_written_joints_without_coordinates_close_loops() -> None:
    mechanism = td.Mechanism({"a": body()}, {"weld": Weld(None, "a")})
    assert mechanism.tree_joints == ["world_to_a"] and mechanism.num_coordinates == 6
    turned = mechanism.initial_state(world_to_a=dict(q=(1, 2, 3, 0, 0, 0.5), qd=(0, 0, 0, 0, 0, 1)))
    assert float(mechanism.joint_errors(turned).abs().max()) < 1e-9


# -- initial states ---------------------------------------------------------------------------------------


def cart() -> td.Mechanism:
    joints = {
        "rail": td.Prismatic(None, "cart", axis=(1, 0, 0)),
        "hinge": td.Revolute("cart", "pole", axis=(0, 1, 0), child_anchor=(0, 0, -0.5)),
    }
    return td.Mechanism({"cart": body(), "pole": body(), "ball": body()}, joints, timestep=H)


def test_initial_state_by_joint_and_by_body() -> None:
    mechanism = cart()
    turned = quat.exp(torch.tensor([0.0, 0.0, 1.0]))
    z = mechanism.initial_state(
        rail=dict(q=0.5, qd=-1.0),
        hinge=dict(q=[0.3]),
        ball=dict(position=(1, 2, 3), velocity=(4, 5, 6), orientation=turned, angular_velocity=(7, 8, 9)),
    )
    q, qd = mechanism.to_minimal(z)
    torch.testing.assert_close(q[:2], torch.tensor([0.5, 0.3]), rtol=0, atol=1e-15)
    torch.testing.assert_close(qd[:2], torch.tensor([-1.0, 0.0]), rtol=0, atol=1e-13)
    torch.testing.assert_close(z[26:], torch.cat((torch.arange(1.0, 7), turned, torch.arange(7.0, 10))), rtol=0, atol=0)
    torch.testing.assert_close(mechanism.initial_state(), mechanism.to_maximal(torch.zeros(8)), rtol=0, atol=0)


@pytest.mark.parametrize("shape", [(), (4,)], ids=str)
def test_bodies_that_hang_on_a_free_body_move_along(shape: tuple[int, ...]) -> None:
    """A trunk with a chain and a ring of two legs, placed by name: no joint is torn, at the state and one step before."""
    joints: dict[str, td.Joint] = {"hip": random_joint("Revolute", "trunk", "thigh"), "knee": random_joint("Spherical", "thigh", "shank")}
    joints |= {f"to_{name}": td.Revolute("trunk", name, axis=(0, 1, 0), child_anchor=(0, 0, 0.5)) for name in ("left", "right")}
    joints["rod"] = td.Spherical("left", "right", parent_anchor=(0, 0, -0.5), child_anchor=(0, 0, -0.5))
    mechanism = td.Mechanism({name: body() for name in ("trunk", "thigh", "shank", "left", "right")}, joints, timestep=H)
    place = {"position": torch.randn(*shape, 3), "orientation": quat.normalize(torch.randn(4))}
    place |= {"velocity": torch.randn(3), "angular_velocity": torch.randn(*shape, 3)}
    z = mechanism.initial_state(trunk=place, hip=dict(q=0.4, qd=-1.0), to_left=dict(q=0.3, qd=0.5))
    given = torch.cat(
        [value.expand(*shape, -1) for value in (place[k] for k in ("position", "velocity", "orientation", "angular_velocity"))], -1
    )
    assert torch.equal(z[..., :13], given)
    for state in (z, one_step_earlier(z)):
        assert float(mechanism.joint_errors(state).abs().max()) < 1e-9
    q, qd = mechanism.to_minimal(z)
    names = mechanism.tree_joints
    assert names[:2] == ["hip", "knee"]
    torch.testing.assert_close(q[..., 0], torch.full(shape, 0.4))
    torch.testing.assert_close(qd[..., 0], torch.full(shape, -1.0))


@pytest.mark.parametrize(
    ("batch", "value"),
    [((3, 4), 0.3), ((), torch.linspace(0, 1, 5)), ((5,), torch.linspace(0, 1, 5)[:, None]), ((2, 5), torch.linspace(0, 1, 5))],
    ids=["number", "from value", "column", "broadcast"],
)
def test_initial_state_batches_broadcast(batch: tuple[int, ...], value: Any) -> None:
    z = cart().initial_state(batch, hinge=dict(q=value))
    expected = torch.as_tensor(value)
    expected = expected.squeeze(-1) if expected.ndim > 1 else expected
    assert z.shape == (*torch.broadcast_shapes(batch, expected.shape), 39)
    torch.testing.assert_close(cart().to_minimal(z)[0][..., 1], expected.expand(z.shape[:-1]), rtol=0, atol=1e-15)


def test_initial_state_is_differentiable() -> None:
    angle = torch.tensor(0.3, requires_grad=True)
    assert torch.autograd.gradcheck(lambda a: cart().initial_state(hinge=dict(q=a)), angle)


INITIAL_STATE_ERRORS = {
    "unknown_name": (dict(wheel=dict(q=0.0)), r"'wheel'.*'rail'.*'hinge'.*'ball'"),
    "jointed_body": (dict(pole=dict(position=(0, 0, 0))), r"unknown name 'pole'.*'rail'"),
    "key_of_a_body": (dict(hinge=dict(position=(0, 0, 0))), r"'hinge' got 'position'; allowed: \['q', 'qd'\]"),
    "key_of_a_joint": (dict(ball=dict(q=(0, 0, 0))), r"'ball' got 'q'; allowed: \['position'"),
    "wrong_size": (dict(ball=dict(position=(0, 0))), r"ball\.position got shape \(2,\); allowed: .*3"),
}


@pytest.mark.parametrize("name", INITIAL_STATE_ERRORS)
def test_initial_state_errors(name: str) -> None:
    values, message = INITIAL_STATE_ERRORS[name]
    with pytest.raises(ValueError, match=message):
        cart().initial_state(**values)


GEOMETRY = {
    "timestep": lambda m, s: setattr(m, "timestep", s * H),
    "anchor": lambda m, s: setattr(m.joints["b_c"], "child_anchor", s[:, None] * m.joints["b_c"].child_anchor),
    "axis": lambda m, s: setattr(m.joints["w_a"], "axis", torch.stack((s, 0 * s, s - 0.5), -1)),
    "offset": lambda m, s: setattr(m.joints["w_b"], "orientation_offset", quat.normalize(torch.stack((s, s - 0.9, 0 * s, s), -1))),
}


@pytest.mark.parametrize("name", GEOMETRY)
def test_batched_geometry_needs_no_batch_of_coordinates(name: str) -> None:
    mechanism, scales = tree("Cylindrical"), torch.tensor([0.8, 1.0, 1.2])
    q, qd = random_coordinates(mechanism, ())
    GEOMETRY[name](mechanism, scales)
    z = mechanism.to_maximal(q, qd)
    assert z.shape == (3, 39)
    torch.testing.assert_close(z, mechanism.to_maximal(q.expand(3, -1), qd.expand(3, -1)), rtol=0, atol=1e-12)
    back = mechanism.to_minimal(z)
    # Rates divide rounding by the timestep.
    torch.testing.assert_close(back[0], q.expand(3, -1), rtol=0, atol=1e-12)
    torch.testing.assert_close(back[1], qd.expand(3, -1), rtol=0, atol=1e-10)
    assert mechanism.initial_state().shape == (3, 39) and mechanism.initial_state((2, 1), w_a=dict(q=(0.1, 0.2))).shape == (2, 3, 39)
    with pytest.raises(ValueError, match=r"q: got the batch dimensions \(2,\); allowed: those that broadcast with \{.*\(3,\)\}"):
        mechanism.to_maximal(q.expand(2, -1), qd.expand(2, -1))


def test_initial_state_takes_numbers_and_sizes() -> None:
    mechanism = td.models.pendulum()
    joint = mechanism.tree_joints[0]
    expected = mechanism.initial_state((), **{joint: dict(q=0.3)})
    assert torch.equal(mechanism.initial_state(**{joint: 0.3}), expected)
    assert torch.equal(mechanism.initial_state(**{joint: torch.tensor([0.3])}), expected)
    assert torch.equal(mechanism.initial_state(4, **{joint: [0.3]}), expected.expand(4, -1))


def test_state_of_a_body_by_name() -> None:
    mechanism = tree("Revolute")
    z = mechanism.to_maximal(*random_coordinates(mechanism, (2,)))
    for i, name in enumerate(mechanism.bodies):
        state = mechanism.body_state(z, name)
        assert torch.equal(torch.cat(state, -1), z[:, 13 * i : 13 * (i + 1)])
        assert [part.shape[-1] for part in state] == [3, 3, 4, 3] and state._fields == ("x", "v", "q", "omega")
    assert mechanism.body_state(z.float(), "a").x.dtype == torch.float32


def test_representation_names_parts_numbers_and_places() -> None:
    lines = repr(td.models.cartpole()).splitlines()
    assert lines[0] == "Mechanism: 2 bodies, 2 joints, 0 contacts, 0 couplings, 0 tendons; q has 2 numbers, u has 1, timestep 0.01 s"
    assert lines[2] == "  body pole: Body(mass=1, inertia=[0.1025, 0.1025, 0.002761])"
    assert lines[3] == "  joint slider: Prismatic(world -> cart, 1 coordinate, 1 input, axis=[0, 1, 0]) q[0:1] u[0:1]"
    mechanism = td.models.box()
    mechanism.bodies["box"].mass = torch.ones(4, 1)
    text = repr(mechanism)
    assert (
        "Body(mass=<4 x 1>" in text and "NonlinearContact(box on world, point=[0.25, 0.25, 0.25], normal=[0, 0, 1], friction=0.8)" in text
    )
