"""Scenes: mechanisms, bodies and fixed shapes put together by name, and which of their bodies touch each other."""

from torchdojo.scenes.combine import combine

__all__ = ["combine"]
