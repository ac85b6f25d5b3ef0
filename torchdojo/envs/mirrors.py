"""Reflections of robots in the plane between left and right, found from the mechanism and checked by a step."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from torchdojo import quaternion as quat
from torchdojo.envs.motion import Motion
from torchdojo.mechanism import Mechanism
from torchdojo.state.layout import STATE_SIZE

if TYPE_CHECKING:
    from torchdojo.envs.env import Env

__all__ = ["Mirror", "find_mirror", "find_sides"]

NEAR = 0.03  # by which images may miss each other, relative to the size of the robot, and to masses and rates
SAMPLES = 6  # states in which observations and a step are compared
SPREAD = 0.1  # of their coordinates [m, rad], rates and actions
SAME = 0.03  # between the observation of a motion and that of its image, relative to the largest number: as `NEAR`
SLOW = 1e-5  # rates of coordinates whose velocities are compared [m/s, rad/s]
STEP = (
    0.05  # between the rates after a control step and those of the image, relative to their largest change: left and right differ a little
)


class Mirror(NamedTuple):
    """Reflection in the plane between left and right, as matrices of ones, minus ones and zeros: ``obs @ mirror.obs.mT``.

    obs: (num_obs, num_obs). action: (num_actions, num_actions). Both are their own inverses.
    """

    obs: Tensor
    action: Tensor


@torch.no_grad()
def find_mirror(env: Env, center: Tensor | None = None, memory: Callable[[Tensor], Tensor] | None = None) -> Mirror:
    """The reflection y → −y of an environment's observations and actions: ``def mirror(self): return find_mirror(self)``.

    Each body's image is the body of the same mass at the reflected place. Where several fit, as both legs of a planar robot in its plane,
    it is another one. From these follow the images of coordinates, actions and numbers of the observation, which are compared in random
    states. Goals stay, but for a velocity command (forward, sideways, turning), of which two numbers change their signs.

    Args:
        center: coordinates of a symmetric pose (num_coordinates,); None: of the mechanism's initial state.
        memory: the image of memories (B, m), whose entries are shares from 0 to 1: half a turn more, for the phase of a clock by which
            the left does what the right did before. None: the environment has no memory.

    Raises:
        ValueError: bodies, coordinates, actions or numbers of the observation without an image, or a control step that is not mirrored.
    """
    with contextlib.nullcontext() if env.ground is None else env.ground.level():
        return _find_mirror(env, center, memory)


def _find_mirror(env: Env, center: Tensor | None, memory: Callable[[Tensor], Tensor] | None) -> Mirror:
    name, mech = env.name or type(env).__name__, env.mech
    if env.driving is not None:
        raise ValueError(f"mirror of {name}: got drives, whose images are not known; allowed: actuators; write mirror() by hand")
    carried = env.state.memory.shape[-1]
    if env.observe_impulses or env.instruments is not None or (carried and memory is None):
        raise ValueError(
            f"mirror of {name}: got observed impulses, sensors or a memory; allowed: neither impulses nor sensors, and memories whose "
            "image is given, find_mirror(..., memory=); or write mirror() by hand"
        )
    home = mech.to_minimal(mech.initial_state())[0] if center is None else center
    turn = _coordinates(mech, home, name)
    act = _actions(mech, turn, name)
    spread, count = SPREAD * torch.ones(SAMPLES, 1, dtype=torch.float64), len(home)
    generator = torch.Generator().manual_seed(0)
    q, qd, action = (spread * torch.randn(SAMPLES, size, generator=generator, dtype=torch.float64) for size in (count, count, len(act)))
    q, goal = q + home, env.state.goal[:1].expand(SAMPLES, -1)
    flip = torch.ones(goal.shape[-1], dtype=torch.float64)
    if getattr(env, "velocity_command", None) is not None:
        flip[1:3] = -1.0
        goal = goal + 1.0
    share = torch.rand(SAMPLES, carried, generator=generator, dtype=torch.float64)
    image = share if memory is None else memory(share)
    motions = []
    sides = (q, qd, action, goal, share), (q @ turn.mT, qd @ turn.mT, action @ act.mT, goal * flip, image)
    for coordinates, rates, command, way, kept in sides:
        motions.append(_motion(env, mech.to_maximal(coordinates, rates), way)._replace(action=command, memory=kept))
    ours, theirs = (env.observe(motion) for motion in motions)
    obs = _signed(ours, theirs, SAME, f"mirror of {name}: the observation's")
    if env.ground is not None:
        obs = torch.block_diag(obs, env.ground.image())
    after = [mech.to_minimal(env.advance(motion, motion.action, None).z)[1] for motion in motions]
    change = float((after[0] - qd).abs().max())
    miss = float((after[0] @ turn.mT - after[1]).abs().max())
    if not miss <= STEP * change:
        raise ValueError(
            f"mirror of {name}: got a control step whose image misses the step of the image by {miss:.2g} of changes up to {change:.2g}; "
            f"allowed: {STEP:g} of them; the robot's left is not the image of its right, so train with symmetric: false"
        )
    return Mirror(obs, act)


@torch.no_grad()
def find_sides(mech: Mechanism, home: Tensor, name: str) -> tuple[list[int], Tensor]:
    """Places of the driven coordinates among all (nu,), and the signed permutation of them under y → −y (nu, nu).

    Args:
        home: coordinates of a symmetric pose (num_coordinates,). name: of the robot, for errors.

    Raises:
        ValueError: bodies, coordinates or motors without an image.
    """
    turn = _coordinates(mech, home, name)
    return _driven(mech), _actions(mech, turn, name)


def _driven(mech: Mechanism) -> list[int]:
    """Places of the driven coordinates among all."""
    motors, places = mech.actuators, mech.coordinate_places()
    assert motors is not None
    return [places[joint].start + coordinate for joint, coordinate in zip(motors.joints, motors.coordinates, strict=True)]


def _motion(env: Env, z: Tensor, goal: Tensor) -> Motion:
    """States before any action, without impulses and memory."""
    none = z.new_zeros(len(z), 0)
    rest = z.new_zeros(len(z), env.num_actions), goal, none, none, none
    return Motion(z, z[..., :STATE_SIZE], *env.mech.to_minimal(z), *rest, torch.zeros(len(z), dtype=torch.int64))


def _coordinates(mech: Mechanism, home: Tensor, name: str) -> Tensor:
    """The signed permutation of coordinates (n, n): that of rates whose velocities of all bodies are the reflected ones."""
    count = len(home)
    # Velocities are those of a step backward, which are linear in small rates alone.
    z = mech.to_maximal(home.expand(count, -1), SLOW * torch.eye(count, dtype=torch.float64)).unflatten(-1, (-1, STATE_SIZE))
    place = z[0, :, :3]
    images = _bodies(mech, place, name)
    flip = place.new_tensor((1.0, -1.0, 1.0))
    # velocities of centers of mass, and angular velocities in the frame of the world, which are pseudo-vectors
    turned = quat.rotate(z[..., 6:10], z[..., 10:13])
    moving = torch.cat((z[..., 3:6], turned), -1).flatten(1)
    reflected = torch.cat((flip * z[:, images, 3:6], -flip * turned[:, images]), -1).flatten(1)
    solved = torch.linalg.lstsq(moving.mT, reflected.mT).solution  # column k: the rates that move all bodies as the image of rate k
    turn = solved.round()
    size = float(moving.abs().max())
    wrong = ((moving.mT @ turn - reflected.mT).abs().amax(0) > NEAR * size) | (turn.abs().sum(0) != 1)
    if bool(wrong.any()) or not torch.equal(turn @ turn, torch.eye(count, dtype=torch.float64)):
        names = [joint for joint, place in mech.coordinate_places().items() if bool(wrong[place].any())]
        raise ValueError(
            f"mirror of {name}: got coordinates without an image, of {', '.join(names) or 'its joints'}; allowed: joints whose axes are "
            "mirrored in y = 0; train with symmetric: false"
        )
    if not bool((turn @ home - home).abs().max() < NEAR):
        raise ValueError(f"mirror of {name}: got a pose that is not its own image, {home.tolist()}; allowed: a symmetric one; give center=")
    return turn


def _bodies(mech: Mechanism, place: Tensor, name: str) -> list[int]:
    """The image of each body."""
    masses = torch.stack([torch.as_tensor(body.mass).reshape(()) for body in mech.bodies.values()]).double()
    size = float((place - place.mean(0)).norm(dim=-1).max()) + NEAR
    flipped = place * place.new_tensor((1.0, -1.0, 1.0))
    apart = torch.cdist(flipped, place) / size
    fits = (apart < NEAR) & ((masses[:, None] - masses).abs() <= NEAR * masses)
    images = []
    for i, (body, row) in enumerate(zip(mech.bodies, fits, strict=True)):
        partners = [j for j in row.nonzero().flatten().tolist() if j != i] or ([i] if bool(row[i]) else [])
        if not partners:
            raise ValueError(
                f"mirror of {name}: got body {body!r} at {[round(x, 4) for x in place[i].tolist()]} without an image of the same mass at "
                "−y; allowed: robots that are symmetric about y = 0; train with symmetric: false"
            )
        images.append(partners[0])
    return images


def _actions(mech: Mechanism, turn: Tensor, name: str) -> Tensor:
    """The signed permutation of controls: that of the coordinates which they drive."""
    motors, driven = mech.actuators, _driven(mech)
    assert motors is not None
    act = turn[driven][:, driven]
    if not bool((act.abs().sum(0) == 1).all()):
        bad = [motor for motor, row in zip(motors.names, act, strict=True) if float(row.abs().sum()) != 1.0]
        raise ValueError(f"mirror of {name}: got motors without an image: {', '.join(bad)}; allowed: motors on both sides")
    return act


def _signed(ours: Tensor, theirs: Tensor, tolerance: float, what: str) -> Tensor:
    """The signed permutation M with ``theirs = ours @ M.mT``; numbers that never change are their own images."""
    count = ours.shape[-1]
    result = ours.new_zeros(count, count)
    for i in range(count):
        errors = torch.stack([(theirs[:, i, None] - sign * ours).abs().amax(0) for sign in (1.0, -1.0)])
        errors[0, i] *= 0.5  # itself, where several are alike
        sign, j = divmod(int(errors.argmin()), count)
        if not float(errors[sign, j]) <= tolerance * max(1.0, float(ours.abs().max())):
            raise ValueError(
                f"{what} number {i} has no image, it misses the nearest by {float(errors.min()):.2g}; allowed: observations whose numbers "
                "are those of the mirrored robot or their negatives; write mirror() by hand"
            )
        result[i, j] = 1.0 - 2.0 * sign
    if not torch.equal(result @ result, torch.eye(count, dtype=result.dtype)):
        raise ValueError(f"{what} numbers have no images in pairs; allowed: a reflection, its own inverse; write mirror() by hand")
    return result
