"""Names of elements that an MJCF file leaves without one, and names that a mechanism accepts."""

from __future__ import annotations

from typing import Any

from torchdojo.io.mjcf.model import import_mujoco
from torchdojo.io.robot import clean_name

__all__ = ["Names", "equality_label", "joint_label", "tendon_label"]


class Names:
    """Names that a mechanism accepts, each once."""

    def __init__(self) -> None:
        self.taken: set[str] = set()

    def make(self, *wishes: str) -> str:
        """The first wish that is free, or the last with a number."""
        cleaned = [clean_name(wish) for wish in wishes if wish]
        cleaned = [f"{name}_" if name == "world" else name for name in cleaned]
        numbered = (f"{cleaned[-1]}_{n}" for n in range(2, len(self.taken) + 3))
        name = next(name for name in (*cleaned, *numbered) if name not in self.taken)
        self.taken.add(name)
        return name


def joint_label(model: Any, j: int) -> str:
    return str(model.joint(j).name) or f"joint{j}"


def tendon_label(model: Any, i: int) -> str:
    return str(model.tendon(i).name) or f"tendon{i}"


def equality_label(model: Any, i: int) -> str:
    kind = import_mujoco().mjtEq(int(model.eq_type[i])).name[5:].lower()
    return str(model.equality(i).name) or f"{kind}_{i}"
