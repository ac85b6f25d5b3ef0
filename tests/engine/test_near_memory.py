"""Terms of near contacts that stay in one table between steps of the kernel: whoever asks a slot sees the term of the last step."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import torchdojo as td
from torchdojo.native import loader

pytestmark = pytest.mark.skipif(not loader.available(), reason="needs the compiled kernel")
BOX, FLOOR = td.Box((0.1, 0.08, 0.06)), td.Box((2.0, 2.0, 0.2), position=(0.0, 0.0, -0.1))


def fallen(batch: tuple[int, ...] = (3,)) -> tuple[td.Mechanism, td.StepOutput]:
    """A box that lies on the floor, and its last step."""
    mech = td.Mechanism({"box": td.Body(1.0, shape=BOX)}, (), td.near_contacts("box", BOX, None, FLOOR, slots=8), timestep=0.01)
    z = mech.initial_state(batch, box={"position": (0.0, 0.0, 0.0302)})
    z = z + 1e-3 * torch.arange(z.shape[0] if batch else 1).reshape(*batch, 1) * torch.eye(13)[3]
    out = mech.step(z)
    for _ in range(3):
        out = mech.step(out.z, warm_start=out.solution)
    assert not out.status.any()
    return mech, out


def terms(mech: td.Mechanism) -> Tensor:
    return torch.stack([slot.term for slot in mech.contacts.values()], -2)


def test_steps_leave_slots_as_they_are_until_they_are_asked() -> None:
    mech, out = fallen()
    slot = next(iter(mech.contacts.values()))
    kept = slot._parameters["term"]
    assert kept.shape == (3,)
    out = mech.step(out.z, warm_start=out.solution)
    assert slot._parameters["term"] is kept
    assert terms(mech).shape == (3, 8, 3) and int((terms(mech)[..., 0] >= 0).sum()) == 12


READS: dict[str, Callable[[td.Mechanism], td.Mechanism | Tensor]] = {
    "copy": copy.deepcopy,
    "pickle": lambda mech: pickle.loads(pickle.dumps(mech)),
    "copy of a slot": lambda mech: torch.stack([copy.deepcopy(slot).term for slot in mech.contacts.values()], -2),
    "state_dict": lambda mech: torch.stack([value for name, value in mech.state_dict().items() if name.endswith(".term")], -2),
    "to": lambda mech: mech.to("cpu"),
}


@pytest.mark.parametrize("read", READS)
def test_all_ways_to_read_terms(read: str) -> None:
    mech, out = fallen()
    found = READS[read](mech)
    found = found if isinstance(found, Tensor) else terms(found)
    assert torch.equal(found, terms(mech)) and bool((found[..., 0] >= 0).any())
    # Reading changes no step.
    plain, _ = fallen()
    after, expected = (one.step(out.z, warm_start=out.solution) for one in (mech, plain))
    assert torch.equal(after.z, expected.z) and torch.equal(after.iterations, expected.iterations)


def test_terms_that_are_set_or_loaded_count() -> None:
    mech, out = fallen(())
    kept = {name: value.clone() for name, value in mech.state_dict().items()}
    none = torch.tensor([-1.0, 0.0, 0.0], dtype=torch.float64)
    for slot in mech.contacts.values():
        slot.term = none
    assert bool((terms(mech) == none).all())
    again = mech.step(out.z, warm_start=out.solution)
    torch.testing.assert_close(again.z, mech.step(out.z, warm_start=out.solution).z, rtol=0, atol=1e-10)
    mech.step(out.z + 0.1 * torch.eye(13)[2])  # in the air, without terms
    assert bool((terms(mech)[..., 0] < 0).all())
    mech.load_state_dict(kept)
    assert torch.equal(terms(mech), torch.stack([kept[f"contacts.{name}.term"] for name in mech.contacts], -2))


def assign(mech: td.Mechanism, z: Tensor) -> td.StepOutput:
    for slot in mech.contacts.values():
        slot.friction = 0.0
    return mech.step(z)


def write(mech: td.Mechanism, z: Tensor) -> td.StepOutput:
    for slot in mech.contacts.values():
        slot.friction.data.zero_()
    return mech.step(z)


def graph(mech: td.Mechanism, z: Tensor) -> td.StepOutput:
    for slot in mech.contacts.values():
        slot.friction = 0.0 * torch.ones((), dtype=torch.float64).requires_grad_()
    return mech.step(z)


def functional(mech: td.Mechanism, z: Tensor) -> td.StepOutput:
    smooth = {f"contacts.{name}.friction": torch.zeros((), dtype=torch.float64) for name in mech.contacts}
    result: td.StepOutput = torch.func.functional_call(Step(mech), {f"mech.{name}": value for name, value in smooth.items()}, (z,))
    return result


class Step(torch.nn.Module):
    def __init__(self, mech: td.Mechanism) -> None:
        super().__init__()
        self.mech = mech

    def forward(self, z: Tensor) -> td.StepOutput:
        return self.mech.step(z)


@pytest.mark.parametrize("change", [assign, write, graph, functional])
def test_numbers_that_change_between_steps_count(change: Callable[[td.Mechanism, Tensor], td.StepOutput]) -> None:
    mech, out = fallen(())
    z = out.z + 0.2 * torch.eye(13)[3]
    slides = mech.step(z)
    free = change(mech, z)
    assert float(free.z[3]) == pytest.approx(0.2, abs=1e-6) and float(slides.z[3]) < 0.19


def test_a_module_of_two_mechanisms_has_the_terms_of_the_last_step() -> None:
    contacts = td.near_contacts("box", BOX, None, FLOOR, slots=8)
    mechs = [td.Mechanism({"box": td.Body(1.0, shape=BOX)}, (), contacts, timestep=0.01) for _ in range(2)]
    z = mechs[0].initial_state(box={"position": (0.0, 0.0, 0.0302)})
    mechs[0].step(z)
    assert bool((terms(mechs[0])[..., 0] >= 0).any())
    mechs[0].step(z)
    mechs[1].step(z + 0.1 * torch.eye(13)[2])
    assert bool((terms(mechs[0])[..., 0] < 0).all())
    mechs[0].step(z)
    assert bool((terms(mechs[1])[..., 0] >= 0).any())


def test_other_batches_begin_without_terms() -> None:
    mech, _ = fallen((2,))
    z = mech.initial_state((2, 2), box={"position": (0.0, 0.0, 0.2)})
    mech.step(z)
    assert terms(mech).shape == (2, 2, 8, 3) and bool((terms(mech)[..., 0] < 0).all())
