"""Steps for data on a real GPU: the calls of `test_staging.py`, streams, and memory that copies still read. Skipped without one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from test_staging import EVERY, compare, data, driven, parametrized_gradients, tensors
from torch import Tensor

import torchdojo as td
from hopper import EXACT, hopper
from torchdojo.engine import staging
from torchdojo.native import loader

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
    pytest.mark.skipif(not loader.available(), reason="no compiler for the native kernel"),
]

LATE = 200_000_000  # cycles for which a stream sleeps: 0.1 s


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(staging, "LARGE", 1)
    monkeypatch.setattr(staging, "ALIGNED", 8)
    yield
    torch.cuda.synchronize()


NO_VISITORS = ("minimal jacobians", "minimal linearize", "linearize, ctrl")  # mechanisms on the CPU refuse visitors there


@pytest.mark.parametrize("numbers", ["cpu", "cuda"])
@pytest.mark.parametrize("call", EVERY)
def test_calls(call: str, numbers: str, small_chunks: None) -> None:
    mech = driven()
    z, u = data(mech)
    expected = tensors(EVERY[call](mech, z, u))
    mech = mech.to(numbers)
    if numbers == "cpu" and call in NO_VISITORS:
        with pytest.raises(TypeError, match="on cuda:0"):
            EVERY[call](mech, z.cuda(), u.cuda())
        return
    found = tensors(EVERY[call](mech, z.cuda(), u.cuda()))
    assert all(t.device.type == "cuda" for t in found)
    # The policy of a rollout, laws of actuators, coordinates and differences are computed on the GPU, whose products round otherwise.
    alike = not any(word in call for word in ("policy", "adaptive", *(("ctrl", "minimal", "feedback") if numbers == "cuda" else ())))
    compare([t.cpu() for t in found], expected, summed="one u" in call, tolerance=0.0 if alike else 1e-9)


@pytest.mark.parametrize("numbers", ["cpu", "cuda"])
def test_gradients_by_numbers(numbers: str, small_chunks: None) -> None:
    expected = parametrized_gradients(driven())
    mech = driven()
    z, u = (t.cuda() for t in data(mech))
    mech = mech.to(numbers)
    friction, mass = mech.contacts["foot"].friction.requires_grad_(), mech.bodies["leg"].mass.requires_grad_()
    found = torch.autograd.grad(mech.rollout(z, u).z.square().sum(), (friction, mass))
    for a, b in zip(found, expected, strict=True):
        assert a.device.type == numbers and float((a.cpu() - b).abs()) <= 1e-9 * float(b.abs())


@pytest.mark.parametrize("graph", [False, True])
def test_streams(graph: bool, small_chunks: None) -> None:
    """Inputs that a stream makes late are waited for, and results are there for what the stream does next, without a wait of the caller."""
    mech = hopper()
    z, u = data(mech)
    expected = tensors(EVERY["step"](mech, z, u) if graph else mech.step(z, u[:, 0]))
    stream = torch.cuda.Stream()
    there, control = torch.empty_like(z, device="cuda"), u.cuda()
    source = z.cuda()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(LATE)
        there.copy_(source)
        found = [2 * t for t in tensors(EVERY["step"](mech, there, control) if graph else mech.step(there, control[:, 0]))]
        there.fill_(torch.nan)
    stream.synchronize()
    if graph:
        expected = tensors(EVERY["step"](mech, z, u))
    compare([(t / 2).to(e.dtype).cpu() for t, e in zip(found, expected, strict=True)], expected)


def test_memory_of_copies_in_flight(small_chunks: None) -> None:
    """Pinned memory goes to no one else before a copy from it is done, though the tensor is gone long before."""
    mech = hopper()
    z, u = data(mech)
    expected = [mech.step(z, u[:, 0] + i).z for i in range(20)]
    there, controls, found = z.cuda(), [(u[:, 0] + i).cuda() for i in range(20)], list[Tensor]()
    stream = torch.cuda.Stream()
    events = [torch.cuda.Event() for _ in controls]
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        for i, control in enumerate(controls):
            out = mech.step(there, control)
            torch.cuda._sleep(LATE // 20)  # later copies wait in the stream, while the host goes on
            found.append(out.z.clone())
            events[i].record()
            for _ in range(8):  # whatever memory has been given back is written to
                torch.empty(8 * 26, dtype=torch.float64, pin_memory=True).fill_(torch.nan)
    stream.synchronize()
    for a, b in zip(found, expected, strict=True):
        assert torch.equal(a.cpu(), b)


def test_a_large_batch() -> None:
    """The chunks of 4,096 quadrupeds, forward and backward, with the bits of the CPU."""
    mech = td.models.quadruped()
    start = td.models.initial_state("quadruped", mech)
    torch.manual_seed(0)
    u = 2 * torch.randn(4096, mech.num_inputs)
    z = mech.rollout(start.expand(4096, -1), u[:, None].expand(-1, 20, -1)).z[:, -1]

    def run(z: Tensor, u: Tensor) -> list[Tensor]:
        z, u = z.clone().requires_grad_(), u.clone().requires_grad_()
        out = mech.step(z, u)
        return [*(t.detach() for t in out), *torch.autograd.grad(out.z[..., 2].square().sum() + out.impulses.sum(), (z, u))]

    compare([t.cpu() for t in run(z.cuda(), u.cuda())], run(z, u))


OBSERVED: dict[str, Callable[[td.Mechanism, Tensor], Any]] = {
    "to_minimal": lambda mech, z: mech.to_minimal(z),
    "to_maximal": lambda mech, z: mech.to_maximal(*mech.to_minimal(z)),
    "distances": lambda mech, z: mech.distances(z),
    "contact_points": lambda mech, z: mech.contact_points(z),
    "energies": lambda mech, z: (mech.kinetic_energy(z), mech.potential_energy(z)),
}


@pytest.mark.parametrize("numbers", ["cpu", "cuda"])
@pytest.mark.parametrize("name", OBSERVED)
def test_what_is_seen_in_states(name: str, numbers: str) -> None:
    """On the device of the state: by the kernel for a mechanism on the CPU, on the GPU for one there."""
    call, mech = OBSERVED[name], driven()
    z, _ = data(mech)
    mech.distances(z)  # the kernel may not take what is left of this for the GPU's

    def run(z: Tensor) -> list[Tensor]:
        z = z.clone().requires_grad_()
        out = tensors(call(mech, z))
        return [*(t.detach() for t in out), *torch.autograd.grad(sum(t.sum() for t in out), z)]

    expected = run(z)
    mech = mech.to(numbers)
    found = run(z.cuda())
    assert all(t.device.type == "cuda" for t in found)
    compare([t.cpu() for t in found], expected, tolerance=0.0 if numbers == "cpu" else 1e-9)


def test_what_is_refused() -> None:
    mech = driven()
    z, u = data(mech, 4)
    with pytest.raises(TypeError, match=r"u: on cpu, the state on cuda:0; move one, for example u.to"):
        mech.step(z.cuda(), u[:, 0])
    with pytest.raises(TypeError, match=r"ctrl: got torch.float64 on cpu; allowed: .* on cuda:0"):
        mech.step(z.cuda(), ctrl=u[:, 0])
    with pytest.raises(TypeError, match=r"z: on cuda:0, the mechanism on cpu; move one, for example mech.to"):
        mech.momentum(z.cuda())
    with pytest.raises(TypeError, match="z: on cpu, the mechanism on cuda:0"):
        driven().to("cuda").step(z)


def test_compiled_code_and_transforms() -> None:
    mech = hopper()
    z, u = data(mech, 4)
    expected, there, control = mech.step(z, u[:, 0]).z, z.cuda(), u[:, 0].cuda()
    compare([torch.compile(lambda z, u: mech.step(z, u).z, backend="aot_eager")(there, control).cpu()], [expected], tolerance=1e-9)
    compare([torch.func.vmap(lambda z, u: mech.step(z, u).z)(there, control).cpu()], [expected], tolerance=1e-9)


def test_the_reference_steps_where_the_numbers_are() -> None:
    mech = hopper(td.SolverOptions(kappa=EXACT.kappa, residual_tol=EXACT.residual_tol, backend="reference"))
    z, u = data(mech, 4)
    expected = mech.step(z, u[:, 0]).z
    visited = mech.step(z.cuda(), u[:, 0].cuda()).z
    compare([visited.cpu()], [expected])
    compare([mech.to("cuda").step(z.cuda(), u[:, 0].cuda()).z.cpu()], [expected], tolerance=1e-9)
