"""The gait of a trained robot in numbers, and in words: what one would not call a gait is said to be none.

Definitions. Means are over control steps of all episodes before they end, from `settle` seconds on. following.py has the errors of robots
that follow commands, feet.py slip, duty factors, clearance and posture, rhythm.py strides and asymmetry.

    speed              forward, along the heading of the root [m/s]
    distance           of the root in the plane, as the sum of straight lines of 1 s, so that sway does not count but a curve does [m]
    power              positive mechanical work of the motors over time, Σ max(τ q̇, 0) of all timesteps, where the recording has it, or
                       else at the ends of control steps, which misses much of it where actions jump [W]
    cost of transport  positive work / (m g distance), the mechanical cost of Collins et al. 2005, Science 307, 1082
    torque beyond      share of joint-steps whose torque is above 99 % of that of the model's motor, so that a motor at its limit counts
    duty factor        below a half a gait is a run (Alexander 1984, Int. J. Robotics Res. 3(2))
    duty asymmetry     largest |d_left − d_right| / mean d of mirrored feet
    lift               mean clearance of the feet over the height h of the root
    cadence            strides per second times √(h / g): 0.3 in a trot of a small dog, 0.7 in a man's sprint, more where legs shake
    action change      mean of |a(t) − a(t−1)|² per joint; saturated: share of actions beyond ±0.99, clipped or nearly so
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field

import torch
from torch import Tensor

from torchdojo.elements.bodies import Body
from torchdojo.envs import Env
from torchdojo.learning.feet import foot_numbers
from torchdojo.learning.following import speeds, straight_ahead, tracking_errors
from torchdojo.learning.motors import efforts, places, torques
from torchdojo.learning.rhythm import asymmetry, mirrored, stride_of
from torchdojo.learning.rollouts import Evaluation
from torchdojo.mechanism import Mechanism

__all__ = ["BY_FOOT", "GAIT", "RULES", "GaitReport", "Rule", "gait_report", "mass_of"]


@dataclass(frozen=True)
class Rule:
    """A bound on a number of a gait report, and what is said beyond it.

    name: of the rule. measures: what the number is. number: the field of `GaitReport`; of a tuple, its length counts.
    above: whether values above the bound are bad, else those below. text: what is said, with the value as {0} and the report as {r}.
    no_gait: whether there is no gait then. also: (field, bound), which must be exceeded, too. unless: a field that must be empty.
    straight: the bound in the place of `bound` where a robot is told to go straight ahead, and nothing kicks it.
    """

    name: str
    measures: str
    number: str
    above: bool
    bound: float
    text: str
    no_gait: bool = False
    also: tuple[str, float] | None = None
    unless: str | None = None
    straight: float | None = None

    def speaks(self, report: GaitReport) -> bool:
        """Whether a report is beyond the bound; never where it has no such number."""
        value = _number(report, self.number)
        bound = self.straight if report.straight and self.straight is not None else self.bound
        if value is None or not (value > bound if self.above else value < bound):
            return False
        if self.unless is not None and getattr(report, self.unless):
            return False
        other = None if self.also is None else _number(report, self.also[0])
        return self.also is None or (other is not None and other > self.also[1])

    def sentence(self, report: GaitReport) -> str:
        """The sentence about a report that is beyond the bound."""
        value = getattr(report, self.number)
        return self.text.format(", ".join(value) if isinstance(value, tuple) else value, r=report)


#: What a verdict is made of. The first rules say that there is no gait.
RULES = (
    Rule("falls", "share of episodes that last", "survival", False, 0.5, "{0:.0%} of episodes last", no_gait=True),
    Rule("stays", "speed / √(g height)", "froude", False, 0.05, "it does not travel", no_gait=True),
    Rule("no rhythm", "likeness of a stride to the next", "regularity", False, 0.5, "no rhythm", no_gait=True),
    Rule("slides", "slip per meter", "slip", True, 0.5, "it slides {0:.2f} m per meter", no_gait=True),
    Rule("dragged", "share of the load on the root", "dragged", True, 0.2, "its root bears {0:.0%} of the load", no_gait=True),
    Rule("unsteady", "share of episodes that last", "survival", False, 0.95, "{0:.0%} of episodes last"),
    Rule("irregular", "likeness of a stride to the next", "regularity", False, 0.8, "irregular ({0:.2f})"),
    Rule("slips", "slip per meter", "slip", True, 0.2, "slips {0:.2f} m per meter"),
    Rule("sawhorse", "how far feet stand from their hips, over the height", "splay", True, 0.3,
         "a sawhorse (a foot stands {0:.2f} of its height from the hip)"),
    Rule("shuffles", "clearance of the feet over the height, at a cadence above 0.8", "lift", False, 0.1,
         "shuffles (feet rise {0:.0%} of its height, at {r.stride_frequency:.1f} Hz)", also=("cadence", 0.8)),
    Rule("lopsided", "difference of left and right", "asymmetry", True, 0.5, "lopsided ({0:.2f})", straight=0.1),
    Rule("limping", "difference of the duty factors of left and right", "duty_asymmetry", True, 0.5, "limping ({0:.2f})", unless="idle"),
    Rule("bang-bang", "share of actions beyond 0.99", "saturated", True, 0.5, "bang-bang ({0:.0%} of actions)"),
    Rule("overloaded", "share of joint-steps at the motors' limit", "torque_beyond", True, 0.2,
         "at its motors' limit or beyond ({0:.0%} of joint-steps)"),
    Rule("wasteful", "cost of transport", "cost_of_transport", True, 2.0, "wasteful ({0:.1f})"),
    Rule("idle", "feet whose mirror images alone bear load", "idle", True, 0, "{0} idle"),
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class GaitReport:
    """Numbers of a gait, defined at the head of this file; None where the robot or the motion has no such number.

    speed: along the heading [m/s]. survival: of the evaluation. travel: distance over time [m/s]. froude: travel / √(g height).
    forward_error, sideways_error [m/s], turning_error [rad/s]: of stride-mean speeds against the command.
    height, height_deviation: mean and standard deviation of the root [m]. power, absolute_power [W]. stride_frequency [Hz].
    joint_speed_max, joint_speed_99: the largest of all, and that of 99 % of joint-steps [rad/s, m/s].
    feet: duty factor by body. clearance, reach: by body [m]. lift, splay: their mean and largest over the height of the root.
    flight: share of time without a loaded contact. dragged: share of the load on the root itself.
    idle: bodies that bear no load, though their mirror images are feet. straight: whether all commands were straight ahead, without kicks.
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
    joint_speed_max: float
    joint_speed_99: float
    forward_error: float | None = None
    sideways_error: float | None = None
    turning_error: float | None = None
    cadence: float | None = None
    lift: float | None = None
    splay: float | None = None
    feet: dict[str, float] = field(default_factory=dict)
    clearance: dict[str, float] = field(default_factory=dict)
    reach: dict[str, float] = field(default_factory=dict)
    idle: tuple[str, ...] = ()
    straight: bool = False

    @property
    def faults(self) -> tuple[str, ...]:
        """Names of the rules that speak: those of no gait alone, where there is one of them."""
        return tuple(rule.name for rule in self._speaking())

    @property
    def verdict(self) -> str:
        """ "no gait: ..." with the reasons, or "a walk" or "a run" with what is wrong, by `RULES`."""
        rules = self._speaking()
        said = ", ".join(rule.sentence(self) for rule in rules)
        if rules and rules[0].no_gait:
            return "no gait: " + said
        kind = "gait" if self.duty_factor is None else "run" if self.duty_factor < 0.5 else "walk"
        return f"a {kind}" + (f", but {said}" if said else "")

    def _speaking(self) -> list[Rule]:
        rules = [rule for rule in RULES if rule.speaks(self)]
        return [rule for rule in rules if rule.no_gait] or rules

    def as_dict(self) -> dict[str, object]:
        """Numbers, names of the rules that speak, and verdict, for JSON."""
        return {**asdict(self), "faults": list(self.faults), "verdict": self.verdict}

    def rows(self) -> list[tuple[str, str]]:
        """Names and numbers with units, for a table."""
        rows = [(label, "-" if (value := getattr(self, name)) is None else text.format(value)) for name, label, text in GAIT]
        for name, label, scale, text in BY_FOOT:
            values = getattr(self, name)
            rows.append((label, ", ".join(f"{foot} {text.format(scale * value)}" for foot, value in values.items()) or "-"))
        return [*rows, ("verdict", self.verdict)]


#: number, what it is called, how it is printed
GAIT = (
    ("speed", "speed along the heading", "{:.2f} m/s"),
    ("forward_error", "error of the forward speed", "{:.3f} m/s"),
    ("sideways_error", "error of the sideways speed", "{:.3f} m/s"),
    ("turning_error", "error of the turning rate", "{:.3f} rad/s"),
    ("survival", "episodes to the end", "{:.0%}"),
    ("travel", "speed along the path", "{:.2f} m/s"),
    ("froude", "speed / √(g height)", "{:.2f}"),
    ("height", "height of the root", "{:.2f} m"),
    ("height_deviation", "its standard deviation", "{:.3f} m"),
    ("power", "positive power of the motors", "{:.0f} W"),
    ("absolute_power", "absolute power", "{:.0f} W"),
    ("cost_of_transport", "cost of transport", "{:.2f}"),
    ("torque_beyond", "joint-steps at the motors' limit", "{:.1%}"),
    ("joint_speed_99", "joint speed, 99 %", "{:.1f} rad/s"),
    ("joint_speed_max", "joint speed, largest", "{:.1f} rad/s"),
    ("slip", "foot slip per meter", "{:.2f} m"),
    ("stride_frequency", "strides", "{:.2f} Hz"),
    ("cadence", "cadence", "{:.2f}"),
    ("regularity", "regularity", "{:.2f}"),
    ("duty_factor", "duty factor", "{:.0%}"),
    ("flight", "time in flight", "{:.0%}"),
    ("dragged", "load on the root itself", "{:.1%}"),
    ("asymmetry", "asymmetry of left and right", "{:.2f}"),
    ("duty_asymmetry", "asymmetry of duty factors", "{:.2f}"),
    ("action_change", "squared change of action per step", "{:.3f}"),
    ("saturated", "actions beyond 0.99", "{:.1%}"),
)
#: number by foot, what it is called, its factor, how it is printed
BY_FOOT = (
    ("feet", "duty factor by foot", 1.0, "{:.0%}"),
    ("clearance", "clearance by foot [cm]", 100.0, "{:.1f}"),
    ("reach", "stance from hip by foot [cm]", 100.0, "{:.1f}"),
)


def _number(report: GaitReport, name: str) -> float | None:
    value = getattr(report, name)
    return float(len(value)) if isinstance(value, tuple) else value


def mass_of(mech: Mechanism) -> float:
    """Mass of a robot [kg], in the mean over environments."""
    return sum(float(body.mass.double().mean()) for body in mech.bodies.values() if isinstance(body, Body))


@torch.no_grad()
def gait_report(env: Env, result: Evaluation, settle: float = 2.0) -> GaitReport:
    """The gait of recorded episodes.

    Args:
        env: of the recording. result: of ``evaluate(env, policy, record=True)``.
        settle: seconds of each episode, and after a change of command, that are left out, a quarter of the recording at most [s].

    Raises:
        ValueError: an evaluation without a recording; legs of the environment that it does not have.
    """
    record = result.recording
    if record is None:
        raise ValueError("gait_report: got an evaluation without a recording; evaluate(..., record=True)")
    mech = env.mech
    mass, g = record.mass or mass_of(mech), float(mech.gravity.norm())
    z, skipped = record.z[1:], min(round(settle / record.period), len(record.actions) // 4)
    counted = record.alive & (torch.arange(len(z)) >= skipped)[:, None]
    if not bool(counted.any()):
        counted = record.alive  # all fell early
    place, (q, qd) = places(mech), mech.to_minimal(z)
    angles, rates = q[..., place], qd[..., place]
    torque = torques(mech, record.actions, angles, rates)
    power = (torque * rates).nan_to_num()
    work = torch.stack((power.clamp_min(0).sum(-1), power.abs().sum(-1)), -1) * record.period if record.work is None else record.work
    positive, absolute = work[counted].sum(0).tolist()
    distance, time = _distance(z[..., :2], counted, record.period), float(counted.sum()) * record.period
    heights = z[..., 2][counted]
    limits = efforts(env)
    beyond = (torque.abs() > 0.99 * limits)[counted].double()
    spans = [angles[counted[:, i], i] for i in range(angles.shape[1])]
    stride, regularity = stride_of(spans, record.period)
    frequency = None if stride is None else 1 / (stride * record.period)
    pairs = mirrored(mech)
    travel, height = distance / time, float(heights.mean())
    changes, swings = record.actions[1:] - record.actions[:-1], rates[counted].abs().flatten().sort().values
    return GaitReport(
        speed=float(speeds(mech, record)[..., 0][counted].mean()),
        survival=result.survival,
        travel=travel,
        froude=travel / math.sqrt(g * height) if mass * g * height > 1e-3 else None,
        height=height,
        height_deviation=float(heights.std()) if len(heights) > 1 else 0.0,
        power=positive / time,
        absolute_power=absolute / time,
        cost_of_transport=positive / (mass * g * distance) if distance > 0.01 * time and g > 0 else None,
        torque_beyond=float(beyond.mean()) if bool(torch.isfinite(limits).all()) else None,
        stride_frequency=frequency,
        cadence=frequency * math.sqrt(height / g) if frequency is not None and height > 0 and g > 0 else None,
        regularity=regularity,
        asymmetry=None if stride is None else asymmetry(spans, pairs, math.ceil(stride)),
        action_change=float(changes[counted[1:]].square().mean()) if bool(counted[1:].any()) else 0.0,
        saturated=float((record.actions.abs() > 0.99)[counted].double().mean()),
        joint_speed_max=float(swings[-1]),
        joint_speed_99=float(swings[int(0.99 * (len(swings) - 1))]),
        straight=straight_ahead(env, record),
        **tracking_errors(env, record, skipped, stride),
        **foot_numbers(env, record, counted, weight=mass * g, distance=distance, height=height, pairs=pairs, stride=stride),
    )


def _distance(path: Tensor, counted: Tensor, period: float) -> float:
    """Length of all paths (T, B, 2) [m], by lines of a second."""
    second, total = max(1, round(1.0 / period)), 0.0
    for i in range(path.shape[1]):
        track = path[counted[:, i], i]
        corners = torch.cat((track[:-1:second], track[-1:])) if len(track) > 1 else track
        # n samples are n - 1 periods apart; time counts n
        total += float((corners[1:] - corners[:-1]).norm(dim=-1).sum()) * len(track) / max(1, len(track) - 1)
    return total
