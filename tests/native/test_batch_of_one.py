"""An environment alone has the same bits as in a batch: states, impulses, solutions and gradients."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from mechanisms import Sample, all_joints, close_to_limits, random_tree
from parity import collision, exact, thrown_box
from torch import Tensor

import torchdojo as td


def model(name: str) -> Sample:
    mech = getattr(td.models, name)()
    z = td.models.initial_state(name, mech).expand(13, -1).clone()
    z.unflatten(-1, (-1, 13))[..., 3:6] += 0.3 * torch.randn(13, 1, 3)
    return Sample(mech, z, 0.5 * torch.randn(13, mech.num_inputs))


CASES: dict[str, Callable[[], Sample]] = {
    "box": lambda: thrown_box(13),
    "quadruped": lambda: model("quadruped"),
    "half_cheetah": lambda: model("half_cheetah"),
    "humanoid": lambda: model("humanoid"),
    "joints": lambda: all_joints(True, True, True, 13),
    "limits": lambda: close_to_limits(13, friction=0.5),
    "tree": lambda: random_tree(1, 12, 13, contacts=6),
    "pair": lambda: collision("capsule", "box", False, td.NonlinearContact),
}


def results(sample: Sample, rows: slice) -> list[Tensor]:
    """States, impulses and solutions of a rollout, and its gradients by states and inputs."""
    mech, z, u = sample
    z, u = z[rows].clone().requires_grad_(), u[rows].clone().requires_grad_()
    path = mech.rollout(z, u[:, None].expand(-1, 8, -1))
    weights = torch.linspace(-1, 1, path.z.shape[-1])
    return [path.z, path.impulses, path.status, *torch.autograd.grad((path.z * weights).sum(), (z, u))]


@pytest.mark.parametrize("mode", ["central_path", "exact"])
@pytest.mark.parametrize("case", CASES)
def test_the_same_bits(case: str, mode: str) -> None:
    sample = CASES[case]()
    if mode == "exact":
        sample.mechanism.options = exact(gradient_mode="exact", backend="native")
    else:
        sample.mechanism.options = td.SolverOptions(backend="native")
    count = len(sample.z)
    batch = results(sample, slice(None))
    for rows in [slice(0, 8), *(slice(i, i + 1) for i in (0, 1, count - 1))]:
        for mine, all_of_them in zip(results(sample, rows), batch, strict=True):
            assert torch.equal(mine, all_of_them[rows])
