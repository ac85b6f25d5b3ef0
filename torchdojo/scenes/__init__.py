"""Scenes: mechanisms, bodies and fixed shapes put together by name, and which of their bodies touch each other."""

from torchdojo.scenes.combine import combine
from torchdojo.scenes.pairs import Filter
from torchdojo.scenes.world import Plane

__all__ = ["Filter", "Plane", "combine"]
