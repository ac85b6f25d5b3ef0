"""The compiled kernel against the reference, as in test_parity.py: couplings of the lengths of strings."""

from __future__ import annotations

import pytest
import torch
from mechanisms import Sample, random_body
from parity import check, exact

import torchdojo as td

COUNT = 3
SITES = {
    "hook": td.Site(None, (0.3, 0.2, 0.4)),
    "a": td.Site("a", (0.05, 0.0, 0.1)),
    "b": td.Site("b", (0.03, 0.04, -0.1)),
    "c": td.Site("c", (0.0, 0.1, 0.05)),
    "wall": td.Site(None, (0.5, -0.4, 0.0)),
    "free": td.Site("free", (0.1, 0.0, 0.02)),
    "rim": td.Site("free", (-0.1, 0.05, 0.0)),
}
BALL = td.Wrap(td.Site("b", (0.02, 0.0, 0.05), (0.8, 0.6, 0.0, 0.0)), 0.06)
PIN = td.Wrap(td.Site("c", (0.0, 0.02, 0.1), (0.8, 0.0, 0.6, 0.0)), 0.05, "cylinder", side=td.Site("c", (0.0, 0.2, 0.1)))
CASES = {
    "straight": (["hook", "a", "free"], ["wall", "rim", "b"], {"ratio": -0.7}),
    "curve": (["hook", "free"], ["a", "c"], {"ratio": 0.5, "curve": (0.4, -0.3, 0.2)}),
    "constant": (["hook", "a", "b", "free"], None, {}),
    "wrapped": (["a", BALL, "c", PIN, "free"], ["hook", "a", td.Pulley(2.0), "wall", "rim"], {"ratio": 0.3, "curve": (0.2,)}),
    "pulleys": (["hook", "a", td.Pulley(2.0), "b", "free"], ["wall", "rim", td.Pulley(-3.0), "c", "hook"], {"ratio": -0.4}),
    "switched": (["hook", "a", "free"], ["wall", "rim"], {"ratio": -0.7, "curve": (0.1, 0.2), "active": torch.tensor([1.0, 0.0, 1.0])}),
    "soft": (
        ["hook", "a", "free"],
        ["wall", BALL, "b"],
        {"curve": (0.3, 0.1), "compliance": torch.tensor([0.02, 0.0, 0.3]), "damping": 0.5},
    ),
}
SLOW = ("straight", "constant", "pulleys")  # what other cases have in parts


def strung(case: str) -> Sample:
    """Three links on hinges and a slide, and a body that flies, in states on the coupling."""
    torch.manual_seed(5)
    bodies = {name: random_body() for name in ("a", "b", "c", "free")}
    joints = {
        "shoulder": td.Revolute(None, "a", axis=(0, 1, 0.2), child_anchor=(0, 0, 0.2)),
        "slide": td.Prismatic("a", "b", axis=(0, 0.2, 1), parent_anchor=(0, 0.1, -0.2)),
        "elbow": td.Revolute("b", "c", axis=(0.1, 1, 0), parent_anchor=(0, 0, -0.2), child_anchor=(0, 0.05, 0.2)),
        "flight": td.Floating(None, "free"),
    }
    follower, leader, law = CASES[case]
    sites = {name: td.Site(site.body, site.position.clone()) for name, site in SITES.items()}
    plain = td.Mechanism(bodies, joints, timestep=0.01, options=exact())
    q, qd = 0.4 * torch.randn(COUNT, plain.num_coordinates), 0.7 * torch.randn(COUNT, plain.num_coordinates)
    z = plain.to_maximal(q.double(), qd.double())
    coupling = td.StringCoupling(follower, leader, sites=sites, leader_length=0.4, **law)
    plain.couplings["string"] = coupling
    gap = coupling.constraint(*plain.element_poses(z, coupling))[..., 0]
    coupling.offset = float(gap.mean())  # so that states nearby are on it
    z = plain.close_loops(z)
    return Sample(plain, z, torch.randn(COUNT, plain.num_inputs).double())


@pytest.mark.sanitize
@pytest.mark.parametrize("case", [pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW)) for name in CASES])
def test_strings_of_kernel_and_reference(case: str) -> None:
    check(*strung(case))


@pytest.mark.slow
@pytest.mark.sanitize
@pytest.mark.parametrize("case", CASES)
def test_gradients_by_numbers_of_strings(case: str) -> None:
    """The kernel's gradients against central differences: laws, paths, joints, bodies."""
    mech, z, u = strung(case)
    coupling = mech.couplings["string"]
    for name, ndim in coupling.fields.items():  # environments one at a time
        value = getattr(coupling, name)
        if value.ndim > ndim:
            setattr(coupling, name, value[0])
    mech.options = td.SolverOptions(kappa=1e-4, backend="native")
    report = td.testing.check_gradients(mech, mech.close_loops(z[0]), u[0], directions=3, tolerance=1e-6)
    assert {name.partition(" -> ")[0] for name in report.errors} >= {name for name, p in mech.named_parameters() if p.numel()}
