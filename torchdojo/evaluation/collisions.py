"""Bodies that hit and carry each other: Newton's cradle, a stack of boxes, a bouncing ball."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from torchdojo import contacts_between
from torchdojo.elements.bodies import Body
from torchdojo.elements.contacts import ImpactContact, NonlinearContact
from torchdojo.evaluation import mujoco_reference as reference
from torchdojo.evaluation.experiment import (
    Line,
    Measurement,
    Outcome,
    Plot,
    Setting,
    flagged_steps,
    rivals_by_field,
    slug,
    smallest_distance,
)
from torchdojo.geometry.shapes import Box, Sphere
from torchdojo.mechanism import Mechanism
from torchdojo.solver.options import SolverOptions

__all__ = ["bouncing_ball", "box_stack", "newtons_cradle"]

GRAVITY = 9.81  # [m/s²]


# -- Newton's cradle -----------------------------------------------------------------------------------------------------------------------

BALLS, RADIUS, GAP, START = 5, 0.1, 1e-3, 5e-3  # balls of 1 kg; START: the way of the first ball before it hits [m]


def newtons_cradle(setting: Setting) -> Outcome:
    """The first of five balls in a row arrives at 1 m/s, and only the last should leave.

    The balls weigh 1 kg and are 1 mm apart, e = 1, without gravity. An impact passes the momentum on if it has a step of its own. A step
    may therefore last no longer than a ball needs for a gap, 1 ms. A longer step solves several impacts at once. Newton's law then has
    another answer, which keeps the momentum and loses energy; it is measured without a bound. While two balls are within a gap δ of each
    other, κ pushes them apart with κ/(δh) [N], hence kappa = 1e-10.
    """
    rows: list[Measurement] = []
    lines: dict[str, Line] = {}
    theirs = _mujoco_cradle(setting)
    for timestep in (1e-3,) if setting.quick else (10e-3, 2e-3, 1e-3, 0.5e-3):
        mech, z = _cradle(timestep)
        path = mech.rollout(z, steps=math.ceil(0.03 / timestep))
        speeds = path.z.unflatten(-1, (-1, 13))[..., 3]
        name = slug(f"{1e3 * timestep:g}_ms")
        rows += _cradle_rows(name, timestep, speeds, theirs)
        rows += [smallest_distance(mech.distances(path.z), name), flagged_steps(path.status, name=name)]
        time = 1e3 * timestep * np.arange(len(speeds))
        lines = {f"ball {i + 1}": Line(time, speeds[:, i]) for i in range(BALLS)}
    notes = [
        "MuJoCo has no coefficient of restitution: its defaults, and contacts as undamped springs (solref -1e6 0), both with h = 0.1 ms"
    ]
    plot = Plot("speeds", f"Newton's cradle, h = {1e3 * timestep:g} ms", "time [ms]", "speed [m/s]", lines)
    return Outcome(rows, [plot], notes=notes if theirs else [])


class _Cradle(NamedTuple):
    """Values at the end: error of the last ball's speed, speed of the fastest other ball [m/s], relative error of the energy."""

    last: float
    others: float
    energy: float

    @classmethod
    def from_speeds(cls, speeds: Tensor) -> _Cradle:
        """Errors of the final speeds (BALLS,) after the first ball has come at 1 m/s."""
        return cls(float((speeds[-1] - 1).abs()), float(speeds[:-1].abs().max()), float(((speeds**2).sum() - 1).abs()))


def _cradle_rows(name: str, timestep: float, speeds: Tensor, theirs: dict[str, _Cradle]) -> list[Measurement]:
    """Measurements of the speeds (T+1, BALLS); bounded if every impact has a step of its own."""
    final, mujoco = _Cradle.from_speeds(speeds[-1]), rivals_by_field(_Cradle, theirs)
    bound = 1e-3 if timestep <= GAP else None
    return [
        Measurement(
            f"{name}_last_speed_error", f"h = {1e3 * timestep:g} ms: last ball, speed against the first one's, relative error",
            final.last, at_most=bound, mujoco=mujoco["last"],
        ),
        Measurement(
            f"{name}_others_speed_m_per_s", "fastest of the others", final.others, "m/s", at_most=bound, mujoco=mujoco["others"]
        ),
        Measurement(f"{name}_momentum_error", "momentum, largest relative error", float((speeds.sum(-1) - 1).abs().max()), at_most=1e-9),
        Measurement(
            f"{name}_energy_error", "energy at the end, relative error", final.energy, at_most=bound, mujoco=mujoco["energy"]
        ),
    ]  # fmt: skip


def _cradle(timestep: float) -> tuple[Mechanism, Tensor]:
    balls = {f"ball{i}": Body(1.0, shape=Sphere(RADIUS)) for i in range(BALLS)}
    contacts = contacts_between(balls, model=ImpactContact, restitution=1.0, filter=_neighbors)
    mech = Mechanism(balls, (), contacts, timestep=timestep, gravity=(0.0, 0.0, 0.0), options=SolverOptions(kappa=1e-10))
    start: dict[str, Any] = {
        name: {"position": (x, 0.0, 0.0), "velocity": (float(x < 0), 0.0, 0.0)} for name, x in zip(balls, _places(), strict=True)
    }
    return mech, mech.initial_state(**start)


def _places() -> list[float]:
    """Positions of the balls [m]: the first is START to the left of zero, and the second is one diameter to the right of zero."""
    return [-START] + [2 * RADIUS * i + GAP * (i - 1) for i in range(1, BALLS)]


def _mujoco_cradle(setting: Setting) -> dict[str, _Cradle]:
    cradles: dict[str, _Cradle] = {}
    if setting.mujoco is not None:
        for label, extra in (("default", ""), ("undamped", ' solref="-1e6 0"')):
            balls = [((x, 0.0, 0.0), f'type="sphere" size="{RADIUS}" mass="1" condim="1"{extra}') for x in _places()]
            scene = reference.free_bodies_scene(balls, timestep=1e-4, gravity=(0.0, 0.0, 0.0))
            _, _, v = reference.simulate(setting.mujoco, scene, 3000, qvel=[1.0] + [0.0] * (6 * BALLS - 1))
            cradles[label] = _Cradle.from_speeds(torch.from_numpy(v[-1, ::6].copy()))
    return cradles


# -- a stack of boxes ----------------------------------------------------------------------------------------------------------------------

EDGE, STACK_FRICTION, STACK_KAPPA = 0.1, 0.6, 1e-8  # edge [m]
BEARING = 9  # contacts of one box on another: four corners of each box, and the nearest points


def box_stack(setting: Setting) -> Outcome:
    """Ten boxes (0.1 m, 1 kg) stand on each other for 5 s, each up to 0.5 mm beside its place.

    They start with gaps of 1 µm; h = 0.01 s, kappa = 1e-8. The boxes float at the gaps of the central path. Nine contacts that bear n boxes
    have the gap 9 κ/(n m g h), and all gaps under the top box add up to 2.6 µm. A settled box moves on only by creep. If a box lies beside
    the box below by more than a corner's radius, 2 mm, in both directions, their edges cross. Only the contact of the nearest points sees
    crossing edges (`contact_manifold`), and the box settles askew by some tenths of a mrad. A stack of ten with offsets of 3 mm moves by
    0.3 mm at its top.
    """
    count, seconds, timestep = (3, 0.5, 0.01) if setting.quick else (10, 5.0, 0.01)
    settling = 0.2 * seconds if setting.quick else 0.5  # [s]
    steps, settled = round(seconds / timestep), round(settling / timestep)
    mech, z = _stack(count, timestep)
    path = mech.rollout(z, steps=steps)
    place = path.z.unflatten(-1, (-1, 13))[..., :3]
    nominal = EDGE * (count - 0.5)
    top, side = place[:, -1, 2] - nominal, torch.linalg.vector_norm(place[:, -1, :2] - place[0, -1, :2], dim=-1)
    impulse = GRAVITY * timestep  # impulse of the weight of one box in a step [N·s]
    resting = STACK_KAPPA / impulse * (4 / count + sum(BEARING / above for above in range(1, count)))
    beyond = float((top[settled:] - resting).abs().max())
    theirs = _mujoco_stack(setting, place[0], timestep, steps, settled)
    mujoco = rivals_by_field(_Stack, theirs)
    drift, distance = float((top[settled:] - top[settled]).abs().max()), float(mech.distances(path.z).min())
    ours = _Stack(float(top[-1]), drift, float(side.max()), distance, top.numpy())
    stacks = {"torchdojo": ours, **{f"MuJoCo {cone}": stack for cone, stack in theirs.items()}}
    lines = {label: Line(timestep * np.arange(steps + 1), 1e3 * stack.path) for label, stack in stacks.items()}
    return Outcome(
        [
            Measurement(
                "top_height_m", f"{count} boxes, {seconds:g} s: height of the top box over hard boxes", ours.height, "m",
                at_least=0.0, mujoco=mujoco["height"],
            ),
            Measurement("predicted_height_m", "the same, predicted from kappa", resting, "m"),
            Measurement("height_beyond_gaps_m", "largest difference of the two, settled", beyond, "m", at_most=1e-6),
            Measurement(
                "top_sinks_m", f"top box, up or down after {settling:g} s", ours.drift, "m", at_most=1e-6, mujoco=mujoco["drift"]
            ),
            Measurement("top_sideways_m", "top box, sideways from the start", ours.side, "m", at_most=1e-6, mujoco=mujoco["side"]),
            Measurement("smallest_distance_m", "smallest distance", ours.distance, "m", at_least=0.0, mujoco=mujoco["distance"]),
            flagged_steps(path.status),
        ],
        [Plot("height", f"Stack of {count} boxes, h = {timestep:g} s", "time [s]", "top box above its place [mm]", lines)],
        {"sideways": side},
    )  # fmt: skip


class _Stack(NamedTuple):
    """Values of a stack [m]. The top box has a final height over hard boxes, and ways: up or down once settled, and sideways.

    The smallest distance is taken over all contacts; `path` has the height of the top box over time.
    """

    height: float
    drift: float
    side: float
    distance: float
    path: np.ndarray


def _stack(count: int, timestep: float) -> tuple[Mechanism, Tensor]:
    box = Box((EDGE,) * 3)
    bodies = {f"box{i}": Body(1.0, shape=box) for i in range(count)}
    contacts = contacts_between(bodies, friction=STACK_FRICTION, filter=_neighbors)
    for i, point in enumerate(box.contact_points()[0]):
        if point[2] < 0:
            contacts[f"foot{i}"] = NonlinearContact("box0", point=point, friction=STACK_FRICTION)
    # Creep is far below the default tolerance of 1e-9 m/s, so the equations must hold to a tighter one.
    options = SolverOptions(kappa=STACK_KAPPA, residual_tol=1e-12)
    mech = Mechanism(bodies, (), contacts, timestep=timestep, gravity=(0.0, 0.0, -GRAVITY), options=options)
    beside = 0.5e-3 * (2 * torch.rand(count, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64) - 1)
    start: dict[str, Any] = {}
    for i, name in enumerate(bodies):
        start[name] = {"position": (*beside[i].tolist(), EDGE * (i + 0.5) + 1e-6 * (i + 1))}
    return mech, mech.initial_state(**start)


def _mujoco_stack(setting: Setting, places: Tensor, timestep: float, steps: int, settled: int) -> dict[str, _Stack]:
    """The stack in MuJoCo, with box geoms on a plane, for both of its friction cones."""
    stacks: dict[str, _Stack] = {}
    if setting.mujoco is not None:
        geom = f'type="box" size="{EDGE / 2} {EDGE / 2} {EDGE / 2}" mass="1" friction="{STACK_FRICTION} 0 0" condim="3"'
        boxes = [((x, y, z), geom) for x, y, z in places.tolist()]
        for cone in ("pyramidal", "elliptic"):
            scene = reference.free_bodies_scene(
                boxes, timestep=timestep, gravity=(0.0, 0.0, -GRAVITY), cone=cone, floor=f'friction="{STACK_FRICTION} 0 0" condim="3"'
            )
            model, q, _ = reference.simulate(setting.mujoco, scene, steps)
            top = q[:, -7:-4]
            height, side = top[:, 2] - EDGE * (len(boxes) - 0.5), np.linalg.norm(top[:, :2] - top[0, :2], axis=-1)
            drift = np.abs(height[settled:] - height[settled]).max()
            distance = reference.geom_distances(setting.mujoco, model, q).min()
            stacks[cone] = _Stack(float(height[-1]), float(drift), float(side.max()), float(distance), height)
    return stacks


def _neighbors(a: str, b: str | None) -> bool:
    """Filter for `contacts_between`: each of up to ten bodies NAME0, NAME1, ... touches the next body."""
    return b is not None and abs(int(a[-1]) - int(b[-1])) == 1


# -- a bouncing ball -----------------------------------------------------------------------------------------------------------------------

HEIGHT = 1.0  # [m]


def bouncing_ball(setting: Setting) -> Outcome:
    """A ball (0.1 m, 1 kg) falls 1 m with e = 0, 0.3, 0.7 and 1 (h = 0.01 s, kappa = 1e-8). At e = 1 the third bounce reaches 1 m again.

    The ball turns in the step in which it would arrive, up to the way of a step (44 mm here) above the floor. At e = 1 it goes back the way
    that it came, so that apexes stay. At e < 1 an apex exceeds e² times the last apex by at most that height, and by less with shorter
    steps: shown for 0.7.
    """
    rows: list[Measurement] = []
    lines: dict[str, Line] = {}
    balls = {restitution: _bounces(restitution, 0.01) for restitution in (0.0, 0.3, 0.7, 1.0)}
    mujoco = _mujoco_bounces(setting)
    for restitution, ball in balls.items():
        name = slug(f"e_{restitution:g}")
        rows += [
            Measurement(f"{name}_ratio", f"e = {restitution:g}: speed after the first impact / before", ball.ratio, mujoco=mujoco),
            Measurement(f"{name}_ratio_error", "difference to e", abs(ball.ratio - restitution), at_most=1e-6),
            smallest_distance(ball.height, name),
            flagged_steps(ball.status, name=name),
        ]
        lines[f"e = {restitution:g}"] = Line(0.01 * np.arange(len(ball.height)), ball.height)
    error = abs(balls[1.0].apexes[2] - HEIGHT)
    rows.append(Measurement("e_1_third_apex_error_m", "e = 1: apex after the third bounce, error", error, "m", at_most=1e-6))
    for timestep, ball in ((0.01, balls[0.7]), (0.001, _bounces(0.7, 0.001))):
        above = timestep * math.sqrt(2 * GRAVITY * HEIGHT)  # way of a step at the speed of impact
        rows.append(
            Measurement(
                f"e_0_7_apex_{1e3 * timestep:g}_ms_m", f"e = 0.7, h = {1e3 * timestep:g} ms: apex after the first bounce (exact: 0.49 m)",
                ball.apexes[0], "m", at_least=0.49, at_most=0.49 + 0.51 * above,
            )
        )  # fmt: skip
    notes = [] if mujoco is None else ["MuJoCo has no coefficient of restitution; its figure belongs to its default contact"]
    return Outcome(rows, [Plot("height", "Ball dropped 1 m, h = 0.01 s", "time [s]", "height [m]", lines)], notes=notes)


class _Bounces(NamedTuple):
    """Heights over the floor (T+1,) [m], ratio of the speeds after and before the first impact, apexes after impacts [m], statuses."""

    height: Tensor
    ratio: float
    apexes: list[float]
    status: Tensor


def _bounces(restitution: float, timestep: float) -> _Bounces:
    contact = NonlinearContact("ball", radius=RADIUS, friction=0.5, restitution=restitution)
    options = SolverOptions(kappa=1e-8)
    mech = Mechanism(
        {"ball": Body(1.0, shape=Sphere(RADIUS))}, (), {"floor": contact}, timestep=timestep, gravity=(0.0, 0.0, -GRAVITY), options=options
    )
    start = mech.initial_state(ball={"position": (0.0, 0.0, RADIUS + HEIGHT)})
    path = mech.rollout(start, steps=round(3.5 / timestep))
    height, speed = path.z[:, 2] - RADIUS, path.z[:, 5]
    change = speed[1:] - speed[:-1]
    hits = (change > -0.5 * GRAVITY * timestep).nonzero().squeeze(
        -1
    ) + 1  # first samples after an impact, and all samples of a ball that lies
    ends = [*hits[1:].tolist(), len(height)]
    apexes = [float(height[first:end].max()) for first, end in zip(hits.tolist(), ends, strict=True)]
    first = int(hits[0])
    return _Bounces(height, float(-speed[first] / speed[first - 1]), apexes, path.status)


def _mujoco_bounces(setting: Setting) -> float | None:
    """Largest upward speed over the largest downward speed, with MuJoCo's default contact and h = 1 ms."""
    if setting.mujoco is None:
        return None
    ball = [((0.0, 0.0, RADIUS + HEIGHT), f'type="sphere" size="{RADIUS}" mass="1"')]
    scene = reference.free_bodies_scene(ball, timestep=1e-3, gravity=(0.0, 0.0, -GRAVITY), floor="")
    _, _, v = reference.simulate(setting.mujoco, scene, 1000)
    return float(-v[:, 2].max() / v[:, 2].min())
