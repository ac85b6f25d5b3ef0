"""Data that visit the host from another device: copies that arrive late change no bit, whatever the call, and overlap with the steps.

No GPU is needed: `late_copies.py` has a device whose copies are as late as a GPU's may be. `test_staging_cuda.py` has the real one.
"""

from __future__ import annotations

import dataclasses
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import torchdojo as td
from hopper import EXACT, hopper, states
from late_copies import LateCopies
from torchdojo.engine import backends as engine_backends
from torchdojo.engine import staging
from torchdojo.engine.backends import Backends
from torchdojo.engine.copies import CudaCopies, copies_for
from torchdojo.engine.kernel import Kernel
from torchdojo.engine.staging import Staging
from torchdojo.gradients.request import Request, StepInputs
from torchdojo.native import loader, memory

pytestmark = pytest.mark.skipif(not loader.available(), reason="no compiler for the native kernel")

HOME = torch.device("meta")  # in requests, marks data that has come to the host


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staging, "LARGE", 1)
    monkeypatch.setattr(staging, "ALIGNED", 8)


@pytest.fixture
def late(monkeypatch: pytest.MonkeyPatch) -> list[LateCopies]:
    """All calls of mechanisms find their data on a device with late copies; the copies of each call."""
    made: list[LateCopies] = []

    def copies(self: Backends, request: Request) -> LateCopies | None:
        if request.device == HOME:
            return None
        made.append(LateCopies())
        return made[-1]

    def at(self: Request, device: torch.device) -> Request:
        return dataclasses.replace(self, device=HOME)

    monkeypatch.setattr(Backends, "_copies", copies)
    monkeypatch.setattr(Request, "at", at)
    return made


@pytest.fixture
def away(monkeypatch: pytest.MonkeyPatch) -> list[LateCopies]:
    """The numbers of mechanisms are on a device with late copies, too."""
    made: list[LateCopies] = []

    def copies(device: torch.device) -> LateCopies:
        made.append(LateCopies())
        return made[-1]

    monkeypatch.setattr(Backends, "_on_host", False)
    monkeypatch.setattr(engine_backends, "copies_for", copies)
    return made


def driven(**options: Any) -> td.Mechanism:
    mech = hopper(dataclasses.replace(EXACT, **options))
    td.actuate(mech, {"servo": td.Actuator.position("hip", kp=3.0, kv=0.1, ctrlrange=(-1, 1))})
    return mech


def data(mech: td.Mechanism, count: int = 40, steps: int = 3) -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    return states(mech, count).detach(), 0.1 * torch.randn(count, steps, 1)


def tensors(value: Any) -> list[Tensor]:
    return [value] if isinstance(value, Tensor) else [t for part in value for t in tensors(part)] if isinstance(value, tuple) else []


def differentiated(call: Callable[[td.Mechanism, Tensor, Tensor], Any]) -> Callable[[td.Mechanism, Tensor, Tensor], Any]:
    """A call with its gradients by z and u."""

    def run(mech: td.Mechanism, z: Tensor, u: Tensor) -> Any:
        z, u = z.clone().requires_grad_(), u.clone().requires_grad_()
        out = call(mech, z, u)
        loss = sum((t * ramp(t, -1, 1, t.numel()).to(t.dtype).view(t.shape)).sum() for t in tensors(out) if t.requires_grad)
        return tuple(t.detach() for t in tensors(out)), torch.autograd.grad(loss, (z, u))

    return run


def ramp(z: Tensor, low: float, high: float, count: int) -> Tensor:
    return torch.linspace(low, high, count, dtype=torch.float64).to(z.device)


CALLS: dict[str, Callable[[td.Mechanism, Tensor, Tensor], Any]] = {
    "step": lambda mech, z, u: mech.step(z, u[:, 0], wrench=ramp(z, -0.1, 0.1, 12)),
    "step of one": lambda mech, z, u: mech.step(z[0], u[0, 0]),
    "step, repeated": lambda mech, z, u: mech.step(z, u[:, 0], repeat=3),
    "step, two batch dimensions": lambda mech, z, u: mech.step(z[:, None], u[:, :2]),
    "step, one u for all": lambda mech, z, u: mech.step(z, u[0, 0]),
    "step, ctrl": lambda mech, z, u: mech.step(z, ctrl=u[:, 0], repeat=2),
    "step, no batch of z": lambda mech, z, u: mech.step(z[0], u[:, 0]),
    "grad_kappa of each": lambda mech, z, u: mech.step(z, u[:, 0], grad_kappa=ramp(z, 1e-4, 1e-3, len(z))),
    "forward": lambda mech, z, u: mech(z, u[:, 0]),
    "rollout": lambda mech, z, u: mech.rollout(z, u, keep_solutions=True),
    "rollout, ctrl": lambda mech, z, u: mech.rollout(z, ctrl=u, repeat=2),
    "rollout, policy": lambda mech, z, u: mech.rollout(z, lambda z: u[:, 0] - 0.1 * z[:, :1], steps=3),
    "rollout, checkpoint": lambda mech, z, u: mech.rollout(z, u, checkpoint=2),
    "rollout, adaptive": lambda mech, z, u: mech.rollout(z[:4], u[:4], adaptive=True),
}
DENSE: dict[str, Callable[[td.Mechanism, Tensor, Tensor], Any]] = {
    "jacobians": lambda mech, z, u: mech.jacobians(z, u[:, 0]),
    "jacobians, out": lambda mech, z, u: mech.jacobians(z, u[:, 0], out=z.new_full((len(z), 24, 25), torch.nan)),
    "linearize": lambda mech, z, u: mech.linearize(z, u[:, 0]),
    "linearize, ctrl": lambda mech, z, u: mech.linearize(z, ctrl=u[:, 0], repeat=2),
    "minimal jacobians": lambda mech, z, u: mech.jacobians_minimal(*mech.to_minimal(z), u[:, 0]),
    "minimal linearize": lambda mech, z, u: mech.linearize_minimal(*mech.to_minimal(z), u[:, 0]),
    "feedback": lambda mech, z, u: mech.rollout_feedback(z, mech.rollout(z, u).z, u, gain=z.new_full((3, 1, 24), 0.01)),
    "float32": lambda mech, z, u: mech.step(z.float(), u[:, 0].float()),
    "warm start": lambda mech, z, u: mech.step(z, u[:, 0], warm_start=mech.step(z, u[:, 0]).solution),
}
EVERY = {**{name: differentiated(call) for name, call in CALLS.items()}, **DENSE}


@pytest.mark.parametrize("call", EVERY)
def test_data_elsewhere(call: str, late: list[LateCopies], small_chunks: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """All bits are those of the same call on the host: of results, and of gradients, which chunks sum in another order."""
    mech = driven()
    z, u = data(mech)
    found = tensors(EVERY[call](mech, z, u))
    assert late
    for copies in late:
        copies.check()
    monkeypatch.undo()
    compare(found, tensors(EVERY[call](mech, z, u)), summed="one u" in call)


@pytest.mark.parametrize("call", EVERY)
def test_numbers_elsewhere(call: str, away: list[LateCopies], small_chunks: None, monkeypatch: pytest.MonkeyPatch) -> None:
    mech = driven()
    z, u = data(mech)
    found = tensors(EVERY[call](mech, z, u))
    assert away
    for copies in away:
        copies.check()
    monkeypatch.undo()
    # The law of the actuators, coordinates and their Jacobians are computed where the numbers are, by the reference.
    alike = "ctrl" not in call and "minimal" not in call
    compare(found, tensors(EVERY[call](mech, z, u)), summed="one u" in call, tolerance=0.0 if alike else 1e-9)


def compare(found: list[Tensor], expected: list[Tensor], summed: bool = False, tolerance: float = 0.0) -> None:
    assert len(found) == len(expected)
    for a, b in zip(found, expected, strict=True):
        assert a.shape == b.shape and a.dtype == b.dtype and not a.requires_grad
        if a.is_floating_point():
            bound = max(tolerance, 1e-13 if summed else 0.0) * max(1.0, float(b.abs().max()))
            assert float((a - b).abs().max()) <= bound, float((a - b).abs().max())
        elif not tolerance:
            assert torch.equal(a, b)


def parametrized_gradients(mech: td.Mechanism, **options: Any) -> list[Tensor]:
    mech.contacts["foot"].friction.requires_grad_()
    mech.bodies["leg"].mass.requires_grad_()
    z, u = data(mech)
    out = mech.rollout(z, **(options or {"u": u}))
    return list(torch.autograd.grad(out.z.square().sum(), (mech.contacts["foot"].friction, mech.bodies["leg"].mass)))


@pytest.mark.parametrize("place", ["late", "away"])
@pytest.mark.parametrize("law", [False, True])
def test_gradients_by_numbers(
    place: str, law: bool, small_chunks: None, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    request.getfixturevalue(place)
    options = {"ctrl": data(driven())[1]} if law else {}
    found = parametrized_gradients(driven(), **options)
    monkeypatch.undo()
    for a, b in zip(found, parametrized_gradients(driven(), **options), strict=True):
        assert float((a - b).abs()) <= 1e-9 * float(b.abs())


def test_numbers_elsewhere_are_copied_when_they_change(away: list[LateCopies]) -> None:
    mech = driven()
    z, u = data(mech)
    before = mech.step(z, u[:, 0]).z
    first = mech.backends._mirror._last
    assert torch.equal(mech.step(z, u[:, 0]).z, before) and mech.backends._mirror._last is first
    mech.bodies["leg"].mass.data.mul_(2.0)  # leaves no trace but the number
    heavier = mech.step(z, u[:, 0]).z
    assert mech.backends._mirror._last is not first and float((heavier - before).abs().max()) > 1e-4
    copy = pickle.loads(pickle.dumps(mech))
    assert copy.backends._mirror._last is None and torch.equal(copy.step(z, u[:, 0]).z, heavier)


def test_copies_run_beside_the_steps(small_chunks: None) -> None:
    """All inputs are on their way before the first step, and results leave before the next one."""
    mech, copies = hopper(), LateCopies()
    z, u = data(mech)
    backend = Staging(mech.backends.select(Request(mech.options)), copies)

    class Watched(Kernel):
        def step(self, given: StepInputs) -> Any:
            copies.log.append("step")
            assert bool(torch.isfinite(given.z).all())
            return super().step(given)

    backend.host.__class__ = Watched
    backend.step(StepInputs(z, u[:, 0]))
    step = ["step", *["out"] * 6]
    assert copies.log == [*["in", "in", "event"] * 5, *step * 5] and copies.waits == 5


@pytest.mark.parametrize("broken", ["wait", "reuse"])
def test_late_copies_find_mistakes(broken: str, small_chunks: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """A wait that is missing, and memory that is used again, do not pass unseen."""
    mech, copies = hopper(), LateCopies()
    z, u = data(mech)
    backend = Staging(mech.backends.select(Request(mech.options)), copies)
    if broken == "wait":
        monkeypatch.setattr(copies, "arrive", lambda count: None)
        assert bool(backend.step(StepInputs(z, u[:, 0])).status.all())
        return
    kept: dict[Any, Tensor] = {}
    make = copies.host
    monkeypatch.setattr(copies, "host", lambda *shape, dtype=torch.float64: kept.setdefault((shape, dtype), make(*shape, dtype=dtype)))
    backend.step(StepInputs(z, u[:, 0]))
    with pytest.raises(AssertionError, match="memory was written to"):
        copies.check()


def test_results_of_the_kernel_lie_in_memory_of_copies() -> None:
    """No result is copied on the host before it travels."""
    mech, copies = hopper(), LateCopies()
    z, u = data(mech, 4)
    made: list[int] = []

    def host(*shape: Any, dtype: torch.dtype = torch.float64) -> Tensor:
        made.append((memory_of := LateCopies.host(copies, *shape, dtype=dtype)).data_ptr())
        return memory_of

    copies.host = host  # type: ignore[method-assign]
    backend = Staging(mech.backends.select(Request(mech.options)), copies)
    backend.step(StepInputs(z, u[:, 0]))
    given = StepInputs(z.clone().requires_grad_(), u[:, 0].clone().requires_grad_())
    out = backend.step(given)
    torch.autograd.grad(out.z.sum(), given[:2])
    floats = [source for source, _ in copies.leaving if source.is_floating_point()]
    assert len(floats) == 8 and len(copies.leaving) == 10 and all(source.data_ptr() in made for source in floats)
    assert not memory.chosen()


def test_what_is_refused() -> None:
    mech, copies = hopper(), LateCopies()
    z, u = data(mech, 4)
    z.requires_grad_()
    backend = Staging(mech.backends.select(Request(mech.options)), copies)
    (grad,) = torch.autograd.grad(backend.step(StepInputs(z, u[:, 0])).z.sum(), z, create_graph=True)
    with pytest.raises(RuntimeError, match="second derivative"):
        grad.sum().backward()
    with pytest.raises(TypeError, match="z: on meta; allowed: tensors on the CPU, or on a CUDA device"):
        copies_for(torch.device("meta"))
    assert isinstance(copies_for(torch.device("cuda:0")), CudaCopies)


def test_transforms_follow_the_copies(late: list[LateCopies]) -> None:
    mech = hopper()
    z, u = data(mech, 3)
    one = torch.func.vmap(lambda z, u: mech.step(z, u).z)(z, u[:, 0])
    assert float((one - mech.step(z, u[:, 0]).z).abs().max()) < 1e-9
    assert torch.func.grad(lambda u: mech.step(z, u).z.sum())(u[:, 0]).shape == (3, 1)
    assert all(not copies.log for copies in late[:1])
