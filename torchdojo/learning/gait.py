"""The gait of a trained robot in numbers, and in words: what one would not call a gait is said to be none.

Definitions. Means are over control steps of all episodes before they end, from `settle` seconds on. Contacts bear load where their normal
force is above 5 % of the robot's weight, so that central-path forces at a distance do not count.

    distance           of the root in the plane, as the sum of straight lines of 1 s, so that sway does not count but a curve does [m]
    power              positive mechanical work of the motors over time, Σ max(τ q̇, 0) [W]
    cost of transport  positive work / (m g distance), the mechanical cost of Collins et al. 2005, Science 307, 1082
    torque beyond      share of joint-steps whose torque is above 99 % of that of the model's motor, so that a motor at its limit counts
    slip               mean slip speed of loaded contacts, weighted with their normal force, integrated, per distance: a sliding box has 1
    duty factor        share of time that a foot bears load; below a half a gait is a run (Alexander 1984, Int. J. Robotics Res. 3(2))
    stride, regularity lag and value of the first high peak of the normalized square difference of the motors' angles
                       (McLeod & Wyvill 2005), 1 for a periodic motion
    asymmetry          of mirrored joints: min over lags of Σ (q_left(t) − q_right(t + lag))² / Σ (variances): 0 for mirror images in any
                       phase, 1 for motions that have nothing to do with each other, more where postures differ, too
    duty asymmetry     largest |d_left − d_right| / mean d of mirrored feet
    action change      mean of |a(t) − a(t−1)|² per joint; saturated: share of actions beyond ±0.99, clipped or nearly so
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor

from torchdojo import quaternion as quat
from torchdojo.elements.bodies import Body
from torchdojo.envs import Env
from torchdojo.learning.motors import actuators, efforts, places, torques
from torchdojo.learning.rollouts import Evaluation, Recording
from torchdojo.mechanism import Mechanism
from torchdojo.state.layout import split_state

__all__ = ["FAULTS", "GAIT", "NO_GAIT", "GaitReport", "gait_report", "mirrored"]

LOADED = 0.05  # of the weight: contacts that push less bear no load
FOOT = 0.05  # of the load: bodies that bear less are no feet
IDLE = 0.02  # of the time: legs that bear load for less are not used
STRIDES = (0.1, 2.5)  # shortest and longest stride [s]
STILL = 0.02  # root mean square of the motors' angles [rad] below which nothing swings


@dataclass(frozen=True, kw_only=True)
class GaitReport:
    """Numbers of a gait, defined at the head of this file; None where the robot or the motion has no such number.

    speed [m/s] along x and survival are those of the evaluation. travel: distance over time [m/s]. froude: travel / √(g height).
    height, height_deviation: mean and standard deviation of the root [m]. power, absolute_power [W]. stride_frequency [Hz].
    feet: duty factor by body. flight: share of time without a loaded contact. dragged: share of the load on the root itself.
    idle: bodies that bear no load, though their mirror images are feet.
    """

    speed: float
    survival: float
    travel: float
    froude: float | None
    height: float
    height_deviation: float
    power: float
    absolute_power: float
    cost_of_transport: float | None
    torque_beyond: float | None
    slip: float | None
    stride_frequency: float | None
    regularity: float | None
    duty_factor: float | None
    flight: float | None
    dragged: float | None
    asymmetry: float | None
    duty_asymmetry: float | None
    action_change: float
    saturated: float
    feet: dict[str, float] = field(default_factory=dict)
    idle: tuple[str, ...] = ()

    @property
    def verdict(self) -> str:
        """ "no gait: ..." with the reasons, or "walk" or "run" with what is wrong, by the thresholds `NO_GAIT` and `FAULTS`."""
        reasons = [text.format(getattr(self, name)) for name, bad, text in NO_GAIT if _is(bad, getattr(self, name))]
        if reasons:
            return "no gait: " + ", ".join(reasons)
        kind = "gait" if self.duty_factor is None else "run" if self.duty_factor < 0.5 else "walk"
        faults = [text.format(getattr(self, name)) for name, bad, text in FAULTS if _is(bad, getattr(self, name))]
        faults += [f"{name} idle" for name in self.idle]
        return f"a {kind}" + (", but " + ", ".join(faults) if faults else "")

    def as_dict(self) -> dict[str, object]:
        """Numbers and verdict, for JSON."""
        return {**asdict(self), "verdict": self.verdict}

    def rows(self) -> list[tuple[str, str]]:
        """Names and numbers with units, for a table."""
        rows = [(label, "-" if (value := getattr(self, name)) is None else text.format(value)) for name, label, text in GAIT]
        feet = ", ".join(f"{name} {duty:.0%}" for name, duty in self.feet.items())
        return [*rows, ("duty factor by foot", feet or "-"), ("verdict", self.verdict)]


#: number, what it is called, how it is printed
GAIT = (
    ("speed", "speed along x", "{:.2f} m/s"),
    ("survival", "episodes to the end", "{:.0%}"),
    ("travel", "speed along the path", "{:.2f} m/s"),
    ("froude", "speed / √(g height)", "{:.2f}"),
    ("height", "height of the root", "{:.2f} m"),
    ("height_deviation", "its standard deviation", "{:.3f} m"),
    ("power", "positive power of the motors", "{:.0f} W"),
    ("absolute_power", "absolute power", "{:.0f} W"),
    ("cost_of_transport", "cost of transport", "{:.2f}"),
    ("torque_beyond", "joint-steps at the motors' limit", "{:.1%}"),
    ("slip", "foot slip per meter", "{:.2f} m"),
    ("stride_frequency", "strides", "{:.2f} Hz"),
    ("regularity", "regularity", "{:.2f}"),
    ("duty_factor", "duty factor", "{:.0%}"),
    ("flight", "time in flight", "{:.0%}"),
    ("dragged", "load on the root itself", "{:.1%}"),
    ("asymmetry", "asymmetry of left and right", "{:.2f}"),
    ("duty_asymmetry", "asymmetry of duty factors", "{:.2f}"),
    ("action_change", "squared change of action per step", "{:.3f}"),
    ("saturated", "actions beyond 0.99", "{:.1%}"),
)
#: number, when it is bad, what is said; (True, x): above x, (False, x): below x; never where it is None
NO_GAIT = (
    ("survival", (False, 0.5), "{:.0%} of episodes last"),
    ("froude", (False, 0.05), "it does not travel"),
    ("regularity", (False, 0.5), "no rhythm"),
    ("slip", (True, 0.5), "it slides {:.2f} m per meter"),
    ("dragged", (True, 0.2), "its root bears {:.0%} of the load"),
)
FAULTS = (
    ("survival", (False, 0.95), "{:.0%} of episodes last"),
    ("regularity", (False, 0.8), "irregular ({:.2f})"),
    ("slip", (True, 0.2), "slips {:.2f} m per meter"),
    ("asymmetry", (True, 0.5), "lopsided ({:.2f})"),
    ("duty_asymmetry", (True, 0.5), "limping ({:.2f})"),
    ("saturated", (True, 0.5), "bang-bang ({:.0%} of actions)"),
    ("torque_beyond", (True, 0.2), "at its motors' limit or beyond ({:.0%} of joint-steps)"),
    ("cost_of_transport", (True, 2.0), "wasteful ({:.1f})"),
)


def _is(bad: tuple[bool, float], value: float | None) -> bool:
    above, bound = bad
    return value is not None and (value > bound if above else value < bound)


@torch.no_grad()
def gait_report(env: Env, result: Evaluation, settle: float = 2.0) -> GaitReport:
    """The gait of recorded episodes.

    Args:
        env: of the recording. result: of ``evaluate(env, policy, record=True)``.
        settle: seconds of each episode that are left out, a quarter of the recording at most [s].

    Raises:
        ValueError: an evaluation without a recording.
    """
    record = result.recording
    if record is None:
        raise ValueError("gait_report: got an evaluation without a recording; evaluate(..., record=True)")
    mech = env.mech
    mass = float(sum(float(body.mass.double().mean()) for body in mech.bodies.values() if isinstance(body, Body)))
    weight = mass * float(mech.gravity.norm())
    z, skipped = record.z[1:], min(round(settle / record.period), len(record.actions) // 4)
    counted = record.alive & (torch.arange(len(z)) >= skipped)[:, None]
    if not bool(counted.any()):
        counted = record.alive  # all fell early
    place, (q, qd) = places(mech), mech.to_minimal(z)
    angles, rates = q[..., place], qd[..., place]
    torque = torques(mech, record.actions, angles, rates)
    power = (torque * rates)[counted]
    distance, time = _distance(z[..., :2], counted, record.period), float(counted.sum()) * record.period
    height = z[..., 2][counted]
    limits = efforts(env)
    beyond = (torque.abs() > 0.99 * limits)[counted].double()
    spans = [angles[counted[:, i], i] for i in range(angles.shape[1])]
    stride, regularity = _stride(spans, record.period)
    pairs = mirrored(mech)
    travel, mean_height, positive = distance / time, float(height.mean()), float(power.clamp_min(0).sum()) * record.period
    changes = record.actions[1:] - record.actions[:-1]
    return GaitReport(
        speed=result.speed,
        survival=result.survival,
        travel=travel,
        froude=travel / math.sqrt(weight / mass * mean_height) if weight * mean_height > 1e-3 else None,
        height=mean_height,
        height_deviation=float(height.std()) if len(height) > 1 else 0.0,
        power=positive / time,
        absolute_power=float(power.abs().sum()) * record.period / time,
        cost_of_transport=positive / (weight * distance) if distance > 0.01 * time else None,
        torque_beyond=float(beyond.mean()) if bool(torch.isfinite(limits).all()) else None,
        stride_frequency=None if stride is None else 1 / (stride * record.period),
        regularity=regularity,
        asymmetry=None if stride is None else asymmetry(spans, pairs, math.ceil(stride)),
        action_change=float(changes[counted[1:]].square().mean()) if bool(counted[1:].any()) else 0.0,
        saturated=float((record.actions.abs() > 0.99)[counted].double().mean()),
        **_feet(mech, record, counted, weight, distance, pairs),
    )


def _distance(path: Tensor, counted: Tensor, period: float) -> float:
    """Length of all paths (T, B, 2) [m], by lines of a second."""
    second, total = max(1, round(1.0 / period)), 0.0
    for i in range(path.shape[1]):
        own = path[counted[:, i], i]
        corners = torch.cat((own[:-1:second], own[-1:])) if len(own) > 1 else own
        # n samples are n - 1 periods apart; time counts n
        total += float((corners[1:] - corners[:-1]).norm(dim=-1).sum()) * len(own) / max(1, len(own) - 1)
    return total


# -- feet --------------------------------------------------------------------------------------------------------------------------------


def _feet(
    mech: Mechanism, record: Recording, counted: Tensor, weight: float, distance: float, pairs: list[tuple[int, int, float]]
) -> dict[str, Any]:
    """Slip, duty factors and loads of the contacts with the ground."""
    nothing = dict.fromkeys(("slip", "duty_factor", "flight", "dragged", "duty_asymmetry"))
    contacts = {name: contact for name, contact in mech.named_contacts().items() if contact.body_names[1:] in ((), (None,))}
    if not contacts or not record.impulses.shape[-1]:
        return nothing
    z, impulses = record.z[1:][counted], record.impulses[counted]
    layout, order, bodies = mech.impulse_layout, list(mech.contacts), list(mech.bodies)
    columns = [layout[f"contacts.{name}"].start for name in contacts]
    chosen, owners = [order.index(name) for name in contacts], [str(contact.body_names[0]) for contact in contacts.values()]
    normal = impulses[:, columns].clamp_min(0.0) / record.period  # (N, contacts) [N]
    unit = torch.zeros_like(impulses)
    unit[:, columns] = 1.0
    up = mech.contact_impulses(z, unit)[:, chosen]
    pose, twist = split_state(z)
    own = [bodies.index(name) for name in owners]
    lever = mech.contact_points(z)[:, chosen] - pose.x[:, own]
    velocity = twist.v[:, own] + quat.cross(quat.rotate(pose.q[:, own], twist.omega[:, own]), lever)
    sliding = (velocity - (velocity * up).sum(-1, keepdim=True) * up).norm(dim=-1)
    loads = torch.where(normal > LOADED * weight, normal, 0.0)
    total = loads.sum(-1)
    slip = ((loads * sliding).sum(-1) / total.clamp_min(1e-12)).sum() * record.period
    by_body = {name: normal[:, [i for i, owner in enumerate(owners) if owner == name]].sum(-1) for name in dict.fromkeys(owners)}
    down = {name: (load > LOADED * weight) for name, load in by_body.items()}
    shares = {name: float(load[down[name]].sum() / loads.sum().clamp_min(1e-12)) for name, load in by_body.items()}
    feet = {name: float(down[name].double().mean()) for name, share in shares.items() if share >= FOOT and name != bodies[0]}
    if not bool((total > 0).any()):
        return nothing
    differences, idle = [], list[str]()
    joints = actuators(mech).joints
    children = [str(mech.named_joints()[joint].body_names[-1]) for joint in joints]
    for left, right in {(children[i], children[j]) for i, j, _ in pairs}:
        one, other = feet.get(left, 0.0), feet.get(right, 0.0)
        if one + other > 0:
            differences.append(2 * abs(one - other) / (one + other))
            idle += [name for name in (left, right) if name not in feet and float(down[name].double().mean()) < IDLE]
    return {
        "slip": float(slip) / distance if distance > 0 else None,
        "duty_factor": sum(feet.values()) / len(feet) if feet else None,
        "flight": float((total == 0).double().mean()),
        "dragged": shares.get(bodies[0], 0.0),
        "duty_asymmetry": max(differences, default=None),
        "feet": feet,
        "idle": tuple(sorted(idle)),
    }


# -- rhythm ------------------------------------------------------------------------------------------------------------------------------


def _stride(spans: list[Tensor], period: float) -> tuple[float | None, float | None]:
    """Stride [control steps] and regularity, in the median over episodes (T, nu); (None, 0.0) where nothing swings."""
    found = []
    for span in spans:
        longest = min(round(STRIDES[1] / period), len(span) // 2)
        if longest * period < 2 * STRIDES[0]:
            continue  # too short for a stride
        x = span - span.mean(0)
        if float(x.square().mean(0).max().sqrt()) < STILL:
            found.append((math.nan, 0.0))
            continue
        likeness = torch.stack([_likeness(x, lag) for lag in range(longest + 1)])
        found.append(_first_peak(likeness, max(1, round(STRIDES[0] / period))))
    if not found:
        return None, None
    strides, values = torch.tensor(found, dtype=torch.float64).unbind(-1)
    regular = float(values.median())
    return (float(strides.nanmedian()) if regular > 0 else None), regular


def _likeness(x: Tensor, lag: int) -> Tensor:
    """2 Σ x(t) x(t + lag) / Σ (x(t)² + x(t + lag)²), from -1 to 1."""
    first, second = x[: len(x) - lag], x[lag:]
    return 2 * (first * second).sum() / (first.square().sum() + second.square().sum()).clamp_min(1e-12)


def _first_peak(values: Tensor, shortest: int) -> tuple[float, float]:
    """Place, by a parabola, and value of the first peak that reaches 90 % of the highest, behind the first value below zero."""
    below = (values < 0).nonzero()
    start = max(shortest, int(below[0]) if len(below) else len(values))
    peaks = [i for i in range(start, len(values) - 1) if values[i] > 0 and values[i - 1] < values[i] >= values[i + 1]]
    if not peaks:
        return math.nan, 0.0
    best = max(float(values[i]) for i in peaks)
    i = next(i for i in peaks if float(values[i]) >= 0.9 * best)
    before, peak, after = values[i - 1 : i + 2].tolist()
    return i + 0.5 * (before - after) / min(before - 2 * peak + after, -1e-12), float(values[i])


# -- left and right ----------------------------------------------------------------------------------------------------------------------


def asymmetry(spans: list[Tensor], pairs: list[tuple[int, int, float]], stride: int) -> float | None:
    """Asymmetry of episodes (T, nu) of motors' angles, in the mean; None without mirrored joints or a whole stride.

    One lag belongs to all pairs. pairs: of `mirrored`. stride: the longest lag [control steps].
    """
    values = []
    for span in spans:
        if len(span) <= stride + 1 or not pairs:
            continue
        left = torch.stack([span[:, i] for i, _, _ in pairs], -1)
        right = torch.stack([sign * span[:, j] for _, j, sign in pairs], -1)
        scale = (left.var(0, unbiased=False) + right.var(0, unbiased=False)).sum().clamp_min(1e-12)
        count = len(span) - stride
        lags = [(left[:count] - right[lag : lag + count]).square().mean(0).sum() / scale for lag in range(stride + 1)]
        values.append(float(torch.stack(lags).min()))
    return sum(values) / len(values) if values else None


def mirrored(mech: Mechanism) -> list[tuple[int, int, float]]:
    """Pairs of actuators that mirror each other in the plane y = 0 with all coordinates zero: (one, other, sign of the other's angle).

    A reflection turns an axis (x, y, z) of rotation into (−x, y, −z), and a place into (x, −y, z). In robots whose bodies move in the plane
    alone, joints of two limbs at the same place are pairs. Joints in the middle have no pair.
    """
    driven = places(mech)
    rates = torch.eye(mech.num_coordinates, dtype=torch.float64)[driven]
    z = mech.to_maximal(torch.zeros_like(rates), rates)
    pose, twist = split_state(z)
    names, joints = list(mech.bodies), mech.named_joints()
    own = torch.tensor([names.index(str(joints[joint].body_names[-1])) for joint in actuators(mech).joints])
    rows = torch.arange(len(own))
    axes = quat.rotate(pose.q[rows, own], twist.omega[rows, own])
    spots = pose.x[rows, own] - pose.x[rows, 0]
    turned, moved = axes * axes.new_tensor((-1.0, 1.0, -1.0)), spots * spots.new_tensor((1.0, -1.0, 1.0))
    pairs: list[tuple[int, int, float]] = []
    taken: set[int] = set()
    for i in range(len(own)):
        for j in range(i + 1, len(own)):
            near = float((moved[i] - spots[j]).norm()) < 0.01 and own[i] != own[j]
            along = float(turned[i] @ axes[j])
            if near and abs(along) > 0.99 and not {i, j} & taken:
                pairs.append((i, j, math.copysign(1.0, along)))
                taken |= {i, j}
    return pairs
