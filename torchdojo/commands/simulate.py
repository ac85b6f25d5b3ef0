"""`torchdojo simulate`: drop a mechanism, step it, and say what the physics did."""

from __future__ import annotations

import argparse
import math
import textwrap
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor

from torchdojo import models, testing
from torchdojo.commands.common import (
    CommandError,
    add_output,
    not_negative,
    positive,
    print_table,
    progress,
    user_input,
    whole,
    write_report,
)
from torchdojo.commands.drawing import SHOWN, Page, add_page, write_drawing
from torchdojo.commands.touched import Touched
from torchdojo.elements.bodies import Body
from torchdojo.elements.joints import StandardJoint
from torchdojo.elements.near_contact import NearContact
from torchdojo.engine.penetration import deepest_penetration
from torchdojo.geometry.hulls import Hull
from torchdojo.gradients.reference_step import StepOutput
from torchdojo.io import load
from torchdojo.mechanism import Mechanism, Trajectory
from torchdojo.posing import loops, placement, poses
from torchdojo.solver.options import SolverOptions, Status
from torchdojo.testing import diagnostics
from torchdojo.viewer.playback import Playback

__all__ = ["Recording", "add_arguments", "build", "check_tolerance", "gradient_check", "place", "record", "run", "spread"]

CHECK_DIRECTIONS = 3  # of every input, drawn at random: a robot has hundreds of them
LARGE_GAP = 1e-3  # m
PAIRS = 8  # that touched, by name
FREE_FLIGHT = 1e-2  # m; a contact that stays farther away than this exerts at most κ/FREE_FLIGHT per step


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `torchdojo simulate`."""
    parser.description = "Drop a built-in mechanism or a robot from a file onto the ground, simulate it, and report on the physics."
    add = parser.add_argument
    add("source", metavar="NAME|FILE", help="a built-in mechanism (quadruped, box, ...) or a robot file (URDF or MJCF: .urdf, .xml, .mjcf)")
    add("--steps", type=whole, default=200, metavar="N", help="number of steps (default: %(default)s)")
    add("--timestep", type=positive, default=0.01, metavar="H", help="time step [s] (default: %(default)s)")
    add("--kappa", type=positive, default=1e-6, metavar="K", help="central-path parameter (default: %(default)s)")
    add(
        "--depenetration-speed",
        type=positive,
        default=SolverOptions().depenetration_speed,
        metavar="V",
        help="largest speed at which contacts that start inside the ground come out [m/s] (default: %(default)s)",
    )
    switch = argparse.BooleanOptionalAction
    add("--fixed-base", action=switch, help="weld the root of a robot file to the world, or let it float (default: as the file says)")
    add("--ground", action=switch, help="a robot file touches the plane z = 0 (default: where it has no plane and floats)")
    add("--self-collision", action="store_true", help="bodies of a robot file touch each other, too, as with td.load(contacts='all')")
    add("--batch", type=whole, default=1, metavar="N", help="environments, each with other starting velocities")
    add("--height", type=positive, default=0.1, metavar="M", help="of the lowest contact at the start [m] (default: %(default)s)")
    add("--friction", type=not_negative, metavar="MU", help="Coulomb coefficient of all contacts")
    add(
        "--contact",
        action="append",
        default=[],
        metavar="LINK:X,Y,Z[,RADIUS]",
        help="a contact point on a link of a robot file, in the link's frame [m]; repeatable; replaces the collision geometry",
    )
    add(
        "--ignore",
        action="append",
        default=[],
        metavar="JOINT",
        help="a mimic joint (MJCF: an equality constraint) to leave independent; repeatable",
    )
    add(
        "--mesh",
        choices=["hull", "skip", "pieces", "none"],
        help="collision meshes: contacts of hulls, the same without missing files, hulls with convex pieces between bodies, or no contact",
    )
    add("--mesh-path", action="append", default=[], metavar="DIR", help="a folder to look for meshes in; repeatable")
    add("--mesh-points", type=whole, metavar="N", help="largest number of contact points of a mesh (default: 16)")
    add("--repair-inertia", action="store_true", help="use the nearest possible inertia in place of an impossible one")
    add(
        "--check",
        action="store_true",
        help="compare gradients with respect to state, input and parameters with finite differences, in the middle and at the end; exit "
        "status 1 where they differ by more than 1e-6 (kappa below 1e-4: 1e-4) of the largest entry, or where no step could be checked",
    )
    add("--seed", type=int, default=0, metavar="S", help="of the starting velocities (default: %(default)s)")
    add_page(parser)
    add_output(parser)


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Simulate; returns the report, whose "passed" is False where a gradient check fails."""
    mech, z = build(options)
    with user_input():
        if options.output is not None:
            options.output.mkdir(parents=True, exist_ok=True)
        z = spread(mech, place(mech, z, options.height), options.batch, options.seed)
    inside = deepest_penetration(mech.backends, mech.options, z)
    if inside is not None:
        print(f"note: contact {inside.contact!r} starts {1000 * inside.depth:.3g} mm inside the ground, and is pushed out")
    recording = record(mech, z, options.steps)
    report = {
        **_counts(mech, recording, options),
        "initial_penetration_mm": (1e3 * inside.depth if inside else 0.0) if mech.contacts else None,
        **_hulls(mech),
        **_errors(mech, recording),
        **_contact_quality(mech, recording),
        **_energy(mech, recording),
        **(gradient_check(mech, recording, options.seed) if options.check else {}),
    }
    batch = f" in {options.batch} environments" if options.batch > 1 else ""
    print(f"{options.source}: {report['steps']} steps of {options.timestep:g} s{batch}")
    print_table(_rows(report))
    if options.output is not None or options.html is not None:
        _save(mech, recording, options)
    write_report(report, options.output)
    return report


# -- building ----------------------------------------------------------------------------------------------------------------------------


def build(options: argparse.Namespace) -> tuple[Mechanism, Tensor]:
    """The mechanism that the options name, and the state (13 nb,) it starts from before it is placed.

    Raises:
        CommandError: what the user gave does not make a mechanism.
    """
    keywords = {} if options.friction is None else {"friction": options.friction}
    make = _built_in if options.source in models.names() else _robot
    mech, z = make(options, keywords)
    mech.options = SolverOptions(kappa=options.kappa, depenetration_speed=options.depenetration_speed)
    return mech, z


def _built_in(options: argparse.Namespace, given: dict[str, Any]) -> tuple[Mechanism, Tensor]:
    if _world_options(options) or options.contact or options.ignore or _mesh_options(options) or options.self_collision:
        raise CommandError(
            "--fixed-base, --ground, --self-collision, --contact, --ignore, --mesh and --repair-inertia are for robot files; built-in "
            "mechanisms are complete"
        )
    with user_input():
        mech = models.make(options.source, timestep=options.timestep, **given)
        return mech, models.initial_state(options.source, mech)


def _robot(options: argparse.Namespace, given: dict[str, Any]) -> tuple[Mechanism, Tensor]:
    path = Path(options.source)
    if not path.exists() and not path.suffix and "/" not in options.source:
        raise CommandError(f"no built-in mechanism and no file {options.source!r}; built-in mechanisms: {', '.join(models.names())}")
    if options.contact and options.self_collision:
        raise CommandError("--contact replaces the collision geometry, of which --self-collision makes contacts; give one of them")
    if options.contact:
        given = {**given, "contacts": _contacts(options.contact)}
    if options.self_collision:
        given = {**given, "contacts": "all"}
    with user_input():
        given = {**given, **_world_options(options), **_mesh_options(options)}
        mech = load(path, timestep=options.timestep, ignore=options.ignore, **given)
        return mech, loops.initial_state(mech, (), {}, poses.within_limits(mech))


def _world_options(options: argparse.Namespace) -> dict[str, Any]:
    """Keywords of `td.load` about the base and the ground that the user gave."""
    floating = None if options.fixed_base is None else not options.fixed_base
    return {key: value for key, value in (("floating_base", floating), ("ground", options.ground)) if value is not None}


def _mesh_options(options: argparse.Namespace) -> dict[str, Any]:
    """Keywords of `td.load` that the user gave."""
    keywords: dict[str, Any] = {
        "mesh_path": options.mesh_path,
        "mesh_points": options.mesh_points,
        "repair_inertia": options.repair_inertia,
    }
    mesh = {} if options.mesh is None else {"mesh": None if options.mesh == "none" else options.mesh}
    return {**{key: value for key, value in keywords.items() if value}, **mesh}


def _contacts(texts: Sequence[str]) -> dict[str, dict[str, Any]]:
    """LINK:X,Y,Z[,RADIUS] to the mapping that `td.load` takes."""
    contacts: dict[str, dict[str, Any]] = {}
    for text in texts:
        link, _, rest = text.rpartition(":")
        try:
            numbers = [float(word) for word in rest.split(",")]
        except ValueError:
            numbers = []
        if not link or len(numbers) not in (3, 4) or not all(math.isfinite(number) for number in numbers):
            raise CommandError(f"--contact {text!r} is not LINK:X,Y,Z or LINK:X,Y,Z,RADIUS (metres, in the frame of the link)")
        count = sum(c["link"] == link for c in contacts.values())
        contacts[f"{link.replace('.', '_')}_{count}"] = {
            "link": link,
            "point": numbers[:3],
            "radius": numbers[3] if len(numbers) == 4 else 0.0,
        }
    return contacts


# -- the start ---------------------------------------------------------------------------------------------------------------------------


def place(mech: Mechanism, z: Tensor, height: float) -> Tensor:
    """`Mechanism.place` at `height` [m] for mechanisms with a part that can move; z of others."""
    return mech.place(z, height) if placement.movable(mech, z) else z


def spread(mech: Mechanism, z: Tensor, batch: int, seed: int) -> Tensor:
    """(batch, 13 nb): the first environment as given, the others with other joint velocities (0.1 m/s, 0.1 rad/s)."""
    q, qd = mech.to_minimal(z)
    noise = 0.1 * torch.randn(batch, len(qd), generator=torch.Generator().manual_seed(seed), dtype=z.dtype)
    noise[0] = 0
    moved = mech.to_maximal(q.expand(batch, -1), qd + noise)
    if mech.has_loops:
        moved = mech.close_loops(moved)
    return torch.cat((z[None], moved[1:]))


# -- the run -----------------------------------------------------------------------------------------------------------------------------


class Recording(NamedTuple):
    """z (batch, T+1, 13 nb) and the contacts' distances there [m]; impulses (batch, T, n); status, iterations, substeps (batch, T); output
    of the last step; duration of the steps [s]; (body, other) -> steps, of any environment, in which they touched; the largest number of
    slots of near contacts that one environment used."""

    z: Tensor
    distances: Tensor
    impulses: Tensor
    status: Tensor
    iterations: Tensor
    substeps: Tensor
    last: StepOutput
    wall: float
    touched: dict[tuple[str, str], int]
    slots: int


def record(mech: Mechanism, z: Tensor, steps: int) -> Recording:
    """Step without input, each step warm-started from the one before. Ends once every environment is flagged: a flagged one stays put."""
    outputs: list[StepOutput] = []
    distances = [mech.distances(z).detach()]
    seen = Touched(mech)
    wall = 0.0
    with torch.no_grad():
        for _ in progress(range(steps), steps, "simulate"):
            start = time.perf_counter()
            outputs.append(mech.step(outputs[-1].z, warm_start=outputs[-1].solution) if outputs else mech.step(z))
            wall += time.perf_counter() - start
            # Near contacts keep the places of this step, so their distances are asked for now.
            distances.append(mech.distances(outputs[-1].z))
            seen.add(outputs[-1], distances[-1])
            status = outputs[-1].status
            if bool((status != int(Status.SUCCESS)).all()):
                print(f"note: stopped at step {len(outputs)} of {steps}: {Status(int(status[0])).explain}")
                break
    z = torch.stack([z, *(out.z for out in outputs)], 1)
    names = ("impulses", "status", "iterations", "substeps")
    impulses, status, iterations, substeps = (torch.stack([getattr(out, name) for out in outputs], 1) for name in names)
    gaps = torch.stack(torch.broadcast_tensors(*distances), 1)
    return Recording(z, gaps, impulses, status, iterations, substeps, outputs[-1], wall, seen.steps, seen.slots)


# -- the report --------------------------------------------------------------------------------------------------------------------------


def _counts(mech: Mechanism, recording: Recording, options: argparse.Namespace) -> dict[str, Any]:
    batch, steps = recording.status.shape
    return {
        "source": options.source,
        "bodies": mech.num_bodies,
        "joints": len(mech.joints),
        "contacts": len(mech.contacts),
        "degrees_of_freedom": mech.num_coordinates,
        "inputs": mech.num_inputs,
        "environments": batch,
        "steps": steps,
        "steps_requested": options.steps,
        "timestep_s": options.timestep,
        "kappa": options.kappa,
        "steps_per_second": batch * steps / recording.wall,
        "iterations_mean": float(recording.iterations.double().mean()),
        "iterations_max": int(recording.iterations.max()),
        "flagged_steps": int((recording.status != int(Status.SUCCESS)).sum()),
        "halved_steps": int((recording.substeps > 1).sum()),
        "touched": {f"{body} - {other}": count for (body, other), count in recording.touched.items()},
        "near_slots_used": recording.slots,
        "near_slots": sum(isinstance(contact, NearContact) for contact in mech.named_contacts().values()),
    }


def _hulls(mech: Mechanism) -> dict[str, Any]:
    hulls = [shape for body in mech.bodies.values() for shape in cast(Body, body).shapes if isinstance(shape, Hull)]
    if not hulls:
        return {}
    return {"meshes": len(hulls), "mesh_points": sum(len(hull.chosen) for hull in hulls), "mesh_gap_m": max(hull.gap for hull in hulls)}


def _errors(mech: Mechanism, recording: Recording) -> dict[str, Any]:
    distances, errors = recording.distances, mech.joint_errors(recording.z)
    return {
        "smallest_distance_m": float(distances[:, 1:].min()) if distances.shape[-1] else None,
        "largest_joint_error": float(errors.abs().max()) if errors.shape[-1] else None,
    }


def _contact_quality(mech: Mechanism, recording: Recording) -> dict[str, Any]:
    if not mech.contacts:
        return {"resting_gap_m": None, "creep_m_per_s": None}
    gap = diagnostics.resting_gap(mech)
    if gap > LARGE_GAP:
        better = diagnostics.kappa_for_gap(mech, 1e-5)
        print(f"note: at kappa = {mech.options.kappa:g} contacts at rest float {1000 * gap:.2g} mm; kappa = {better:.1g} gives 0.01 mm")
    slip = diagnostics.creep(mech, recording.last)
    return {"resting_gap_m": gap, "creep_m_per_s": float(slip.max()) if slip.numel() else None}


def _energy(mech: Mechanism, recording: Recording) -> dict[str, Any]:
    """Energy at the first and the last configuration but one; its largest drift where nothing dissipates."""
    z, distances = recording.z, recording.distances
    kinetic = mech.kinetic_energy(z[:, :-1], z[:, 1:])
    energy = kinetic + mech.potential_energy(z[:, :-1])
    reasons = []
    if any(isinstance(j, StandardJoint) and bool((j.damper > 0).any()) for j in mech.joints.values()):
        reasons.append("dampers")
    if distances.shape[-1] and float(distances.min()) < FREE_FLIGHT:
        reasons.append("contact")
    report: dict[str, Any] = {
        "energy_start_J": float(energy[0, 0]),
        "energy_end_J": float(energy[0, -1]),
        "dissipates": reasons,
        "energy_drift_relative": None,
    }
    if not reasons:
        drift = (energy - energy[:, :1]).abs().amax(1) / kinetic.amax(1).clamp_min(torch.finfo(z.dtype).tiny)
        report["energy_drift_relative"] = float(drift.max())
    return report


def check_tolerance(kappa: float) -> float:
    """Largest relative difference that passes. Contact at small kappa bends within micrometers, where differences lose digits."""
    return 1e-6 if kappa >= 1e-4 else 1e-4


def gradient_check(mech: Mechanism, recording: Recording, seed: int) -> dict[str, Any]:
    """Gradients with respect to all inputs and kinds of parameters against differences, in the middle and at the end of the run."""
    reports: dict[int, testing.StepReport] = {}
    steps = recording.status.shape[1]
    for t in progress(sorted({steps // 2, steps}), 2, "check gradients"):
        try:
            reports[t] = testing.gradient_report(mech, recording.z[0, t], parameters="classes", directions=CHECK_DIRECTIONS, seed=seed)
        except ValueError as error:
            print(f"note: no gradient check after {t} steps: {error}")
    if not reports:
        return {"gradient_error_relative": None, "passed": False}
    worst = max(reports, key=lambda t: reports[t].worst.difference)
    print(f"gradients of the step after {worst} steps:")
    print(textwrap.indent(str(reports[worst]), "  "))
    tolerance = check_tolerance(mech.options.kappa)
    return {
        "gradient_error_relative": reports[worst].worst.difference,
        "gradient_tolerance": tolerance,
        "gradient_worst_input": reports[worst].worst.name,
        "condition_number_balanced": reports[worst].condition_balanced,
        "passed": all(report.ok(tolerance) for report in reports.values()),
    }


def _rows(r: dict[str, Any]) -> list[tuple[str, str]]:
    rows = [
        ("bodies, joints, contacts", f"{r['bodies']}, {r['joints']}, {r['contacts']}"),
        ("degrees of freedom, inputs", f"{r['degrees_of_freedom']}, {r['inputs']}"),
        ("steps per second", f"{r['steps_per_second']:.1f}"),
        ("solver iterations", f"mean {r['iterations_mean']:.2f}, max {r['iterations_max']}"),
        ("flagged steps", f"{r['flagged_steps']} of {r['steps'] * r['environments']}"),
        ("halved steps", f"{r['halved_steps']} of {r['steps'] * r['environments']}"),
    ]
    if r["touched"]:
        most = sorted(r["touched"].items(), key=lambda entry: -entry[1])
        more = f", and {len(most) - PAIRS} more" if len(most) > PAIRS else ""
        rows.append(("touched, in steps", ", ".join(f"{pair} ({count})" for pair, count in most[:PAIRS]) + more))
    if r["near_slots"]:
        rows.append(("slots of near contacts", f"at most {r['near_slots_used']} of {r['near_slots']} in use"))
    if "meshes" in r:
        rows.append(("meshes", f"{r['meshes']} as {r['mesh_points']} points, at most {1e3 * r['mesh_gap_m']:.3g} mm inside their hulls"))
    if r["smallest_distance_m"] is not None:
        rows += [
            ("smallest distance", f"{r['smallest_distance_m']:.3g} m"),
            ("resting gap, estimate", f"{r['resting_gap_m']:.2g} m at kappa = {r['kappa']:g}"),
        ]
    if r["creep_m_per_s"] is not None:
        rows.append(("creep at the end", f"{r['creep_m_per_s']:.2g} m/s"))
    if r["largest_joint_error"] is not None:
        rows.append(("largest joint error", f"{r['largest_joint_error']:.2g}"))
    if r["dissipates"]:
        rows.append(("energy", f"{r['energy_start_J']:.4g} J to {r['energy_end_J']:.4g} J; dissipates ({', '.join(r['dissipates'])})"))
    else:
        rows.append(("energy drift, largest", f"{r['energy_drift_relative']:.2g} of the largest kinetic energy"))
    if "gradient_error_relative" in r:
        error = r["gradient_error_relative"]
        verdict = "not checked" if error is None else f"{error:.2g} relative, allowed {r['gradient_tolerance']:g}"
        rows.append(("gradient against differences", verdict + ("" if r["passed"] else ": FAILED")))
    return rows


def _save(mech: Mechanism, recording: Recording, options: argparse.Namespace) -> None:
    batch, steps = recording.status.shape
    u = torch.zeros(batch, steps, mech.num_inputs, dtype=torch.float64)
    counts = (recording.status, recording.iterations, recording.substeps)
    trajectory = Trajectory(recording.z, u, recording.impulses, *counts, recording.last.solution[:, None])
    shown = range(min(batch, SHOWN))
    playbacks = Playback.batch(mech, trajectory, shown, labels=[f"environment {i}" for i in shown] if batch > 1 else [str(options.source)])
    arrays = {
        "z": recording.z.numpy(),
        "u": u.numpy(),
        "status": recording.status.numpy(),
        "iterations": recording.iterations.numpy(),
        "substeps": recording.substeps.numpy(),
        "distances": recording.distances.numpy(),
        "timestep": options.timestep,
        "body_names": np.array(list(mech.bodies)),
        "contact_names": np.array(list(mech.contacts)),
    }
    write_drawing(playbacks, options.output, Page.of(options), side_by_side=batch > 1, arrays=arrays)
