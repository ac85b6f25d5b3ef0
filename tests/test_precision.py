"""Float32 around the float64 step: states, inputs and networks of either dtype, and physical numbers that keep their digits."""

from __future__ import annotations

import copy
import inspect
import io
from collections.abc import Callable
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn

import torchdojo as td
from hopper import hopper, on, states

SINGLE = torch.float32
# Results of the same float64 call, rounded once.
ROUNDED = dict(rtol=1e-6, atol=1e-6)

#: name -> call with a mechanism, z, u, q and qd. The dtype of its results is the dtype of z and q.
CALLS: dict[str, Callable[[td.Mechanism, Tensor, Tensor, Tensor, Tensor], Any]] = {
    "forward": lambda m, z, u, q, qd: m(z, u),
    "step": lambda m, z, u, q, qd: m.step(z, u),
    "step_by_keywords": lambda m, z, u, q, qd: m.step(u=u, z=z, wrench=torch.full((12,), 0.1, dtype=u.dtype)),
    "rollout": lambda m, z, u, q, qd: m.rollout(z, u[..., None, :].expand(*u.shape[:-1], 3, -1)),
    "repeat": lambda m, z, u, q, qd: m.step(z, u, repeat=3),
    "ctrl": lambda m, z, u, q, qd: m.step(z, ctrl=u, repeat=2),
    "rollout_of_ctrl": lambda m, z, u, q, qd: m.rollout(z, ctrl=u[..., None, :], repeat=2, keep_solutions=True),
    "policy_of_ctrl": lambda m, z, u, q, qd: m.rollout(z, ctrl=lambda z: 0.1 * z[..., :1], steps=2, repeat=2),
    "policy": lambda m, z, u, q, qd: m.rollout(z, lambda z: 0.1 * z[..., :1], steps=3),
    "adaptive": lambda m, z, u, q, qd: m.rollout(z, steps=2, adaptive=True),
    "jacobians": lambda m, z, u, q, qd: m.jacobians(z, u),
    "step_minimal": lambda m, z, u, q, qd: m.step_minimal(q, qd, u),
    "rollout_minimal": lambda m, z, u, q, qd: m.rollout_minimal(q, qd, lambda q, qd: q[..., -1:] - qd[..., -1:], steps=3),
    "jacobians_minimal": lambda m, z, u, q, qd: m.jacobians_minimal(q, qd, u),
    "to_minimal": lambda m, z, u, q, qd: m.to_minimal(z),
    "to_maximal": lambda m, z, u, q, qd: m.to_maximal(q, qd),
    "close_loops": lambda m, z, u, q, qd: m.close_loops(z),
    "place": lambda m, z, u, q, qd: m.place(z, clearance=0.01),
    "unwind": lambda m, z, u, q, qd: m.unwind(z, near=q),
    "actuators": lambda m, z, u, q, qd: m.actuators(u, z),
    "body_points": lambda m, z, u, q, qd: m.body_points(z, "leg", u.new_tensor([[0.0, 0.1, 0.2]])),
    "contact_points": lambda m, z, u, q, qd: m.contact_points(z),
    "distances": lambda m, z, u, q, qd: m.distances(z),
    "joint_errors": lambda m, z, u, q, qd: m.joint_errors(z),
    "kinetic_energy": lambda m, z, u, q, qd: m.kinetic_energy(z, z),
    "potential_energy": lambda m, z, u, q, qd: m.potential_energy(z),
    "momentum": lambda m, z, u, q, qd: m.momentum(z, z),
    "retract": lambda m, z, u, q, qd: m.retract(z, torch.full((24,), 0.1, dtype=u.dtype)),
    "difference": lambda m, z, u, q, qd: m.difference(z, z),
    "vmap": lambda m, z, u, q, qd: torch.func.vmap(m)(z, u),
    "jvp": lambda m, z, u, q, qd: torch.func.jvp(m, (z, u), (z, u)),
    "jacrev": lambda m, z, u, q, qd: torch.func.vmap(torch.func.jacrev(m, argnums=(0, 1)))(z, u),
}


def inputs(mech: td.Mechanism) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """z, u, q, qd (2, ...), numbers of float32 as float64."""
    z, u = states(mech, 2), 0.1 * torch.randn(2, 1)
    return tuple(t.float().double() for t in (z, u, *mech.to_minimal(z)))  # type: ignore[return-value]


def flat(result: Any) -> dict[str, Tensor]:
    if isinstance(result, Tensor):
        return {"": result}
    names = getattr(result, "_fields", range(len(result)))
    return {str(name): value for name, value in zip(names, result, strict=True)}


def test_every_method_that_takes_a_state_takes_float32() -> None:
    """A new method belongs under `in_float64`; checks and poses are for the methods themselves."""
    internal = ("check_inputs", "check_state", "check_coordinates", "configurations", "constraint_rows", "element_poses", "element_states")
    internal = (*internal, "quick_coordinates")
    for name in dir(td.Mechanism):
        method = getattr(td.Mechanism, name)
        if name.startswith("_") or name in internal or not inspect.isfunction(method):
            continue
        parameters = list(inspect.signature(method).parameters)
        if parameters[1:2] in (["z"], ["q"]):
            assert hasattr(method, "__wrapped__"), name


@pytest.mark.parametrize("name", CALLS)
def test_results_have_the_dtype_of_the_state(name: str) -> None:
    mech, call = hopper(), CALLS[name]
    td.actuate(mech, {"servo": td.Actuator.position("hip", kp=2.0, kv=0.1)})
    z, u, q, qd = inputs(mech)
    expected = flat(call(mech, z, u, q, qd))
    for state, other in ((torch.float32, torch.float32), (torch.float32, torch.float64), (torch.float64, torch.float32)):
        result = flat(call(mech, z.to(state), u.to(other), q.to(state), qd.to(other)))
        for key, value in result.items():
            if value.is_floating_point():
                dtype = torch.float64 if key == "solution" else state
                if name in ("jacrev", "actuators"):
                    dtype = (state, other)[int(key or 1)]
                assert value.dtype == dtype, key
            if name not in ("policy", "policy_of_ctrl", "rollout_minimal"):  # what these policies see is rounded
                torch.testing.assert_close(value.double(), expected[key].double(), **ROUNDED)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_other_dtypes_are_refused(dtype: torch.dtype) -> None:
    mech = hopper()
    td.actuate(mech, {"servo": td.Actuator.position("hip", kp=2.0, kv=0.1)})
    given = [value.to(dtype) for value in inputs(mech)]
    for name, call in CALLS.items():
        with pytest.raises(TypeError, match=rf"got {dtype}; allowed: torch.float64 or torch.float32; convert it: \w+\.double\(\)"):
            call(mech, *given)
            pytest.fail(f"{name} takes {dtype}")


def test_autocast_changes_nothing_or_is_refused() -> None:
    mech = hopper()
    td.actuate(mech, {"servo": td.Actuator.position("hip", kp=2.0, kv=0.1)})
    given = inputs(mech)
    for call in CALLS.values():
        expected = flat(call(mech, *given))
        try:
            with torch.autocast("cpu", dtype=torch.bfloat16):
                result = flat(call(mech, *given))
        except RuntimeError as error:
            assert "torch.autocast is on" in str(error)
        else:
            assert all(torch.equal(value, expected[key]) for key, value in result.items())


def test_warm_starts_and_jacobians_written_into_out() -> None:
    mech = hopper()
    z, u, q, qd = (t.float() for t in inputs(mech))
    first = mech.step(z, u)
    cold, warm = mech.step(first.z, u), mech.step(first.z, u, warm_start=first.solution)
    torch.testing.assert_close(warm.z, cold.z, **ROUNDED)
    assert not torch.equal(warm.iterations, cold.iterations)
    assert mech.step(first.z, u, warm_start=first.solution.float()).z.dtype == SINGLE
    for call, given in ((mech.jacobians, (z, u)), (mech.jacobians_minimal, (q, qd, u))):
        blocks = call(*given)
        out = torch.empty(*blocks[0].shape[:-1], blocks[0].shape[-1] + 1, dtype=SINGLE)
        views = call(*given, out=out)
        assert torch.equal(out, torch.cat(blocks, dim=-1)) and views[0].data_ptr() == out.data_ptr()
        with pytest.raises(ValueError, match=r"out: .*torch\.float64.*allowed: .*dtype=torch\.float32"):
            call(*given, out=out.double())


@pytest.mark.parametrize("backend", ["auto", "reference"])
def test_gradients_against_differences_of_the_float64_step(backend: str) -> None:
    """1e-4: float32 rounds each of the terms that add up to a gradient."""
    mech = on(hopper(), backend)
    z, u = (t[0] for t in inputs(mech)[:2])
    weights = torch.randn(2, 4, len(z))

    def losses(delta: Tensor, u: Tensor, z: Tensor = z) -> Tensor:
        moved = mech.retract(z, delta)
        paths = mech.step(moved, u).z[..., None, :], mech.rollout(moved, u[..., None, :].expand(*u.shape[:-1], 3, 1)).z
        return sum((path * w[: path.shape[-2]].to(path)).sum((-1, -2)) for path, w in zip(paths, weights, strict=True))

    delta, leaf = torch.zeros(24, dtype=SINGLE, requires_grad=True), u.float().requires_grad_()
    losses(delta, leaf, z.float()).backward()
    basis, step = torch.randn(4, 25), 1e-5
    basis[:, :24] *= torch.tensor([1.0, 1.0, 0.0, 0.0])[:, None]
    basis[:, 24] *= torch.tensor([0.0, 1.0, 1.0, 1.0])
    moved = [(sign * step * basis).split((24, 1), dim=-1) for sign in (1, -1)]
    with torch.no_grad():
        difference = (losses(moved[0][0], u + moved[0][1]) - losses(moved[1][0], u + moved[1][1])) / (2 * step)
    assert delta.grad is not None and leaf.grad is not None and delta.grad.dtype == leaf.grad.dtype == SINGLE
    analytic = basis @ torch.cat((delta.grad, leaf.grad)).double()
    torch.testing.assert_close(analytic, difference, rtol=1e-4, atol=1e-4 * float(difference.abs().max()))
    if backend == "auto":
        assert td.testing.check_gradients(mech, z.float(), u.float(), parameters=False, directions=2).max_relative_error < 1e-6


@pytest.mark.parametrize("name", ["pendulum", "half_cheetah", "quadruped", "humanoid"])
def test_a_state_rounded_after_every_step_costs_no_iterations(name: str) -> None:
    """Positions of float32 are open by 1e-7 m, and their velocities by 1e-5 m/s."""
    mech = td.models.make(name)
    start, ends, iterations = td.models.initial_state(name, mech), [], []
    for dtype in (torch.float64, SINGLE):
        z, warm, count = start.to(dtype), None, 0
        for _ in range(100):
            out = mech.step(z, warm_start=warm)
            z, warm, count = out.z, out.solution, count + int(out.iterations)
            assert not out.status
        ends.append(z.double())
        iterations.append(count)
    torch.testing.assert_close(ends[1], ends[0], rtol=0, atol=1e-4)
    assert iterations[1] <= 1.02 * iterations[0] + 2


# -- modules ---------------------------------------------------------------------------------------------------------------------------


class Agent(nn.Module):
    """A network beside the mechanism that it drives."""

    def __init__(self) -> None:
        super().__init__()
        self.mech = hopper(td.SolverOptions(kappa=1e-4))
        self.mech.bodies["leg"].mass.requires_grad_()
        td.parametrize.positive(self.mech.contacts["foot"], "friction")
        td.parametrize.bounded(self.mech.joints["hip"], "spring", 0.1, 1.0)
        self.net = nn.Sequential(nn.Linear(26, 8), nn.Tanh(), nn.Linear(8, 1))

    def forward(self, z: Tensor) -> Tensor:
        return self.mech.rollout(z, self.net, steps=3).z


def test_a_module_around_a_mechanism_changes_its_precision() -> None:
    agent = Agent()
    objects, numbers = dict(agent.mech.named_parameters()), copy.deepcopy(agent.mech.state_dict())
    bounds = agent.mech.joints["hip"].parametrizations.spring[0].lower.clone()
    z = states(agent.mech, 2)
    expected = agent.double().mech.step(z).z
    for change in (lambda m: m.float(), lambda m: m.to("cpu"), lambda m: m.half(), lambda m: m.bfloat16(), lambda m: m.to(torch.float32)):
        change(agent)
        # Optimizers hold these objects.
        assert all(parameter is objects[name] for name, parameter in agent.mech.named_parameters())
        for name, number in agent.mech.state_dict().items():
            assert number.dtype == torch.float64 and torch.equal(number, numbers[name])
    assert torch.equal(bounds, agent.mech.joints["hip"].parametrizations.spring[0].lower)
    assert agent.net[0].weight.dtype == agent(z.float()).dtype == agent.mech.initial_state().dtype == SINGLE
    assert agent.mech.initial_state(base=dict(q=torch.ones(6))).dtype == SINGLE
    assert torch.equal(agent.mech.step(z).z, expected)
    for other in (copy.deepcopy(agent), Agent().float()):
        other.load_state_dict(agent.state_dict())
        saved = io.BytesIO()
        torch.save(other.state_dict(), saved)
        saved.seek(0)
        other.load_state_dict(torch.load(saved))
        assert torch.equal(other(z.float()), agent(z.float())) and other.mech.initial_state().dtype == SINGLE
    agent(z.float()).square().sum().backward()
    for parameter in (*agent.net.parameters(), agent.mech.bodies["leg"].mass, *agent.mech.contacts["foot"].parameters()):
        if parameter.requires_grad:
            assert parameter.grad is not None and parameter.grad.dtype == parameter.dtype and bool(parameter.grad.isfinite().all())
    assert agent.double().mech.initial_state().dtype == torch.float64


def test_numbers_given_in_float32() -> None:
    """Plain tensors become float64. A tensor with a graph stays what it is, and gets its gradient."""
    mech = hopper()
    z = states(mech)
    mech.contacts["foot"].friction = torch.tensor(0.5, dtype=SINGLE)
    assert mech.contacts["foot"].friction.dtype == torch.float64
    assert td.Body(torch.tensor(0.5, dtype=SINGLE), (1.0, 1.0, 1.0)).mass.dtype == torch.float64
    expected = mech.step(z).z
    for mass in (nn.Parameter(torch.tensor(0.3, dtype=SINGLE)), torch.tensor(0.15, dtype=SINGLE, requires_grad=True)):
        mech.bodies["leg"].mass = mass if isinstance(mass, nn.Parameter) else 2 * mass
        out = mech.step(z).z
        torch.testing.assert_close(out.detach(), expected, rtol=0, atol=1e-6)
        out.sum().backward()
        assert mass.grad is not None and mass.grad.dtype == SINGLE and float(mass.grad.abs()) > 1e-3


class Push(td.Joint):
    """Holds nothing; its network pushes the child along x."""

    num_rows = 1

    def __init__(self, parent: str | None, child: str) -> None:
        super().__init__(parent, child)
        self.net = nn.Linear(3, 1)

    def constraint(self, parent: Any, child: Any) -> Tensor:
        return child.x[..., :1] - 0.01 * torch.tanh(self.net(child.x))


def test_networks_inside_of_elements_follow_the_fields() -> None:
    mech = td.Mechanism({"a": td.Body(1.0, (1.0, 1.0, 1.0))}, {"push": Push(None, "a")}, options=td.SolverOptions(backend="reference"))
    z = torch.zeros(13)
    z[6] = 1.0
    expected = mech.step(z).z
    assert torch.equal(mech.float().step(z).z, expected) and mech.joints["push"].net.weight.dtype == torch.float64


def test_a_solve_in_single_precision_is_asked_for_by_name() -> None:
    mech = hopper(td.SolverOptions(kappa=1e-4, dtype=SINGLE))
    z = states(mech, 2)
    out = mech.step(z)
    assert out.z.dtype == out.solution.dtype == torch.float64 and torch.equal(out.z.float().double(), out.z)
    assert torch.equal(mech.step(z.float()).z.double(), out.z) and mech.jacobians(z.float())[0].dtype == SINGLE
    torch.testing.assert_close(out.z, hopper(td.SolverOptions(kappa=1e-4)).step(z).z, rtol=0, atol=1e-2)
    with pytest.raises(ValueError, match=r"dtype: got torch.float16; allowed: torch.float64, and torch.float32"):
        td.SolverOptions(kappa=1e-4, dtype=torch.float16)


# -- training --------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("compiled", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_float32_policy_trains_through_a_rollout(compiled: bool) -> None:
    """A network learns to swing a rod to 0.5 rad against gravity, from observations of its state, with four steps per answer."""
    rod = td.Body(1.0, (0.1, 0.1, 0.01))
    mech = td.Mechanism(
        {"rod": rod}, {"hinge": td.Revolute(None, "rod", axis=(0, 1, 0), child_anchor=(0, 0, 0.5), damper=0.2)}, timestep=0.0125
    ).float()
    net = nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 1)).float()
    optimizer = torch.optim.Adam(net.parameters(), lr=0.02)
    z, history = mech.initial_state((4,), hinge={"q": torch.linspace(-0.2, 0.2, 4)[:, None]}), []

    def policy(z: Tensor) -> Tensor:
        return cast(Tensor, net(torch.cat(mech.to_minimal(z), dim=-1)))

    ask = torch.compile(policy) if compiled else policy
    for _ in range(25):
        optimizer.zero_grad()
        angle, rate = mech.to_minimal(mech.rollout(z, ask, steps=12, repeat=4).z[..., -4:, :])
        loss = (angle - 0.5).square().mean() + 0.1 * rate.square().mean()
        loss.backward()
        optimizer.step()
        history.append(float(loss.detach()))
    assert loss.dtype == SINGLE and history[-1] < 0.3 * history[0]


def test_torch_compile() -> None:
    mech = hopper()
    z, u = (t.float() for t in inputs(mech)[:2])
    step = torch.compile(lambda z, u: mech.step(z, u).z, fullgraph=True, backend="aot_eager")
    leaf = u.clone().requires_grad_()
    out = step(z, leaf)
    assert out.dtype == SINGLE
    torch.testing.assert_close(out.detach(), mech.step(z, u).z, **ROUNDED)
    out.sum().backward()
    assert leaf.grad is not None and leaf.grad.dtype == SINGLE
