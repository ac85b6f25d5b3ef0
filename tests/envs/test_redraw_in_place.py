"""Numbers that are redrawn at resets: written in place where nothing can be wrong with them, and the same as by assignment."""

from __future__ import annotations

import pytest
import torch

import torchdojo as td
from torchdojo.envs.randomization import Randomization
from torchdojo.runs.memory import keep_freed_memory

RANGES = {"bodies.*": (0.8, 1.2), "contacts.*.friction": (0.5, 1.5), "bodies.torso.mass": (0.9, 1.0)}


def randomized(**ranges: tuple[float, float]) -> tuple[td.Mechanism, Randomization]:
    mech = td.models.make("ant")
    return mech, Randomization(mech, 4, ranges or RANGES, torch.Generator().manual_seed(0))


def test_redrawn_numbers_stay_the_same_parameters() -> None:
    mech, drawn = randomized()
    parameter, nominal = mech.bodies["torso"].mass, td.models.make("ant").bodies["torso"].mass
    z = td.models.initial_state("ant", mech, (4,))
    before = mech.step(z).z
    drawn.draw(torch.tensor([True, False, True, False]))
    assert mech.bodies["torso"].mass is parameter
    assert torch.equal(parameter, nominal * (drawn.factors["bodies.*"] * drawn.factors["bodies.torso.mass"]))
    moved = (mech.step(z).z - before).abs().amax(-1) > 0
    assert moved.tolist() == [True, False, True, False]  # the kernel sees them, and the others keep their numbers
    assigned, other = randomized()
    other._stored.clear()  # as if none were its own
    other.load_state_dict(drawn.state_dict())
    for name, value in assigned.named_parameters():
        assert torch.equal(value, mech.get_parameter(name)), name


def test_what_others_put_there_is_replaced() -> None:
    """By a user, or with a gradient: then nothing is written into it."""
    mech, drawn = randomized()
    own = torch.full((4,), 2.0, requires_grad=True)
    mech.bodies["torso"].mass = own
    drawn.draw(torch.ones(4, dtype=torch.bool))
    assert torch.equal(own, torch.full((4,), 2.0)) and mech.bodies["torso"].mass is not own
    kept = mech.bodies["torso"].mass.requires_grad_()
    drawn.draw(torch.ones(4, dtype=torch.bool))
    assert mech.bodies["torso"].mass is not kept


def test_ranges_with_an_impossible_end_are_checked_at_every_draw() -> None:
    mech, drawn = randomized(**{"bodies.torso.mass": (0.0, 1.0)})
    before = mech.bodies["torso"].mass
    drawn.draw(torch.ones(4, dtype=torch.bool))
    assert mech.bodies["torso"].mass is not before
    drawn.factors["bodies.torso.mass"] = torch.zeros(4)
    with pytest.raises(ValueError, match="positive masses"):
        drawn._apply()


def test_freed_memory_stays() -> None:
    """Blocks of 8 MB get the same pages again, instead of new ones from the system."""
    resource = pytest.importorskip("resource")
    keep_freed_memory()
    for _ in range(3):
        torch.zeros(1 << 20, dtype=torch.float64)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(10):
        torch.ones(1 << 20, dtype=torch.float64)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before < 2048  # one block has 2,048 pages
