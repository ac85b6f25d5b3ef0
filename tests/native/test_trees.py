"""Trees without joint multipliers (src/solver/tree.hpp), and steps that end by a bound of their residual (src/solver/foresight.hpp)."""

from collections.abc import Callable

import pytest
import torch
from mechanisms import Sample, all_joints, close_to_limits, random_tree
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


def violations_of_accepted_steps(mech: td.Mechanism, z: Tensor, steps: int, push: float) -> tuple[float, float, float]:
    """The share of steps that were accepted whole, and their largest violations. Each step starts warm from the one before."""
    mech.options = td.SolverOptions(backend="native")
    warm, worst, most, accepted = None, 0.0, 0.0, []
    for _ in range(steps):
        u = push * torch.randn(len(z), mech.num_inputs, dtype=torch.float64)
        with torch.no_grad():
            out = mech.step(z, u, warm_start=warm)
            equality, products = residuals(mech, z, u, out.solution)
        good = (out.status == 0) & (out.substeps == 1)  # the solution of a split step is that of its last half
        accepted.append(float(good.double().mean()))
        if good.any():
            worst, most = max(worst, float(equality[good].max())), max(most, float(products[good].max()))
        z, warm = out.z.clone(), out.solution.clone()
    return sum(accepted) / steps, worst, most


#: The tolerance is 1e-9; the reference rounds otherwise than the kernel. Products may be off by 1e-3 of kappa.
ALLOWED, ALLOWED_PRODUCTS = 1e-9 + 1e-11, 1.1e-3


@pytest.mark.parametrize("name", ROBOTS)
def test_every_accepted_step_solves_the_equations(name: str) -> None:
    """Robots that fall and kick: also the steps that the kernel ends by a bound alone have residuals below the tolerance."""
    mech = getattr(td.models, name)(timestep=0.01)
    torch.manual_seed(0)
    z = td.models.initial_state(name, mech).expand(48, -1).clone()
    accepted, worst, most = violations_of_accepted_steps(mech, z, 25, 10.0)
    assert accepted > 0.6 and worst < ALLOWED and most < ALLOWED_PRODUCTS


ELEMENTS: dict[str, Callable[[], Sample]] = {
    "all joints": lambda: all_joints(True, True, True, 8),
    "friction, armature": lambda: all_joints(False, True, True, 8, friction=0.5, armature=0.1),
    "limits": lambda: close_to_limits(8, friction=0.5, armature=0.1),
    "servos, drives": lambda: close_to_limits(8, servo_stiffness=10.0, servo_damping=0.5, servo_range=(-1.0, 2.0)),
    "large": lambda: random_tree(3, 7, 8, contacts=4),
    "larger": lambda: random_tree(4, 20, 8, contacts=12),
}


@pytest.mark.parametrize("timestep", [0.002, 0.02])
@pytest.mark.parametrize("name", ELEMENTS)
def test_every_accepted_step_of_all_elements_solves_the_equations(name: str, timestep: float) -> None:
    """The bound that ends a step holds for every kind of joint, and for short and long steps."""
    torch.manual_seed(5)
    mech, z, _ = ELEMENTS[name]()
    mech.timestep = timestep
    accepted, worst, most = violations_of_accepted_steps(mech, z, 12, 1.0)
    assert accepted > 0.5 and worst < ALLOWED and most < ALLOWED_PRODUCTS


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
