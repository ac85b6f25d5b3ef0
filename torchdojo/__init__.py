"""torchdojo: differentiable rigid-body physics with hard contact, as PyTorch modules."""

import importlib
import importlib.abc
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType

from torchdojo import models, parametrize, testing
from torchdojo.elements.actuators import Actuator, Actuators, actuate
from torchdojo.elements.bodies import Body
from torchdojo.elements.contacts import Contact, ImpactContact, LinearContact, NonlinearContact
from torchdojo.elements.coupling import Coupling
from torchdojo.elements.couplings import JointCoupling, JointLock, SumCoupling
from torchdojo.elements.joints import (
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
from torchdojo.elements.manifolds import contact_manifold, contacts_between
from torchdojo.elements.near_contact import near_contacts
from torchdojo.elements.string_coupling import StringCoupling
from torchdojo.elements.tendon import Tendon
from torchdojo.elements.tendon_paths import FixedTendon, Pulley, SpatialTendon, Wrap
from torchdojo.elements.touching import Filter
from torchdojo.engine.adaptive import AdaptiveOptions
from torchdojo.engine.contact_report import ContactReport, TouchingPair
from torchdojo.engine.drives import Drive, Drives
from torchdojo.engine.fluid_ellipsoids import FluidEllipsoid
from torchdojo.engine.linearize import Linearization, MinimalLinearization
from torchdojo.engine.minimal_steps import MinimalOutput, MinimalTrajectory
from torchdojo.engine.passive_forces import PassiveForces, PassivePart
from torchdojo.engine.schedules import KappaSchedule
from torchdojo.geometry import terrain
from torchdojo.geometry.closest import distance
from torchdojo.geometry.grids import DistanceGrid
from torchdojo.geometry.heights import HeightField
from torchdojo.geometry.hulls import Hull
from torchdojo.geometry.shapes import Box, Capsule, Cylinder, Ellipsoid, Mesh, Shape, Sphere
from torchdojo.geometry.signed_distance import from_signed_distance
from torchdojo.geometry.visuals import Visual
from torchdojo.geometry.world import Plane
from torchdojo.gradients.reference_step import StepOutput
from torchdojo.io import load
from torchdojo.io.pieces import decompose, load_mesh
from torchdojo.mechanism import Mechanism, Trajectory
from torchdojo.posing.inverse_kinematics import PoseTarget, Posture
from torchdojo.posing.poses import Keyframe
from torchdojo.scenes import combine
from torchdojo.sensors.kind import Sensor
from torchdojo.sensors.site import Site
from torchdojo.solver.options import GradientMode, RandomizedSmoothing, SolverOptions, Status
from torchdojo.testing.diagnostics import creep, kappa_for_gap, resting_gap

__all__ = [
    "Actuator",
    "Actuators",
    "AdaptiveOptions",
    "Body",
    "Box",
    "Capsule",
    "Contact",
    "ContactReport",
    "Coupling",
    "Cylinder",
    "Cylindrical",
    "CylindricalFree",
    "DistanceGrid",
    "Drive",
    "Drives",
    "Ellipsoid",
    "Filter",
    "Fixed",
    "FixedOrientation",
    "FixedTendon",
    "Floating",
    "FluidEllipsoid",
    "FreeOrbital",
    "FreeRevolute",
    "GradientMode",
    "HeightField",
    "Hull",
    "ImpactContact",
    "Joint",
    "JointCoupling",
    "JointLock",
    "KappaSchedule",
    "Keyframe",
    "LinearContact",
    "Linearization",
    "Mechanism",
    "Mesh",
    "MinimalLinearization",
    "MinimalOutput",
    "MinimalTrajectory",
    "NonlinearContact",
    "Orbital",
    "PassiveForces",
    "PassivePart",
    "Planar",
    "PlanarAxis",
    "PlanarFree",
    "PlanarOrbital",
    "Plane",
    "PoseTarget",
    "Posture",
    "Prismatic",
    "PrismaticOrbital",
    "Pulley",
    "RandomizedSmoothing",
    "Revolute",
    "Sensor",
    "Shape",
    "Site",
    "SolverOptions",
    "SpatialTendon",
    "Sphere",
    "Spherical",
    "StandardJoint",
    "Status",
    "StepOutput",
    "StringCoupling",
    "SumCoupling",
    "Tendon",
    "TouchingPair",
    "Trajectory",
    "Visual",
    "Wrap",
    "actuate",
    "combine",
    "contact_manifold",
    "contacts_between",
    "creep",
    "decompose",
    "distance",
    "envs",
    "from_signed_distance",
    "identification",
    "kappa_for_gap",
    "learning",
    "load",
    "load_mesh",
    "models",
    "near_contacts",
    "parametrize",
    "planning",
    "resting_gap",
    "terrain",
    "testing",
    "viewer",
]


#: sub-packages that few programs need; the first look at `td.NAME` imports them
LAZY = ("envs", "evaluation", "identification", "learning", "planning", "viewer")


def __getattr__(name: str) -> ModuleType | str:
    """A sub-package of `LAZY`, or the version of pip, which pyproject.toml owns."""
    if name in LAZY:
        return importlib.import_module(f"torchdojo.{name}")
    if name == "__version__":
        metadata = importlib.import_module("importlib.metadata")
        try:
            return metadata.version("torchdojo")
        except metadata.PackageNotFoundError:
            return "0+source"  # a checkout on the path that pip has not installed
    raise AttributeError(f"module 'torchdojo' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *LAZY})


class _Registration(importlib.abc.MetaPathFinder):
    """Registers the environments with gymnasium right after somebody imports gymnasium, which `import torchdojo` does not.

    Gymnasium 1 looks for no plugins, and torchrl, for one, imports it long after torchdojo. The hook leaves once gymnasium is imported.
    """

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        spec = PathFinder.find_spec(name, path, target) if name == "gymnasium" else None
        if spec is not None and spec.loader is not None:
            run = spec.loader.exec_module

            def run_and_register(module: ModuleType) -> None:
                run(module)
                sys.meta_path[:] = [finder for finder in sys.meta_path if finder is not self]
                importlib.import_module("torchdojo.envs.gym")

            spec.loader.exec_module = run_and_register  # type: ignore[method-assign]
        return spec


if "gymnasium" in sys.modules:
    importlib.import_module("torchdojo.envs.gym")
else:
    sys.meta_path.insert(0, _Registration())
