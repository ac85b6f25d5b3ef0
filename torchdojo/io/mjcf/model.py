"""An MJCF file compiled by MuJoCo: defaults, angles, frames and inertias from geometry come out of its own compiler.

Files without their meshes and textures are common: meshes are large, and mostly for drawing. Meshes that only draw are taken out of the
specification without a word. A mesh that collides is looked up in more folders than MuJoCo's, and is an error, or a note, where it is not
there. A missing mesh that the mass of a moving body depends on is an error.
"""

from __future__ import annotations

import re
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from torchdojo.io.meshes import Folders, MeshMode, check_mode, find_mesh
from torchdojo.io.report import Findings
from torchdojo.io.robot import possible_inertia

__all__ = ["OPEN", "CompiledMjcf", "MissingGeom", "compile_mjcf", "disabled", "import_mujoco", "rotation_of"]


OPEN = 1e10  # a bound of a joint that stands for none in files: MuJoCo has ranges with two bounds
INCLUDE = re.compile(rb"<include\b[^>]*?\bfile\s*=\s*[\"']([^\"']+)")


class MissingGeom(NamedTuple):
    """A geom that is left out: its body of the specification, its place there (3,) [m], its color and visual group, and the file."""

    body: Any
    position: tuple[float, ...]
    color: tuple[float, ...]
    group: int
    file: Path


@dataclass
class CompiledMjcf:
    """`mujoco.MjModel`, the `mujoco.MjSpec` it is compiled from, `mujoco.MjData` at qpos0, and what differs from the file."""

    path: Path
    model: Any
    spec: Any
    data: Any
    findings: Findings = field(default_factory=Findings)  #: on masses
    contact_findings: Findings = field(default_factory=Findings)  #: collision meshes that are not there
    missing: list[MissingGeom] = field(default_factory=list)  #: geoms whose meshes are not there, to say so where they would be drawn


def import_mujoco() -> Any:
    """The package `mujoco`.

    Raises:
        ImportError: it is not installed.
    """
    try:
        import mujoco
    except ImportError as error:
        raise ImportError('reading MJCF files needs the package mujoco: pip install "torchdojo[mjcf]"') from error
    return mujoco


def disabled(model: Any, flag: str) -> bool:
    """Whether <option><flag> switches something off, by its name in `mujoco.mjtDisableBit`."""
    bits = import_mujoco().mjtDisableBit
    everything = int(bits.mjDSBL_CONSTRAINT) if flag in ("LIMIT", "FRICTIONLOSS", "EQUALITY", "CONTACT") else 0
    return bool(model.opt.disableflags & (int(getattr(bits, f"mjDSBL_{flag}")) | everything))


def rotation_of(quaternion: NDArray[np.float64]) -> NDArray[np.float64]:
    """Matrix (3, 3) of a quaternion of any length."""
    matrix = np.zeros(9)
    import_mujoco().mju_quat2Mat(matrix, quaternion / np.linalg.norm(quaternion))
    return matrix.reshape(3, 3)


def compile_mjcf(path: str | Path, mesh: MeshMode = "hull", mesh_path: Folders = (), repair_inertia: bool = False) -> CompiledMjcf:
    """Parse and compile an MJCF file; arguments as in `torchdojo.io.load_mjcf`.

    Raises:
        ImportError: `mujoco` is not installed.
        FileNotFoundError: there is no such file, or, with mesh="hull", no such collision mesh.
        ValueError: a file that MuJoCo refuses; a missing mesh that the mass of a moving body is computed from.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"MJCF file {str(path)!r} does not exist (working directory {str(Path.cwd())!r})")
    check_mode(mesh)
    mujoco = import_mujoco()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the compiler warns of old attributes, which it still understands
            spec = _parse(mujoco, path)
            missing: list[MissingGeom] = []
            left_out = _drop_missing_meshes(mujoco, spec, path, mesh, mesh_path, missing)
            _drop_textures(spec)
            findings = Findings()
            if repair_inertia:
                _repair_inertias(spec, findings)
            model = spec.compile()
    except (RuntimeError, TypeError, ValueError, mujoco.FatalError) as error:
        if isinstance(error, _RefusedError):
            raise ValueError(str(error)) from None
        remedy = "; repair_inertia=True takes the nearest possible inertia" if "balanceinertia" in str(error) else ""
        raise ValueError(f"{path}: MuJoCo refuses the file: {str(error).removeprefix('Error: ')}{remedy}") from error
    data = mujoco.MjData(model)
    mujoco.mj_kinematics(model, data)
    _report_open_meshes(mujoco, spec, model, findings)
    contact_findings = Findings()
    contact_findings.add("ignored", "collision meshes", left_out, "the files are not there, and their geoms make no contact")
    return CompiledMjcf(path, model, spec, data, findings, contact_findings, missing)


def _parse(mujoco: Any, path: Path) -> Any:
    """MuJoCo reads a file by its name only under the suffix .xml. Others are given as text, with their includes."""
    if path.suffix == ".xml":
        return mujoco.MjSpec.from_file(str(path))
    files: dict[str, bytes] = {}
    left = [path.read_bytes()]
    while left:
        for name in (match.decode() for match in INCLUDE.findall(left.pop())):
            if name not in files and (path.parent / name).is_file():
                files[name] = (path.parent / name).read_bytes()
                left.append(files[name])
    spec = mujoco.MjSpec.from_string(path.read_text(), include=files)
    spec.modelfiledir = str(path.parent)
    return spec


class _RefusedError(ValueError):
    """A message of ours, not MuJoCo's."""


def _drop_missing_meshes(mujoco: Any, spec: Any, path: Path, mode: MeshMode, folders: Folders, gone: list[MissingGeom]) -> list[str]:
    """Find the files of meshes that MuJoCo would not. Meshes that are nowhere are removed, and the geoms made of them go to `gone`."""
    missing, reasons = {}, {}
    for mesh in spec.meshes:
        if mesh.file and not _exists(spec, mesh, path):
            name = _mesh_name(mesh)
            try:
                place = find_mesh(mesh.file, path, folders)
            except FileNotFoundError as error:
                missing[name], reasons[name] = mesh, str(error)
            else:
                mesh.name, mesh.file = name, str(place)
    dropped = []
    for geom in list(spec.geoms):
        mesh = missing.get(geom.meshname)
        if mesh is None:
            continue
        name, reason = geom.parent.name, reasons[geom.meshname]
        if _gives_mass(mujoco, spec, geom):
            raise _RefusedError(
                f"{path}: the mass of body {name!r} is computed from the mesh {mesh.file!r}, which is not there ({reason}); "
                "put it there, name its folder in mesh_path=, or give the body an <inertial>"
            )
        if geom.contype or geom.conaffinity:
            if mode == "hull":
                remedy = "mesh_path=FOLDER adds a folder to look in, mesh='skip' goes on without it"
                raise FileNotFoundError(f"{path}: collision mesh of body {name!r}: {reason}; {remedy}")
            dropped.append(f"{mesh.file} on body {name!r}")
        position = tuple(float(number) for number in np.nan_to_num(geom.pos))
        gone.append(MissingGeom(geom.parent, position, tuple(map(float, geom.rgba)), int(geom.group), Path(mesh.file)))
        spec.delete(geom)
    for mesh in missing.values():
        spec.delete(mesh)
    return list(dict.fromkeys(dropped))


def _mesh_name(mesh: Any) -> str:
    return str(mesh.name) or Path(mesh.file).stem


def _exists(spec: Any, mesh: Any, path: Path) -> bool:
    name = Path(mesh.file).name if spec.strippath else mesh.file
    folder = mesh.compiler.meshdir or spec.meshdir
    return any((path.parent / part / name).is_file() for part in (folder, ""))


def _gives_mass(mujoco: Any, spec: Any, geom: Any) -> bool:
    """Whether the compiler computes the inertia of a moving body from this geom."""
    body, mode = geom.parent, spec.compiler.inertiafromgeom
    explicit = body.explicitinertial and mode != mujoco.mjtInertiaFromGeom.mjINERTIAFROMGEOM_TRUE
    low, high = spec.compiler.inertiagrouprange
    weightless = geom.mass == 0 or (geom.mass != geom.mass and geom.density == 0)  # NaN: not given, from the density
    above = body
    while above.parent is not None and above.name != "world" and not above.joints:
        above = above.parent
    moving = bool(above.joints)
    return moving and not explicit and not weightless and low <= geom.group <= high


def _drop_textures(spec: Any) -> None:
    """Images have no physics, and are as often missing as meshes."""
    for material in spec.materials:
        material.textures = [""] * len(material.textures)
    for light in spec.lights:
        light.texture = ""
    for texture in list(spec.textures):
        spec.delete(texture)


def _repair_inertias(spec: Any, findings: Findings) -> None:
    """Replace inertias that no body can have by the nearest possible ones."""
    for body in spec.bodies:
        if not body.explicitinertial:
            continue
        full = bool(np.isfinite(body.fullinertia).all())
        xx, yy, zz, xy, xz, yz = body.fullinertia if full else (*body.inertia, 0.0, 0.0, 0.0)
        repaired, change = possible_inertia(np.array([[xx, xy, xz], [xy, yy, yz], [xz, yz, zz]]))
        if change:
            findings.add("repaired", "inertia", str(body.name), change)
            if full:
                body.fullinertia = repaired[[0, 1, 2, 0, 0, 1], [0, 1, 2, 1, 2, 2]]
            else:
                body.inertia = repaired.diagonal()


def _report_open_meshes(mujoco: Any, spec: Any, model: Any, findings: Findings) -> None:
    """Report masses from meshes that enclose no volume: MuJoCo computes one all the same."""
    whole = (mujoco.mjtMeshInertia.mjMESH_INERTIA_CONVEX, mujoco.mjtMeshInertia.mjMESH_INERTIA_SHELL)
    for geom in spec.geoms:
        if geom.type != mujoco.mjtGeom.mjGEOM_MESH or spec.mesh(geom.meshname).inertia in whole or not _gives_mass(mujoco, spec, geom):
            continue
        mesh = model.mesh(geom.meshname)
        start, count = int(mesh.faceadr[0]), int(mesh.facenum[0])
        vertices = model.mesh_vert[int(mesh.vertadr[0]) :][: int(mesh.vertnum[0])]
        faces = model.mesh_face[start : start + count].astype(np.int64)
        holes = _open_edges(faces)
        if holes:  # or some of its corners are several vertices at one place
            same = np.unique(vertices, axis=0, return_inverse=True)[1].reshape(-1)
            holes = _open_edges(same[faces])
        if holes:
            reason = 'the mesh is not closed, and a mass is computed from it; give the body an <inertial>, or the mesh inertia="convex"'
            findings.add("used", "mass from a mesh", f"{geom.meshname} on body {geom.parent.name} ({holes} edges have one face)", reason)


def _open_edges(faces: NDArray[np.int64]) -> int:
    """The number of edges of triangles (m, 3) that no triangle has in the other direction."""
    start, end = faces.reshape(-1), np.roll(faces, -1, axis=1).reshape(-1)
    size = int(faces.max()) + 1
    edges, reverse = np.unique(start * size + end), np.unique(end * size + start)
    return int((~np.isin(reverse, edges, assume_unique=True)).sum())
