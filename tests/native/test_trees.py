"""Trees without joint multipliers (src/solver/tree.hpp), and steps that end by a bound of their residual (src/solver/foresight.hpp)."""

import pytest
import torch
from torch import Tensor

import torchdojo as td
from torchdojo.dynamics.residual import StepProblem
from torchdojo.gradients.batching import flatten_batch
from torchdojo.solver.solution import violations
from torchdojo.state.unknowns import NUM_DATA

ROBOTS = ("ant", "half_cheetah", "hopper", "humanoid", "quadruped", "swimmer", "walker2d")


def residuals(mech: td.Mechanism, z: Tensor, u: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    """Largest violation of an equation, and of a product relative to kappa, of each environment, by the reference."""
    system = mech.backends.system_on_device()
    flat, _ = flatten_batch(system.step_specs(), [*mech.check_inputs(z, u, None), *mech.stacked_parameters()])
    problem = StepProblem(system, flat[NUM_DATA:], *flat[:NUM_DATA], depenetration_speed=mech.options.depenetration_speed)
    kappa = mech.options.kappa
    equality, products, _ = violations(problem, problem.residual(w), torch.full_like(w[:, 0], kappa), 1e-9)
    return equality, products / kappa


@pytest.mark.parametrize("name", ROBOTS)
def test_every_accepted_step_solves_the_equations(name: str) -> None:
    """Robots that fall and kick: also the steps that the kernel ends by a bound alone have residuals below the tolerance."""
    mech = getattr(td.models, name)(timestep=0.01)
    mech.options = td.SolverOptions(backend="native")
    torch.manual_seed(0)
    z, warm, worst, most = td.models.initial_state(name, mech).expand(48, -1).clone(), None, 0.0, 0.0
    for _ in range(25):
        u = 10.0 * torch.randn(48, mech.num_inputs, dtype=torch.float64)
        with torch.no_grad():
            out = mech.step(z, u, warm_start=warm)
            equality, products = residuals(mech, z, u, out.solution)
        good = (out.status == 0) & (out.substeps == 1)  # the solution of a split step is that of its last half
        assert good.double().mean() > 0.6
        worst, most = max(worst, float(equality[good].max())), max(most, float(products[good].max()))
        z, warm = out.z.clone(), out.solution.clone()
    # 1e-9 is the tolerance; the reference rounds otherwise than the kernel.
    assert worst < 1.0e-9 + 1e-11
    assert most < 1.1e-3


@pytest.mark.sanitize
@pytest.mark.parametrize("name", ["ant", "quadruped"])
def test_rollouts_do_not_depend_on_the_batch(name: str) -> None:
    """Bit for bit: lanes end and begin steps at other times when their neighbors are others."""
    mech = getattr(td.models, name)(timestep=0.01)
    mech.options = td.SolverOptions(backend="native")
    torch.manual_seed(1)
    z = td.models.initial_state(name, mech).expand(40, -1).clone()
    z[:, 3:6] += torch.randn(40, 3, dtype=torch.float64)
    u = 10.0 * torch.randn(40, 30, mech.num_inputs, dtype=torch.float64)
    with torch.no_grad():
        everything = mech.rollout(z, u)
        for rows in (torch.arange(40).flip(0), torch.randperm(40), torch.arange(7), torch.arange(3, 30, 2)):
            some = mech.rollout(z[rows], u[rows])
            assert torch.equal(some.z, everything.z[rows])
            assert torch.equal(some.iterations, everything.iterations[rows])
