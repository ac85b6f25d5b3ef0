"""The medium and the compensation of gravity of an MJCF file, link by link: `mech.passive`."""

from __future__ import annotations

import numpy as np

from torchdojo.engine.passive_forces import PassiveForces, PassivePart
from torchdojo.io.mjcf.description import MjcfInfo
from torchdojo.io.mjcf.tendons import site_in
from torchdojo.io.report import Findings
from torchdojo.io.robot import WORLD, LinkInfo
from torchdojo.mechanism import Mechanism

__all__ = ["add_passive"]

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
        parts.append(PassivePart(frame, float(model.body_mass[b]), moments, float(lifted[b])))
    mech.passive = PassiveForces(
        mech, density=float(option.density), viscosity=float(option.viscosity), wind=np.asarray(option.wind).tolist(), parts=parts
    )
    findings.add("ignored", "gravity compensation", compensated, f"it {ASKED}")
    if flows:
        medium = f"density {float(option.density):g} kg/m^3, viscosity {float(option.viscosity):g} Pa s"
        findings.add("ignored", "the medium", medium, f"its drag {ASKED}")
        findings.add("ignored", "wind", ["wind"] if np.any(option.wind) else (), f"it {ASKED}")
        shaped = [str(model.geom(i).name) or f"geom{i}" for i in range(model.ngeom) if model.geom_fluid[i, 0] > 0]
        findings.add("ignored", "fluid of geoms as ellipsoids", shaped, "mech.passive has the drag of the box of each body's inertia")
    return findings
