"""The contract of backends (engine/backend.py): every one of them passes the tests of `Contract`. A new one is one more class here."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import Tensor

import torchdojo as td
from hopper import EXACT, hopper, states
from late_copies import LateCopies
from torchdojo.engine import staging
from torchdojo.engine.backend import Backend
from torchdojo.engine.feedback import Given, law_of_feedback
from torchdojo.engine.kernel import Kernel
from torchdojo.engine.reference import Reference, SinglePrecision
from torchdojo.engine.smoothing import Randomized
from torchdojo.engine.staging import Staging
from torchdojo.gradients.request import Request, StepInputs
from torchdojo.native import loader
from torchdojo.solver.options import RandomizedSmoothing


class Contract:
    """Callers may rely on this, whichever backend they have."""

    kind: type[Backend]
    options: td.SolverOptions
    tolerance = 1e-9  # of states and Jacobians that two calls reach on different ways: what the solver leaves
    draws = False  # whether every call has samples of its own
    in_one_call = False

    @pytest.fixture
    def backend(self) -> Backend:
        self.mech = hopper(self.options)
        backend = self.select(Request(self.options))
        assert type(backend) is self.kind
        return backend

    def select(self, request: Request) -> Backend:
        return self.mech.backends.select(request)

    def given(self, *batch: int) -> StepInputs:
        torch.manual_seed(0)
        return StepInputs(states(self.mech, *batch).detach(), 0.1 * torch.randn(*batch, 1), 0.1 * torch.randn(12))

    def same(self, actual: Tensor, expected: Tensor) -> None:
        assert actual.shape == expected.shape
        assert float((actual - expected).abs().max()) <= self.tolerance * max(1.0, float(expected.abs().max()))

    @pytest.mark.parametrize("batch", [(), (3,), (2, 2)])
    def test_a_step_has_the_batch_dimensions_of_its_inputs(self, backend: Backend, batch: tuple[int, ...]) -> None:
        given = self.given(*batch)
        out, layout = backend.step(given), self.mech.layout
        assert out.z.shape == (*batch, 26) and out.solution.shape == (*batch, layout.num_unknowns)
        assert out.status.shape == out.iterations.shape == out.substeps.shape == batch and not out.status.any()
        mixed = backend.step(given._replace(z=given.z[..., None, :], u=given.u[..., None, :].expand(*batch, 2, 1)))
        self.same(mixed.z, out.z[..., None, :].expand(*batch, 2, 26))
        self.same(mixed.impulses, out.impulses[..., None, :].expand(*batch, 2, -1))

    def test_no_wrench_is_a_wrench_of_zero(self, backend: Backend) -> None:
        given = self.given(3)
        bare, zero = given._replace(wrench=None), given._replace(wrench=torch.zeros(12))
        for take in (backend.step, backend.rollout) if self.in_one_call else (backend.step,):
            inputs = (bare, zero) if take == backend.step else tuple(each._replace(u=each.u[:, None]) for each in (bare, zero))
            assert torch.equal(take(inputs[0]).z, take(inputs[1]).z)
        assert torch.equal(backend.jacobian(bare), backend.jacobian(zero))

    def test_a_warm_start_changes_no_result(self, backend: Backend) -> None:
        given = self.given(3)
        out = backend.step(given)
        again = backend.step(given._replace(warm=out.solution))
        self.same(again.z, out.z)
        assert int(again.iterations.sum()) < int(out.iterations.sum())

    def test_a_rollout_is_its_steps(self, backend: Backend) -> None:
        given = self.given(2)
        u = 0.1 * torch.randn(2, 2, 1)
        path = backend.rollout(given._replace(u=u), keep_solutions=True)
        assert path.z.shape == (2, 3, 26) and path.u.shape == u.shape and path.solution.shape[1] == 2
        stepped = backend.follow(lambda t, z: u[:, t], 2, given, keep_solutions=True)
        self.same(path.z, stepped.z)
        self.same(path.impulses, stepped.impulses)
        assert torch.equal(path.u, stepped.u) and torch.equal(path.status, stepped.status)
        assert backend.rollout(given._replace(u=u)).solution.shape[1] == 1

    def test_gradients_reach_all_data(self, backend: Backend) -> None:
        given = StepInputs(*(t.requires_grad_() for t in self.given(2)[:3]))
        out = backend.step(given)
        grads = torch.autograd.grad(out.z.sum() + out.impulses.sum(), given[:3])
        assert all(
            grad.shape == t.shape and bool(torch.isfinite(grad).all()) and bool(grad.any())
            for grad, t in zip(grads, given[:3], strict=True)
        )
        if self.draws:
            return
        rows = given.z.detach()[:, None].expand(-1, 2, -1)  # shared inputs get sums
        shared = backend.step(given._replace(z=rows, wrench=given.wrench.detach(), u=given.u[:, None]))
        (twice,) = torch.autograd.grad(shared.z.sum() + shared.impulses.sum(), given.u)
        self.same(twice, 2 * grads[1])

    def test_a_linearization_is_a_step_and_its_jacobian(self, backend: Backend) -> None:
        given = self.given(3)
        solved, jacobian = backend.linearize(given)
        out, memory = backend.step(given), torch.full((3, 24, 25), torch.nan)
        self.same(solved.z, out.z)
        self.same(jacobian, backend.jacobian(given._replace(warm=out.solution)))
        assert backend.jacobian(given._replace(warm=out.solution), memory).data_ptr() == memory.data_ptr()
        self.same(memory, jacobian)

    def test_coordinates(self, backend: Backend) -> None:
        """A step between coordinates is the step from `lift`, and its Jacobian agrees with differences of steps."""
        mech, n = self.mech, self.mech.num_coordinates
        q, qd = mech.to_minimal(self.given(2).z)
        x = torch.cat((q, qd), -1)
        given = StepInputs(x, 0.1 * torch.randn(2, 1))
        self.same(backend.lift(q, qd), mech.to_maximal(q, qd))
        solved, jacobian = backend.minimal_linearize(given)
        self.same(solved.z, backend.step(given._replace(z=backend.lift(q, qd))).z)
        assert jacobian.shape == (2, 2 * n, 2 * n + 1)
        self.same(backend.minimal_jacobian(given._replace(warm=solved.solution)), jacobian)
        broken = x.clone()
        broken[0, 0] = torch.nan
        flagged, zero = backend.minimal_linearize(given._replace(z=broken))
        assert flagged.status.bool().tolist() == [True, False] and not zero[0].any() and bool(zero[1].any())

    def test_feedback(self, backend: Backend) -> None:
        """Inputs are what the law says at the states of the rollout, and the rollout is the one under these inputs."""
        given, mech = self.given(2), self.mech
        u = 0.1 * torch.randn(2, 2, 1)
        nominal = backend.rollout(given._replace(u=u)).z
        gain, start = 0.01 * torch.randn(2, 2, 1, 24), given._replace(z=mech.retract(given.z, 0.01 * torch.randn(2, 24)), u=u)
        law = law_of_feedback(mech, u, Given(nominal, gain, None, None, 1.0, (-1.0, 1.0)), lambda z: z)
        path = backend.rollout_feedback(start, law)
        self.same(path.u, torch.stack([law.at(t, path.z[:, t]) for t in range(2)], 1))
        self.same(path.z, backend.rollout(start._replace(u=path.u)).z)

    def test_other_numbers(self, backend: Backend) -> None:
        given = self.given(3)
        again = backend.having(list(backend.stacked), backend.request)
        assert isinstance(again, self.kind) or self.kind is SinglePrecision
        heavier = backend.having([1.5 * number if i == 2 else number for i, number in enumerate(backend.stacked)], backend.request)
        assert float((again.step(given).z - backend.step(given).z).abs().max()) <= max(1e-5, self.tolerance)
        assert float((heavier.step(given).z - backend.step(given).z).abs().max()) > 1e-4

    def test_capabilities(self, backend: Backend) -> None:
        """Whoever offers one call takes a budget in it, and whoever has a program is the kernel."""
        assert backend.in_one_call == self.in_one_call and (backend.program is not None) == (self.kind is Kernel)
        assert backend.tape(2, 3) is None  # a tape needs actuators
        if backend.in_one_call:
            hurried = self.select(dataclasses.replace(backend.request, budget=1))
            assert bool(hurried.rollout(self.given(3)._replace(u=torch.zeros(3, 2, 1))).status.any())


class TestReference(Contract):
    kind, options = Reference, dataclasses.replace(EXACT, backend="reference")


class TestSinglePrecision(Contract):
    kind = SinglePrecision
    options = td.SolverOptions(kappa=1e-3, backend="reference", dtype=torch.float32)
    tolerance = 2e-2


@pytest.mark.skipif(not loader.available(), reason="no compiler for the native kernel")
class TestKernel(Contract):
    kind, options, in_one_call = Kernel, EXACT, True


@pytest.mark.skipif(not loader.available(), reason="no compiler for the native kernel")
class TestStaging(Contract):
    """Staging around the kernel, with copies that arrive late, and with the batch cut into chunks of an environment each."""

    kind, options, in_one_call = Staging, EXACT, True

    @pytest.fixture(autouse=True)
    def small_chunks(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in ("LARGE", "ALIGNED"):
            monkeypatch.setattr(staging, name, 1)

    def select(self, request: Request) -> Backend:
        return Staging(super().select(request), LateCopies())


class TestStagingOfReference(Contract):
    """Where nothing runs beside the copies."""

    kind, options = Staging, dataclasses.replace(EXACT, backend="reference")

    def select(self, request: Request) -> Backend:
        return Staging(super().select(request), LateCopies())


class TestRandomized(Contract):
    """Randomized smoothing of the kernel's steps, where there is a kernel."""

    kind, draws = Randomized, True
    options = dataclasses.replace(EXACT, gradient_mode="randomized", randomized=RandomizedSmoothing(samples=4, input_deviation=0.01))
