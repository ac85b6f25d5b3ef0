"""The parts of mechanisms: bodies, joints, contacts, couplings, and actuators. Names for users' own elements are exported here."""

from torchdojo.elements.element import Cones, Element, Motion, Pose, Twist

__all__ = ["Cones", "Element", "Motion", "Pose", "Twist"]
