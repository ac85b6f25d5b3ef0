"""Pieces of URDF files."""

from __future__ import annotations

INERTIAL = '<inertial><mass value="2"/><inertia ixx="0.1" ixy="0" ixz="0" iyy="0.1" iyz="0" izz="0.1"/></inertial>'
LIMIT = '<limit lower="-1" upper="2" effort="3" velocity="4"/>'


def link(name: str, content: str = INERTIAL) -> str:
    return f'<link name="{name}">{content}</link>'


def joint(name: str, kind: str, parent: str, child: str, content: str = LIMIT) -> str:
    return f'<joint name="{name}" type="{kind}"><parent link="{parent}"/><child link="{child}"/>{content}</joint>'


def inertial(mass: float, xyz: str = "0 0 0", rpy: str = "0 0 0", moments: tuple[float, float, float] = (0.1, 0.2, 0.25)) -> str:
    x, y, z = moments
    return (
        f'<inertial><origin xyz="{xyz}" rpy="{rpy}"/><mass value="{mass}"/>'
        f'<inertia ixx="{x}" ixy="0" ixz="0" iyy="{y}" iyz="0" izz="{z}"/></inertial>'
    )


def collision(geometry: str, xyz: str = "0 0 0", rpy: str = "0 0 0") -> str:
    return f'<collision><origin xyz="{xyz}" rpy="{rpy}"/><geometry>{geometry}</geometry></collision>'


def pair(content: str = LIMIT, kind: str = "revolute") -> list[str]:
    """Links a and b and the joint j between them."""
    return [link("a"), link("b"), joint("j", kind, "a", "b", content)]
