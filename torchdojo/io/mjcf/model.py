"""An MJCF file compiled by MuJoCo: defaults, angles, frames and inertias from geometry come out of its own compiler.

Files without their meshes and textures are common: meshes are large, and mostly for drawing. A missing one is taken out of the
specification before it is compiled, with a note. A missing mesh that the mass of a moving body depends on is an error.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

__all__ = ["CompiledMjcf", "compile_mjcf", "import_mujoco"]


@dataclass
class CompiledMjcf:
    """`mujoco.MjModel`, the `mujoco.MjSpec` it is compiled from, `mujoco.MjData` at qpos0, and notes on what is left out."""

    path: Path
    model: Any
    spec: Any
    data: Any
    notes: list[str] = field(default_factory=list)


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


def compile_mjcf(path: str | Path) -> CompiledMjcf:
    """Parse and compile an MJCF file.

    Raises:
        ImportError: `mujoco` is not installed.
        FileNotFoundError: there is no such file.
        ValueError: a file that MuJoCo refuses; a missing mesh that the mass of a moving body is computed from.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"MJCF file {str(path)!r} does not exist (working directory {str(Path.cwd())!r})")
    mujoco = import_mujoco()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the compiler warns of old attributes, which it still understands
            spec = _parse(mujoco, path)
            notes = _drop_missing_meshes(mujoco, spec, path)
            _drop_textures(spec)
            model = spec.compile()
    except (RuntimeError, TypeError, ValueError, mujoco.FatalError) as error:
        if isinstance(error, _RefusedError):
            raise ValueError(str(error)) from None
        raise ValueError(f"{path}: MuJoCo refuses the file: {str(error).removeprefix('Error: ')}") from error
    data = mujoco.MjData(model)
    mujoco.mj_kinematics(model, data)
    return CompiledMjcf(path, model, spec, data, notes)


def _parse(mujoco: Any, path: Path) -> Any:
    """MuJoCo reads a file by its name only under the suffix .xml. Others are given as text, with their includes one level deep."""
    if path.suffix == ".xml":
        return mujoco.MjSpec.from_file(str(path))
    try:
        names = [str(element.get("file")) for element in ElementTree.parse(path).getroot().iter("include")]
    except ElementTree.ParseError as error:
        raise ValueError(f"malformed XML: {error}") from error
    files = {name: (path.parent / name).read_bytes() for name in names if (path.parent / name).is_file()}
    spec = mujoco.MjSpec.from_string(path.read_text(), include=files)
    spec.modelfiledir = str(path.parent)
    return spec


class _RefusedError(ValueError):
    """A message of ours, not MuJoCo's."""


def _drop_missing_meshes(mujoco: Any, spec: Any, path: Path) -> list[str]:
    """Remove meshes whose file is not there, and the geoms made of them."""
    missing = {_mesh_name(mesh): mesh for mesh in spec.meshes if mesh.file and not _exists(spec, mesh, path)}
    if not missing:
        return []
    dropped = []
    for geom in list(spec.geoms):
        mesh = missing.get(geom.meshname)
        if mesh is None:
            continue
        if _gives_mass(mujoco, spec, geom):
            raise _RefusedError(
                f"{path}: the mass of body {geom.parent.name!r} is computed from the mesh {mesh.file!r}, which is not there; "
                "put it there, or give the body an <inertial>"
            )
        if geom.contype or geom.conaffinity:
            dropped.append(f"{mesh.file} on body {geom.parent.name!r}")
        spec.delete(geom)
    for mesh in missing.values():
        spec.delete(mesh)
    return [f"{path}: collision meshes that are not there are left out: {', '.join(dict.fromkeys(dropped))}"] if dropped else []


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
