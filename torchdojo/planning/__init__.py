"""Plans through contact: iterative LQR and multiple shooting on the differentiable step.

problem = td.planning.Problem(mech, z0, steps=20, costs=[td.planning.State(goal, 1.0), td.planning.Input(1e-4)])
plan = td.planning.solve(problem)
"""

from torchdojo.planning.controller import Controller, ControlReport
from torchdojo.planning.inverse import Inverse, initial_impulse, initial_velocity, inverse_dynamics
from torchdojo.planning.inverse_cone import ConeInverse, cone_inverse_dynamics
from torchdojo.planning.options import BOTH_ANNEALED, GRADIENT_ANNEALED, SolveOptions
from torchdojo.planning.plan import Plan, PlanStatus, Record, Replay
from torchdojo.planning.problem import Problem
from torchdojo.planning.residuals import Activation, ContactForce, Function, Input, Sensors, State
from torchdojo.planning.solver import solve

__all__ = [
    "BOTH_ANNEALED",
    "GRADIENT_ANNEALED",
    "Activation",
    "ConeInverse",
    "ContactForce",
    "ControlReport",
    "Controller",
    "Function",
    "Input",
    "Inverse",
    "Plan",
    "PlanStatus",
    "Problem",
    "Record",
    "Replay",
    "Sensors",
    "SolveOptions",
    "State",
    "cone_inverse_dynamics",
    "initial_impulse",
    "initial_velocity",
    "inverse_dynamics",
    "solve",
]
