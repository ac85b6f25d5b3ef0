"""`SolverOptions.depenetration_speed`: contacts that start a step deep inside a surface come out at a bounded speed."""

from __future__ import annotations

import dataclasses
import warnings
from typing import Any

import pytest
import torch
from parity import PAIRS, check, collision, exact, outputs, same_bits, thrown_box
from torch import Tensor

import torchdojo as td
from torchdojo import models

MODELS = (td.ImpactContact, td.NonlinearContact, td.LinearContact)


def overlapping(model: type[td.Contact], **laws: float) -> tuple[td.Mechanism, Tensor, Tensor]:
    """Boxes in flight, at impact, sliding and at rest; half of them 3 cm deeper, where corners are inside the ground."""
    mech, z, u = thrown_box(16)
    friction = {} if model is td.ImpactContact else {"friction": 0.3}
    contacts = {
        name: model("box", point=c.point, radius=c.radius, normal=(0.1, 0.0, 1.0), **friction, **laws) for name, c in mech.contacts.items()
    }
    mech = td.Mechanism(dict(mech.bodies.items()), dict(mech.joints.items()), contacts, options=exact())
    z = z.unflatten(-1, (-1, 13)).clone()
    z[8:, 0, 2] -= 0.03
    return mech, z.flatten(-2), u


def between(*pair: Any, **laws: float) -> tuple[td.Mechanism, Tensor, Tensor]:
    mech, z, u = collision(*pair, td.NonlinearContact, **laws)
    z = z.unflatten(-1, (-1, 13)).clone()
    z[len(z) // 2 :, 0, 2] -= 0.02
    return mech, z.flatten(-2), u


@pytest.mark.sanitize
@pytest.mark.parametrize("model", MODELS)
def test_kernel_and_reference_agree(model: type[td.Contact]) -> None:
    mech, z, u = overlapping(model)
    mech.options = dataclasses.replace(mech.options, depenetration_speed=0.4)
    check(mech, z, u)


@pytest.mark.sanitize
@pytest.mark.parametrize("pair", PAIRS[::6], ids=str)
def test_kernel_and_reference_agree_between_shapes(pair: tuple[str, str, bool]) -> None:
    mech, z, u = between(*pair)
    mech.options = dataclasses.replace(mech.options, depenetration_speed=0.1)
    check(mech, z, u)


@pytest.mark.sanitize
@pytest.mark.parametrize(
    ("sample", "backend"),
    [
        ((overlapping, MODELS[0]), "native"),
        ((overlapping, MODELS[1]), "native"),
        ((overlapping, MODELS[1]), "reference"),
        ((between, *PAIRS[2]), "native"),
        ((between, *PAIRS[-1]), "native"),
    ],
)
def test_the_option_is_the_law_of_contacts_without_a_speed(sample: tuple[Any, ...], backend: str) -> None:
    """To the last bit: states, solutions, gradients and Jacobians."""
    make, *arguments = sample
    results = []
    for own, option in ((0.25, None), (0.25, 3.0), (None, 0.25)):
        mech, z, u = make(*arguments, **({} if own is None else {"recovery_speed": own}))
        mech.options = td.SolverOptions(depenetration_speed=option, backend=backend)
        results.append(outputs(mech, z[-3:], u[-3:]))
    assert same_bits(results[0], results[1]) and same_bits(results[0], results[2])
    mech.options = td.SolverOptions(depenetration_speed=None, backend=backend)
    assert not same_bits(outputs(mech, z[-3:], u[-3:]), results[2])


@pytest.mark.sanitize
@pytest.mark.parametrize("backend", ["native", "reference"])
def test_no_bit_changes_where_nothing_is_deep(backend: str) -> None:
    """Steps from outside and from less than speed times timestep inside, alone and beside deep ones; compliant contacts anywhere."""
    mech, z, u = overlapping(td.NonlinearContact)
    z, u = (z[:4], u[:4]) if backend == "reference" else (z, u)
    shallow = mech.distances(z).amin(-1) > -0.009
    assert 2 <= int(shallow.sum()) < len(z)
    results = []
    for speed in (None, 0.9):
        mech.options = td.SolverOptions(depenetration_speed=speed, backend=backend)
        results.append(outputs(mech, z, u, shallow.nonzero().flatten()))
    assert same_bits(*results)
    soft, z, u = overlapping(td.NonlinearContact, stiffness=2e3)
    results = []
    for speed in (None, 0.9):
        soft.options = td.SolverOptions(depenetration_speed=speed, backend=backend)
        results.append(outputs(soft, z[-2:], u[-2:]))
    assert same_bits(*results)


@pytest.mark.parametrize(("shape", "other", "fixed"), [PAIRS[1], PAIRS[8]])
def test_gradients_between_shapes(shape: str, other: str, fixed: bool) -> None:
    mech, z, u = between(shape, other, fixed)
    mech.options = td.SolverOptions(kappa=1e-4, depenetration_speed=0.1)
    deep = int(mech.distances(z).argmin())
    assert float(mech.distances(z)[deep]) < -0.01
    td.testing.check_gradients(mech, z[deep], u[deep], parameters=["contacts.touch", "timestep"], directions=3, tolerance=1e-6)


@pytest.mark.parametrize("mode", ["central_path", "exact"])
def test_gradients_of_a_box_in_the_ground(mode: str) -> None:
    mech = models.box()
    mech.options = td.SolverOptions(kappa=1e-4 if mode == "central_path" else 1e-8, depenetration_speed=0.7, gradient_mode=mode)
    z = mech.initial_state(box={"orientation": torch.nn.functional.normalize(torch.tensor((0.9, 0.3, 0.2, -0.25)), dim=0)})
    z = mech.place(z, -0.05)
    parameters = ["contacts.corner1", "timestep", "bodies.box.mass"]
    td.testing.check_gradients(mech, z, parameters=parameters, directions=4, tolerance=1e-6 if mode == "central_path" else 1e-4)
    start = z.clone().requires_grad_()

    def end(start: Tensor) -> Tensor:
        return mech.rollout(start, steps=12).z[..., -1, :]

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert float(mech.distances(end(z)).min()) > 0  # out after 8 steps
        (gradient,) = torch.autograd.grad(end(start)[2], start)
        direction = torch.zeros_like(z)
        direction[[0, 1, 2, 3, 10]] = torch.tensor((0.3, -0.5, 1.0, 0.2, 0.7))
        difference = float((end(z + 1e-6 * direction)[2] - end(z - 1e-6 * direction)[2]) / 2e-6)
    assert mode == "exact" or abs(float(gradient @ direction) - difference) <= 1e-6 * max(1.0, abs(difference))


#: name, depth [m], most iterations of a step. None of these flies off, and none takes more iterations in the mean than a fall does.
DEEP = [
    ("box", 1.0, 30),
    ("quadruped", 0.5, 45),
    ("ant", 0.5, 20),
    ("half_cheetah", 1.0, 25),
    ("humanoid", 0.3, 90),
    ("humanoid", 1.0, 45),
    ("humanoid", 1.5, 45),
]


@pytest.mark.filterwarnings("ignore:contact")
@pytest.mark.parametrize(("name", "depth", "most"), DEEP)
def test_deep_starts_come_out(name: str, depth: float, most: int) -> None:
    """With the exact law, the humanoid's steps were all flagged, at 0.5 s each, and the half-cheetah left at 100 m/s.

    Cold starts begin at the speed of recovery. From rest, the first step of the humanoid 1 m deep takes 191 iterations.
    """
    mech = models.make(name)
    z = mech.place(mech.initial_state(pose="home"), -depth).unflatten(-1, (-1, 13)).clone()
    z[..., 3:6], z[..., 10:] = 0.0, 0.0
    path = mech.rollout(z.flatten(-2), steps=300)
    assert not path.status.any() and bool((path.substeps == 1).all())
    assert float(path.iterations.double().mean()) <= 8 and int(path.iterations.max()) <= most
    assert float(path.z.unflatten(-1, (-1, 13))[..., 3:6].norm(dim=-1).max()) < 5
    distances = mech.distances(path.z)
    assert float(distances[-1].min()) >= 0
    inside = distances[:-1].amin(-1) < -0.01
    risen = (distances[1:].amin(-1) - distances[:-1].amin(-1))[inside]
    assert float(risen.min()) >= 0.01 - 1e-8  # at 1 m/s, or faster where the rest of the body pulls


def test_what_is_allowed() -> None:
    for wrong in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(ValueError, match=r"SolverOptions.depenetration_speed: got .*; allowed: positive finite numbers"):
            td.SolverOptions(depenetration_speed=wrong)
    assert td.SolverOptions(depenetration_speed=None).depenetration_speed is None
