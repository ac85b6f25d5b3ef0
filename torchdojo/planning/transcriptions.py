"""The unknowns of a plan: the inputs alone (single shooting), or the states of all nodes as well (multiple shooting)."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from torchdojo.planning.dynamics import Dynamics, Nodes
from torchdojo.planning.problem import Problem
from torchdojo.planning.riccati import Policy

__all__ = ["Multiple", "Single", "Transcription"]

Limits = tuple[Tensor, Tensor] | None


class Transcription(Protocol):
    """How nodes come about."""

    def start(self, problem: Problem, owner: Tensor, kappa: Tensor) -> Nodes:
        """First iterates of copies of problems; `owner` has the number of the problem of each copy."""

    def again(self, nodes: Nodes, K: Tensor | None, kappa: Tensor, limits: Limits) -> Nodes:
        """The same iterates at another kappa; K (P, T, m, n) of the last policy."""

    def defect(self, nodes: Nodes) -> Tensor | None:
        """The gap from the end of each step to the next node, (..., T, n), or None if nothing."""

    def candidates(self, nodes: Nodes, policy: Policy, alphas: Tensor, kappa: Tensor, limits: Limits) -> Nodes:
        """Iterates (P, M, a, ...) for M policies and a step sizes."""


class Single:
    """Candidates are closed-loop rollouts, so that every iterate is a motion of the mechanism."""

    def __init__(self, dynamics: Dynamics) -> None:
        self.dynamics = dynamics

    def start(self, problem: Problem, owner: Tensor, kappa: Tensor) -> Nodes:
        return self.dynamics.rollout(problem.start[owner], _clamped(problem.guess[owner], _of(problem, owner)), None, kappa)

    def again(self, nodes: Nodes, K: Tensor | None, kappa: Tensor, limits: Limits) -> Nodes:
        if K is None:
            return self.dynamics.rollout(nodes.z[:, 0], nodes.v, None, kappa)
        one = torch.ones(1, dtype=torch.float64)
        path = self.dynamics.feedback(nodes, torch.zeros_like(nodes.v)[:, None], K[:, None], one, kappa, limits)
        return Nodes(*(value[:, 0, 0] for value in path))

    def defect(self, nodes: Nodes) -> Tensor | None:
        return None

    def candidates(self, nodes: Nodes, policy: Policy, alphas: Tensor, kappa: Tensor, limits: Limits) -> Nodes:
        return self.dynamics.feedback(nodes, policy.k, policy.K, alphas, kappa, limits)


class Multiple:
    """All nodes are unknowns, and steps close the defects between them. All steps of all candidates are one call."""

    def __init__(self, dynamics: Dynamics) -> None:
        self.dynamics = dynamics

    def start(self, problem: Problem, owner: Tensor, kappa: Tensor) -> Nodes:
        v = _clamped(problem.guess[owner], _of(problem, owner))
        if problem.guess_states is None:
            return self.dynamics.rollout(problem.start[owner], v, None, kappa)
        x = self.dynamics.coordinates(problem.guess_states[owner])
        x[:, 0] = self.dynamics.coordinates(problem.start[owner])
        return self.dynamics.evaluate(x, v, None, kappa)

    def again(self, nodes: Nodes, K: Tensor | None, kappa: Tensor, limits: Limits) -> Nodes:
        return self.dynamics.evaluate(nodes.x, nodes.v, nodes.w, kappa)

    def defect(self, nodes: Nodes) -> Tensor | None:
        return self.dynamics.difference(nodes.end, nodes.x[..., 1:, :])

    def candidates(self, nodes: Nodes, policy: Policy, alphas: Tensor, kappa: Tensor, limits: Limits) -> Nodes:
        scale = alphas[:, None, None]
        dx = scale * policy.dx[:, :, None]
        x = self.dynamics.retract(nodes.x[:, None, None].expand(*dx.shape[:-1], nodes.x.shape[-1]), dx)
        v = nodes.v[:, None, None] + scale * policy.du[:, :, None]
        if limits is not None:
            v = v.clamp(*(limit[:, None, None] for limit in limits))
        warm = nodes.w[:, None, None].expand(*v.shape[:-1], nodes.w.shape[-1])
        return self.dynamics.evaluate(x, v, warm, kappa)


def _of(problem: Problem, owner: Tensor) -> Limits:
    return None if problem.limits is None else (problem.limits[0][owner], problem.limits[1][owner])


def _clamped(v: Tensor, limits: Limits) -> Tensor:
    return v if limits is None else v.clamp(*limits)
