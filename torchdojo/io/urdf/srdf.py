"""SRDF: which links of a URDF robot do not touch each other, as MoveIt's setup assistant and robot packages write it."""

from __future__ import annotations

from pathlib import Path
from xml.etree.ElementTree import Element

from torchdojo.io.report import Findings
from torchdojo.io.robot import clean_name
from torchdojo.io.xmlfile import read_xml

__all__ = ["read_srdf"]

DISABLE, DEFAULT, ENABLE = "disable_collisions", "disable_default_collisions", "enable_collisions"


def read_srdf(path: str | Path, links: list[str], findings: Findings) -> set[frozenset[str]]:
    """Pairs of links, by clean names, that `<disable_collisions>` and `<disable_default_collisions>` say do not touch.

    `<enable_collisions>` takes a pair out of those that the default names. Groups, states and end effectors are ignored.

    Args:
        links: clean names of the links of the robot. findings: get what is ignored.

    Raises:
        FileNotFoundError: there is no such file. ValueError: malformed XML, another root than <robot>, a missing or unknown link, a pair of
            one link.
    """
    path = Path(path)
    root = read_xml(path, "SRDF")
    if root.tag != "robot":
        raise ValueError(f"{path}: the root element is <{root.tag}>; allowed: an SRDF file, which has <robot>")
    names = dict.fromkeys(links)
    pairs: set[frozenset[str]] = set()
    for element in root.findall(DEFAULT):
        link = _link(element, "link", names, path)
        pairs |= {frozenset((link, other)) for other in links if other != link}
    pairs -= {_pair(element, names, path) for element in root.findall(ENABLE)}
    pairs |= {_pair(element, names, path) for element in root.findall(DISABLE)}
    others = [str(element.tag) for element in root if element.tag not in (DISABLE, DEFAULT, ENABLE)]
    findings.add("ignored", "elements of the SRDF", [f"<{tag}>" for tag in others], "they do not say what touches", "none")
    return pairs


def _pair(element: Element, known: dict[str, None], path: Path) -> frozenset[str]:
    one, two = (_link(element, name, known, path) for name in ("link1", "link2"))
    if one == two:
        raise ValueError(f"{path}: <{element.tag}> has link {one!r} twice; allowed: two different links")
    return frozenset((one, two))


def _link(element: Element, attribute: str, known: dict[str, None], path: Path) -> str:
    link_name = element.get(attribute)
    if link_name is None:
        raise ValueError(f"{path}: <{element.tag}> lacks the attribute {attribute}; allowed: the name of a link of the robot")
    name = clean_name(link_name)
    if name not in known:
        raise ValueError(f"{path}: <{element.tag}> names the link {link_name!r}, which the robot lacks; links are {list(known)}")
    return name
