"""The compiled kernel against the reference, as in test_parity.py: curves, locks, sums and switches of couplings."""

from __future__ import annotations

import pytest
import torch
from mechanisms import Sample, random_body
from parity import check, exact

import torchdojo as td

COUNT = 3


def chain(couplings: dict[str, td.Coupling], q: list[float] | None = None) -> Sample:
    """A hinge, a cylinder, a slide, a ball and a universal joint in a row, in states on the couplings."""
    torch.manual_seed(3)
    kinds = {"hinge": td.Revolute, "screw": td.Cylindrical, "slide": td.Prismatic, "ball": td.Spherical, "cross": td.Orbital}
    joints, above = {}, None
    for name, kind in kinds.items():
        anchors = {"parent_anchor": 0.2 * torch.randn(3), "child_anchor": 0.2 * torch.randn(3)}
        joints[name] = kind(above, f"{name}_link", axis=torch.randn(3), **anchors)
        above = f"{name}_link"
    mech = td.Mechanism({f"{name}_link": random_body() for name in kinds}, joints, couplings=couplings, options=exact())
    start = 0.3 * torch.randn(COUNT, mech.num_coordinates)
    z = mech.close_loops(mech.to_maximal(start, 0.7 * torch.randn(COUNT, mech.num_coordinates)))
    return Sample(mech, z, torch.randn(COUNT, mech.num_inputs))


CASES = {
    "hinge and slide": lambda: {"cam": td.JointCoupling("hinge", "slide", ratio=0.4, offset=0.1, curve=(0.3, -0.2, 0.15))},
    "vector leads": lambda: {"cam": td.JointCoupling("ball", "hinge", ratio=0.8, curve=(0.5, 0.1), leader_coordinate=1)},
    "vector follows": lambda: {
        "cam": td.JointCoupling(
            "screw", "cross", ratio=-0.8, offset=torch.tensor([0.0, 0.1, 0.2]), curve=torch.randn(COUNT, 3), leader_coordinate=1
        )
    },
    "one joint": lambda: {"thread": td.JointCoupling("screw", "screw", ratio=0.2, curve=(0.2,), leader_coordinate=1)},
    "locks": lambda: {
        "angle": td.JointLock("hinge", torch.tensor([0.3, -0.2, 2.0])),
        "length": td.JointLock("slide", 0.1),
        "vector": td.JointLock("ball", -0.2, coordinate=2),
    },
    "sum": lambda: {
        "string": td.SumCoupling(
            {"hinge": 0.5, ("ball", 0): -0.3}, {"slide": 1.2, ("screw", 1): 0.4}, ratio=0.7, offset=0.05, curve=(0.3, -0.1, 0.2)
        )
    },
    "constant sum": lambda: {"string": td.SumCoupling({}, {"hinge": 0.5, "slide": 1.0, ("cross", 1): torch.tensor([0.2, 0.3, 0.4])})},
    "switched": lambda: {
        "gear": td.JointCoupling("hinge", "slide", ratio=0.4, curve=(0.3, 0.1), active=torch.tensor([1.0, 0.0, 1.0])),
        "brake": td.JointLock("cross", 0.1, coordinate=1, active=torch.tensor([0.0, 1.0, 1.0])),
    },
    "soft": lambda: {
        "cam": td.JointCoupling("hinge", "slide", ratio=0.4, curve=(0.3, 0.1), compliance=torch.tensor([0.02, 0.0, 0.3]), damping=0.5),
        "brake": td.JointLock("cross", 0.1, coordinate=1, compliance=0.05, active=torch.tensor([0.0, 1.0, 1.0])),
        "sum": td.SumCoupling({"hinge": 0.5, ("ball", 0): -0.3}, {("screw", 1): 0.4}, ratio=0.7, curve=(0.3,), compliance=0.1, damping=1.0),
    },
}
SLOW = ("hinge and slide", "vector leads", "vector follows", "one joint", "locks", "constant sum")  # what other cases have in parts


@pytest.mark.sanitize
@pytest.mark.parametrize("case", [pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW)) for name in CASES])
def test_laws_of_couplings(case: str) -> None:
    torch.manual_seed(11)
    check(*chain(CASES[case]()))


@pytest.mark.slow
@pytest.mark.sanitize
@pytest.mark.parametrize("case", CASES)
def test_parameter_gradients(case: str) -> None:
    """The kernel's gradients against central differences: coefficients, curves, switches, and the geometry of the joints."""
    torch.manual_seed(11)
    mech, z, u = chain({})
    couplings = {name: coupling for name, coupling in CASES[case]().items()}
    for coupling in couplings.values():  # environments one at a time
        for name, ndim in coupling.fields.items():
            value = getattr(coupling, name)
            if value.ndim > ndim:
                setattr(coupling, name, value[0])
    mech.couplings.update(couplings)
    z = mech.close_loops(z[0])
    mech.options = td.SolverOptions(kappa=1e-4, backend="native")
    report = td.testing.check_gradients(mech, z, u[0], directions=3, tolerance=1e-6)
    assert {name.partition(" -> ")[0] for name in report.errors} >= {name for name, p in mech.named_parameters() if p.numel()}


@pytest.mark.sanitize
def test_a_switch_is_the_coupling_that_is_not_there() -> None:
    """Switched on: the mechanism with the coupling; off: without it. Rollouts, per environment."""
    law = {"ratio": 0.4, "curve": (0.3, 0.1)}
    with_it, z, u = chain({"gear": td.JointCoupling("hinge", "slide", **law)})
    without, _, _ = chain({})
    switched, _, _ = chain({"gear": td.JointCoupling("hinge", "slide", **law, active=torch.tensor([1.0, 0.0, 1.0]))})
    on, off, both = (mech.rollout(z, u[:, None].expand(-1, 10, -1), steps=10).z for mech in (with_it, without, switched))
    torch.testing.assert_close(both[[0, 2]], on[[0, 2]], rtol=0, atol=1e-9)
    torch.testing.assert_close(both[1], off[1], rtol=0, atol=1e-9)
    assert float((on[1, -1] - off[1, -1]).abs().max()) > 1e-3
    switched.couplings["gear"].active = 0.0
    torch.testing.assert_close(switched.rollout(z, steps=3).z, without.rollout(z, steps=3).z, rtol=0, atol=1e-9)
