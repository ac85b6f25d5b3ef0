"""The medium and the compensation of gravity of an MJCF file, link by link: `mech.passive`."""

from __future__ import annotations

from typing import Any

import numpy as np

from torchdojo.engine.fluid_ellipsoids import FluidEllipsoid
from torchdojo.engine.passive_forces import PassiveForces, PassivePart
from torchdojo.io.mjcf.description import MjcfInfo
from torchdojo.io.mjcf.model import import_mujoco
from torchdojo.io.mjcf.tendons import site_in
from torchdojo.io.report import Findings
from torchdojo.io.robot import WORLD, LinkInfo
from torchdojo.mechanism import Mechanism

__all__ = ["add_passive", "fluid_numbers"]

ASKED = "acts where steps get wrench=mech.passive(z), and rollouts wrench=mech.passive"


def add_passive(mech: Mechanism, robot: MjcfInfo) -> Findings:
    """Give the mechanism `mech.passive`, if the file has a medium or compensated bodies.

    Returns the effects that a step without it lacks, by reason.
    """
    model, findings = robot.compiled.model, Findings()
    option = model.opt
    flows, lifted = bool(option.density or option.viscosity), np.asarray(model.body_gravcomp)
    links: list[LinkInfo] = [WORLD, *robot.links.values()]
    held = [b for b in range(1, model.nbody) if links[b].body is not None and model.body_mass[b] > 0]
    compensated = [str(model.body(b).name) or f"body{b}" for b in held if lifted[b]]
    if not flows and not compensated:
        return findings
    parts = []
    for b in held:
        frame = site_in(links[b], model.body_ipos[b], model.body_iquat[b])
        moments = np.maximum(model.body_inertia[b], 1e-300).tolist()
        shaped = _ellipsoids(model, links[b], b) if flows else ()
        parts.append(PassivePart(frame, float(model.body_mass[b]), moments, float(lifted[b]), shaped))
    mech.passive = PassiveForces(
        mech, density=float(option.density), viscosity=float(option.viscosity), wind=np.asarray(option.wind).tolist(), parts=parts
    )
    findings.add("ignored", "gravity compensation", compensated, f"it {ASKED}")
    if flows:
        medium = f"density {float(option.density):g} kg/m^3, viscosity {float(option.viscosity):g} Pa s"
        findings.add("ignored", "the medium", medium, f"its drag {ASKED}")
        findings.add("ignored", "wind", ["wind"] if np.any(option.wind) else (), f"it {ASKED}")
    return findings


def _ellipsoids(model: Any, link: LinkInfo, b: int) -> tuple[FluidEllipsoid, ...]:
    """The geoms of an MJCF body with ``fluidshape="ellipsoid"``.

    Raises:
        ValueError: negative coefficients.
    """
    first, ellipsoids = int(model.body_geomadr[b]), []
    for i in range(first, first + int(model.body_geomnum[b])):
        if model.geom_fluid[i, 0] > 0:
            try:
                ellipsoids.append(FluidEllipsoid(site_in(link, model.geom_pos[i], model.geom_quat[i]), *fluid_numbers(model, i)))
            except ValueError as error:
                label = str(model.geom(i).name) or f"geom{i}"
                raise ValueError(f"fluidcoef of geom {label!r} of body {str(model.body(b).name)!r}: {error}") from error
    return tuple(ellipsoids)


def fluid_numbers(model: Any, i: int) -> tuple[list[float], list[float], list[float], list[float]]:
    """Semi-axes, coefficients, added mass and added inertia of a geom, as MuJoCo's compiler has them.

    Its quadrature of added inertia is 1e-6 of it off, and 5 % where semi-axes are as 1 : 2000.
    """
    kind, size, numbers = import_mujoco().mjtGeom(int(model.geom_type[i])).name, model.geom_size[i].tolist(), model.geom_fluid[i].tolist()
    if kind == "mjGEOM_SPHERE":
        size = [size[0]] * 3
    elif kind in ("mjGEOM_CAPSULE", "mjGEOM_CYLINDER"):
        size = [size[0], size[0], size[1] + (size[0] if kind == "mjGEOM_CAPSULE" else 0.0)]
    return size, numbers[1:6], numbers[6:9], numbers[9:12]
