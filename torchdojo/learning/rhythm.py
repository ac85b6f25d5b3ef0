"""Rhythm of a gait: strides, their regularity, and how alike left and right are.

stride, regularity  lag and value of the first high peak of the normalized square difference of the motors' angles
                    (McLeod & Wyvill 2005), 1 for a periodic motion
asymmetry           of mirrored joints: min over lags of Σ (q_left(t) − q_right(t + lag))² / Σ (variances): 0 for mirror images in any
                    phase, 1 for motions that have nothing to do with each other, more where postures differ, too
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from torchdojo import quaternion as quat
from torchdojo.learning.motors import actuators, places
from torchdojo.mechanism import Mechanism
from torchdojo.state.layout import split_state

__all__ = ["asymmetry", "mirrored", "stride_of"]

STRIDES = (0.1, 2.5)  # shortest and longest stride [s]
STILL = 0.02  # root mean square of the motors' angles [rad] below which nothing swings


def stride_of(spans: list[Tensor], period: float) -> tuple[float | None, float | None]:
    """Stride [control steps] and regularity, in the median over episodes (T, nu); (None, 0.0) where nothing swings."""
    peaks = []
    for span in spans:
        longest = min(round(STRIDES[1] / period), len(span) // 2)
        if longest * period < 2 * STRIDES[0]:
            continue  # too short for a stride
        x = span - span.mean(0)
        if float(x.square().mean(0).max().sqrt()) < STILL:
            peaks.append((math.nan, 0.0))
            continue
        likeness = torch.stack([_likeness(x, lag) for lag in range(longest + 1)])
        peaks.append(_first_peak(likeness, max(1, round(STRIDES[0] / period))))
    if not peaks:
        return None, None
    strides, values = torch.tensor(peaks, dtype=torch.float64).unbind(-1)
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
    owners = torch.tensor([names.index(str(joints[joint].body_names[-1])) for joint in actuators(mech).joints])
    rows = torch.arange(len(owners))
    axes = quat.rotate(pose.q[rows, owners], twist.omega[rows, owners])
    spots = pose.x[rows, owners] - pose.x[rows, 0]
    turned, moved = axes * axes.new_tensor((-1.0, 1.0, -1.0)), spots * spots.new_tensor((1.0, -1.0, 1.0))
    pairs: list[tuple[int, int, float]] = []
    paired: set[int] = set()
    for i in range(len(owners)):
        for j in range(i + 1, len(owners)):
            near = float((moved[i] - spots[j]).norm()) < 0.01 and owners[i] != owners[j]
            along = float(turned[i] @ axes[j])
            if near and abs(along) > 0.99 and not {i, j} & paired:
                pairs.append((i, j, math.copysign(1.0, along)))
                paired |= {i, j}
    return pairs
