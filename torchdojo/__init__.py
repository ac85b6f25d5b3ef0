"""torchdojo: differentiable rigid-body physics with hard contact, as PyTorch modules."""

from torchdojo import identification, models, parametrize, testing
from torchdojo.actuators import Actuator, Actuators, actuate
from torchdojo.adaptive import AdaptiveOptions
from torchdojo.bodies import Body
from torchdojo.contacts import Contact, ImpactContact, LinearContact, NonlinearContact
from torchdojo.couplings import JointCoupling
from torchdojo.diagnostics import creep, kappa_for_gap, resting_gap
from torchdojo.io import load
from torchdojo.joints import (
    Cylindrical,
    CylindricalFree,
    Fixed,
    FixedOrientation,
    Floating,
    FreeOrbital,
    FreeRevolute,
    Joint,
    Orbital,
    Planar,
    PlanarAxis,
    PlanarFree,
    PlanarOrbital,
    Prismatic,
    PrismaticOrbital,
    Revolute,
    Spherical,
    StandardJoint,
)
from torchdojo.manifolds import contact_manifold, contacts_between
from torchdojo.mechanism import Mechanism, Trajectory
from torchdojo.minimal_stepping import MinimalOutput, MinimalTrajectory
from torchdojo.schedules import KappaSchedule
from torchdojo.shapes import Box, Capsule, Cylinder, Ellipsoid, Mesh, Shape, Sphere
from torchdojo.solver.options import GradientMode, RandomizedSmoothing, SolverOptions, Status
from torchdojo.stepping import StepOutput

__version__ = "0.1.0"

__all__ = [
    "Actuator",
    "Actuators",
    "AdaptiveOptions",
    "Body",
    "Box",
    "Capsule",
    "Contact",
    "Cylinder",
    "Cylindrical",
    "CylindricalFree",
    "Ellipsoid",
    "Fixed",
    "FixedOrientation",
    "Floating",
    "FreeOrbital",
    "FreeRevolute",
    "GradientMode",
    "ImpactContact",
    "Joint",
    "JointCoupling",
    "KappaSchedule",
    "LinearContact",
    "Mechanism",
    "Mesh",
    "MinimalOutput",
    "MinimalTrajectory",
    "NonlinearContact",
    "Orbital",
    "Planar",
    "PlanarAxis",
    "PlanarFree",
    "PlanarOrbital",
    "Prismatic",
    "PrismaticOrbital",
    "RandomizedSmoothing",
    "Revolute",
    "Shape",
    "SolverOptions",
    "Sphere",
    "Spherical",
    "StandardJoint",
    "Status",
    "StepOutput",
    "Trajectory",
    "actuate",
    "contact_manifold",
    "contacts_between",
    "creep",
    "identification",
    "kappa_for_gap",
    "load",
    "models",
    "parametrize",
    "resting_gap",
    "testing",
]
