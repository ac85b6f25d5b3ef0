"""The robot files of a folder of packages: wheels are unzipped, fragments and copies are left out. Nothing is downloaded."""

from __future__ import annotations

import hashlib
import re
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

__all__ = ["RobotFile", "find_robots", "unpack"]

PARTS = (".urdf", ".xml", ".mjcf", ".stl", ".obj", ".dae", ".msh", ".skn", ".png", ".hfield")  # what a robot file can refer to


@dataclass(frozen=True)
class RobotFile:
    """A robot file: its package, its place in there, its format ("mjcf" or "urdf"), and whether another file includes it."""

    package: str
    name: str
    path: Path
    kind: str
    included: bool

    @property
    def label(self) -> str:
        return f"{self.package}/{self.name}"


def unpack(packages: Path, target: Path) -> dict[str, Path]:
    """Folders of packages by name: subfolders of `packages` stay where they are, wheels are unzipped into `target`.

    A folder without either is one package itself.
    """
    folders = {path.name: path for path in sorted(packages.iterdir()) if path.is_dir()}
    for wheel in sorted(packages.glob("*.whl")):
        name = "-".join(wheel.name.split("-")[:2])
        with zipfile.ZipFile(wheel) as archive:
            members = [member for member in archive.namelist() if member.lower().endswith(PARTS)]
            archive.extractall(target / name, members)
        folders[name] = target / name
    if not folders or any(packages.glob("*.urdf")) or any(packages.glob("*.xml")):
        return {packages.resolve().name: packages}
    return folders


def find_robots(folders: dict[str, Path]) -> list[RobotFile]:
    """Robot files of the packages, by package and name. Of files with equal content, the first one stays."""
    robots: list[RobotFile] = []
    seen: set[str] = set()
    for package, folder in folders.items():
        texts = dict(_texts(folder))
        included = {place for path, text in texts.items() for place in _includes(path, text)}
        for path, text in texts.items():
            kind = _kind(path, text)
            content = hashlib.sha256(text.encode()).hexdigest()
            if kind is None or content in seen:
                continue
            seen.add(content)
            robots.append(RobotFile(package, path.relative_to(folder).as_posix(), path, kind, path.resolve() in included))
    return robots


def _texts(folder: Path) -> Iterator[tuple[Path, str]]:
    for path in sorted(folder.rglob("*")):
        if path.suffix.lower() in (".urdf", ".xml", ".mjcf") and path.is_file():
            yield path, path.read_text(errors="replace")


def _kind(path: Path, text: str) -> str | None:
    """The format by the root element; by the suffix where the XML is broken; None: no robot file, or one without a body."""
    try:
        root = ElementTree.fromstring(text.encode())
    except ElementTree.ParseError:
        named = re.search(r"<(mujoco|robot)\b", text)
        return None if named is None else {"mujoco": "mjcf", "robot": "urdf"}[named[1]]
    if root.tag == "robot":
        return "urdf" if root.find("link") is not None else None
    parts = [element.tag for element in root.iter()]
    return "mjcf" if root.tag == "mujoco" and ("body" in parts or "include" in parts) else None


def _includes(path: Path, text: str) -> Iterator[Path]:
    """Files that an MJCF file includes, looked for beside it and in the folders above."""
    for name in re.findall(r"<include\s+file\s*=\s*[\"']([^\"']+)[\"']", text):
        for folder in path.parents[:4]:
            if (folder / name).is_file():
                yield (folder / name).resolve()
                break
