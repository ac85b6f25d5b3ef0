"""The meaning of the numbers of observations and memories, found by trying an environment's `observe` and `remember` on random motions.

An environment of one's own says in code what its policy sees, and a description beside the code would go out of date. So each entry is
compared with quantities that have names: an entry that is scale · quantity + offset in all of many random motions, to 1e-9, is that
quantity. For entries that are none of them, the layout says which tensors of `Motion` they depend on.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchdojo import quaternion as quat
from torchdojo.envs import Env, Motion
from torchdojo.envs.motion import upright_and_heading
from torchdojo.mechanism import Mechanism
from torchdojo.state.layout import ORIENTATION, STATE_SIZE

__all__ = ["Quantity", "coordinate_names", "memory_layout", "observation_layout"]

PROBES = 64  # random motions
TIMES = 2000  # control steps in which a memory may be drawn anew
EXACT = 1e-9  # residual of a match over the size of the values
AXES = "xyz"


class Quantity(NamedTuple):
    """A measurable number: its kind and name, its unit, the frame of its axis, and its values (B,)."""

    kind: str
    name: str
    unit: str | None
    frame: str | None
    values: Tensor


def coordinate_names(mech: Mechanism) -> list[tuple[str, str]]:
    """Name and unit (m, rad) of each minimal coordinate."""
    places, result = mech.coordinate_places(), dict[int, tuple[str, str]]()
    for name, place in places.items():
        joint: Any = mech.joints[name]
        count = place.stop - place.start
        for i in range(count):
            result[place.start + i] = name if count == 1 else f"{name}[{i}]", "rad" if i >= count - joint.free_rotations else "m"
    return [result[i] for i in sorted(result)]


def observation_layout(env: Env) -> list[dict[str, Any]]:
    """Parts of the observation, in order, whose indices go through all of its entries.

    A part has "name", "indices", "unit", "frame", and for each entry "entries", "scale" and "offset": the entry is
    scale · quantity + offset. Where the name is "other", unit, scales and offsets are None, and "depends_on" has fields of `Motion`.
    """
    motion = _random_motion(env, PROBES)
    seen, quantities = env.observe(motion), _quantities(env, motion)
    if env.observe_impulses:
        seen = torch.cat((seen, motion.impulses / env.period), -1)
    if env.driving is not None:
        seen = torch.cat((seen, env.driving.seen(motion)), -1)
    entries = [_matched(column, quantities) for column in seen.unbind(-1)]
    reads = _reads(env.observe, env, motion)
    rows: list[tuple[tuple[Any, ...], str, float | None, float | None]] = []
    for i, entry in enumerate(entries):
        if entry is None:
            fields = [name for name, changed in reads.items() if i < len(changed) and bool(changed[i])]
            rows.append((("other", None, None, fields), f"other[{i}]", None, None))
        else:
            quantity, scale, offset = entry
            rows.append(((quantity.kind, quantity.unit, quantity.frame, None), quantity.name, scale, offset))
    parts, start = [], 0
    for (kind, unit, frame, fields), group in itertools.groupby(rows, key=lambda row: row[0]):
        members = list(group)
        indices = list(range(start, start + len(members)))
        start += len(members)
        other = {} if fields is None else {"depends_on": fields}
        columns: dict[str, Any] = {
            "entries": [row[1] for row in members],
            "scale": [row[2] for row in members],
            "offset": [row[3] for row in members],
        }
        parts.append({"name": kind, "indices": indices, "unit": unit, "frame": frame, **columns, **other})
    return parts


def memory_layout(env: Env) -> list[dict[str, Any]]:
    """The entries of the memory and how each goes on from one control step to the next.

    "rule" is "clock" (the phase in turns grows by "step" and is taken modulo 1, "frequency_hz"), "constant", "copy" (the quantity "of"
    after the step, the memory or the action before it), "filter" (keep · memory + gain · the quantity "of" + offset) or "other".
    "drawn_anew" says whether `remember` takes fresh values at some times within an episode. "start" is the range at the starts.
    """
    start = env.state.memory
    if not start.shape[-1]:
        return []
    before, after = (_random_motion(env, TIMES) for _ in range(2))
    time = torch.arange(TIMES)
    before, after = before._replace(time=time), after._replace(time=time + 1, memory=before.memory)
    fresh = _random_motion(env, TIMES).memory
    result = env.remember(before, after, fresh)
    steady = result == env.remember(before, after, _random_motion(env, TIMES).memory)
    quantities = [quantity for quantity in _quantities(env, after) if quantity.kind not in ("action", "memory", "sine", "cosine")]
    actions = [f"action of {name}" for name in env.action_names]
    quantities += _list("action before", "1", None, actions, before.action)
    entries = []
    for k, column in enumerate(result.unbind(-1)):
        keep, previous = steady[:, k], before.memory[:, k]
        others = [Quantity("memory before", f"memory[{j}]", None, None, before.memory[:, j]) for j in range(result.shape[-1]) if j != k]
        rows = [quantity._replace(values=quantity.values[keep]) for quantity in (*quantities, *others)]
        rule = _rule(column[keep], previous[keep], rows, env.period) if int(keep.sum()) > PROBES else {"rule": "other"}
        ends = [float(end) for end in start[:, k].aminmax()]
        entries.append({"name": f"memory[{k}]", **rule, "drawn_anew": not bool(keep.all()), "start": ends})
    return entries


def _rule(after: Tensor, before: Tensor, known: Iterable[Quantity], period: float) -> dict[str, Any]:
    """How an entry of the memory goes on."""
    turn = torch.remainder(after - before + 0.5, 1.0) - 0.5
    if bool(((after - before).abs() < EXACT).all()):
        return {"rule": "constant"}
    if bool(((turn - turn[0]).abs() < EXACT).all()) and bool(((after >= 0) & (after <= 1)).all()):
        step = _rounded(float(turn.mean()))
        return {"rule": "clock", "unit": "turn", "step": step, "frequency_hz": _rounded(step / period)}
    copied = _matched(after, known)
    if copied is not None:
        quantity, scale, offset = copied
        return {"rule": "copy", "of": quantity.name, "unit": quantity.unit, "scale": scale, "offset": offset}
    for quantity in known:
        matrix = torch.stack((before, quantity.values, torch.ones_like(before)), -1)
        fit = torch.linalg.lstsq(matrix, after[:, None]).solution
        if bool(((matrix @ fit)[:, 0] - after).abs().max() < EXACT * (1.0 + after.abs().max())):
            keep, gain, offset = (_rounded(float(number)) for number in fit[:, 0])
            return {"rule": "filter", "of": quantity.name, "unit": quantity.unit, "keep": keep, "gain": gain, "offset": offset}
    return {"rule": "other"}


def _matched(column: Tensor, known: Iterable[Quantity]) -> tuple[Quantity, float, float] | None:
    """The quantity that a column (B,) is in proportion to, with scale and offset; None where there is none."""
    away = column - column.mean()
    if not bool(torch.isfinite(column).all()) or float(away.abs().max()) == 0.0:
        return None
    for quantity in known:
        centered = quantity.values - quantity.values.mean()
        square = float(centered.square().sum())
        if square == 0.0:
            continue
        scale = float((centered * away).sum()) / square
        if float((away - scale * centered).abs().max()) < EXACT * (1.0 + float(column.abs().max())) and abs(scale) > EXACT:
            return quantity, _rounded(scale), _rounded(float(column.mean() - scale * quantity.values.mean()))
    return None


def _quantities(env: Env, motion: Motion) -> list[Quantity]:
    """All quantities with names, those of a sensor first where two are the same."""
    mech, root, memory = env.mech, motion.root, motion.memory
    body, coordinates = next(iter(mech.bodies)), coordinate_names(env.mech)
    names, units = [name for name, _ in coordinates], [unit for _, unit in coordinates]
    turn = root[:, ORIENTATION]
    up = quat.inverse_rotate(turn, root.new_tensor((0.0, 0.0, 1.0)).expand(len(root), 3))
    frame, actions = f"body {body}", [f"action of {name}" for name in env.action_names]

    def vector(kind: str, unit: str, of: str, values: Tensor, axes: str = AXES) -> list[Quantity]:
        return _list(kind, unit, of, [f"{kind} {axis}" for axis in axes], values)

    result = []
    for kind, values, suffix in (("coordinate", motion.q, ""), ("rate", motion.qd, "/s")):
        for i, unit in enumerate(units):
            result.append(Quantity(kind, f"{kind} of {names[i]}", unit + suffix, None, values[:, i]))
    result += vector("position", "m", "world", root[:, :3])
    result += vector("velocity", "m/s", "world", root[:, 3:6])
    result += vector("velocity in the body", "m/s", frame, quat.inverse_rotate(turn, root[:, 3:6]))
    result += vector("direction up", "1", frame, up)
    result += vector("orientation", "1", "world", turn, "wxyz")
    result += vector("spin", "rad/s", frame, root[:, 10:13])
    result += _list("heading", "1", "world", ["x of the body's x axis"], upright_and_heading(root)[:, 1:])
    result += _list("action", "1", None, actions, motion.action)
    result += _list("goal", None, None, [f"goal[{i}]" for i in range(motion.goal.shape[-1])], motion.goal)
    carried = () if env.driving is None else env.driving.drives.carried
    result += _list("activation", "1", None, [f"activation of {name}" for name in carried], motion.activation)
    result += _list("memory", None, None, [f"memory[{i}]" for i in range(memory.shape[-1])], memory)
    contacts = [name for name in mech.impulse_layout if name.startswith("contacts.")]
    if motion.impulses.shape[-1]:
        result += _list("normal force", "N", None, [f"normal force of {name}" for name in contacts], motion.impulses / env.period)
    for kind, function in (("sine", torch.sin), ("cosine", torch.cos)):
        for i, unit in enumerate(units):
            if unit == "rad":
                result.append(Quantity(kind, f"{kind} of {names[i]}", "1", None, function(motion.q[:, i])))
        angles = 2.0 * math.pi * memory
        result += _list(kind, "1", None, [f"{kind} of memory[{i}] turns" for i in range(memory.shape[-1])], function(angles))
    return result


def _list(kind: str, unit: str | None, frame: str | None, names: list[str], values: Tensor) -> list[Quantity]:
    return [Quantity(kind, name, unit, frame, column) for name, column in zip(names, values.unbind(-1), strict=True)]


def _random_motion(env: Env, count: int) -> Motion:
    """Motions whose tensors have nothing to do with each other, so that an entry shows which one it reads.

    Goals and memories stay within their ranges at the starts, since an index beyond a table may mean nothing. What lies between 0 and 1
    there goes from 0 to 1, as phases do.
    """

    def within(values: Tensor) -> Tensor:
        low, high = values.amin(0), values.amax(0)
        share = (low >= 0.0) & (high <= 1.0)
        low, high = torch.where(share, 0.0, low), torch.where(share, 1.0, high)
        return low + torch.where(high > low, high - low, 1.0) * env.random(count, values.shape[-1], low=0.0)

    start = env.state.motion
    z = env.normal(count, start.z.shape[-1] // STATE_SIZE, STATE_SIZE)
    z[..., ORIENTATION] /= z[..., ORIENTATION].norm(dim=-1, keepdim=True)
    z = z.flatten(1)
    q, qd = 0.5 * env.normal(count, start.q.shape[-1]), env.normal(count, start.qd.shape[-1])
    action, impulses = 0.9 * env.random(count, env.num_actions), env.normal(count, start.impulses.shape[-1]).abs()
    time = env.random(count, low=0.0, high=env.episode_length).long()
    return Motion(z, z[:, :STATE_SIZE], q, qd, action, within(start.goal), impulses, within(start.memory), within(start.activation), time)


def _reads(function: Callable[[Motion], Tensor], env: Env, motion: Motion) -> Mapping[str, Tensor]:
    """For each field of `Motion` which entries of function(motion) change with it."""
    reference, other, result = function(motion), _random_motion(env, len(motion.z)), {}
    for name in Motion._fields:
        if name != "root":
            values = getattr(other, name)
            changes = {"z": values, "root": values[:, :STATE_SIZE]} if name == "z" else {name: values}
            result[name] = (function(motion._replace(**changes)) != reference).any(0)
    return result


def _rounded(number: float) -> float:
    """To 12 digits, beyond which the matching knows nothing."""
    return 0.0 if abs(number) < 1e-12 else float(f"{number:.11e}")
