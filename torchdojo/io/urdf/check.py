"""The graph of a URDF file: its links and joints form one tree, and loop joints join links of it."""

from __future__ import annotations

from pathlib import Path
from xml.etree.ElementTree import Element

from torchdojo.io.robot import listed

__all__ = ["check_tree"]


def check_tree(root: Element, path: Path) -> None:
    """Refuse links and joints that do not form a tree.

    Raises:
        ValueError: no link, unknown ends, cycles, several roots.
    """
    links = [link.get("name", "") for link in root.findall("link")]
    if not links:
        raise ValueError(f"{path}: the robot has no <link>; it needs at least one")
    for joint in root.findall("loop_joint"):
        ends = _ends(joint, ("link1", "link2"), f"loop joint {joint.get('name')!r} names as", links, path)
        if ends[0] == ends[1]:
            raise ValueError(f"{path}: loop joint {joint.get('name')!r} joins link {ends[0]!r} to itself; name two different links")
    parent_of = _parents(root, links, path)
    for link in links:
        chain = [link]
        while chain[-1] in parent_of:
            chain.append(parent_of[chain[-1]])
            if chain[-1] == link:
                raise ValueError(f"{path}: the links {' -> '.join(reversed(chain))} form a cycle; a URDF is a tree")
            if len(chain) > len(links) + 1:
                break  # leads into a cycle that is reported from one of its own links
    roots = [link for link in links if link not in parent_of]
    if len(roots) > 1:
        raise ValueError(
            f"{path}: the links {listed(roots)} have no parent joint; a URDF has exactly one root: join them, or remove the others"
        )


def _parents(root: Element, links: list[str], path: Path) -> dict[str, str]:
    """Link -> parent link."""
    parents: dict[str, str] = {}
    joints: dict[str, str] = {}
    for joint in root.findall("joint"):
        name = joint.get("name", "")
        parent, child = _ends(joint, ("parent", "child"), f"joint {name!r} names the", links, path)
        if child in parents:
            raise ValueError(
                f"{path}: link {child!r} is the child of two joints, {joints[child]!r} and {name!r}; a URDF is a tree: "
                "close loops with <loop_joint> elements or with joints of the Mechanism instead"
            )
        parents[child], joints[child] = parent, name
    return parents


def _ends(joint: Element, tags: tuple[str, str], subject: str, links: list[str], path: Path) -> list[str]:
    """The two links that a joint connects."""
    ends = [element.get("link", "") for tag in tags for element in joint.findall(tag)]
    for tag, link in zip(tags, ends, strict=True):
        if link not in links:
            middle = "the link" if joint.tag == "loop_joint" else "link"
            raise ValueError(f"{path}: {subject} {tag} {middle} {link!r}, which is not defined; links: {listed(links)}")
    return ends
