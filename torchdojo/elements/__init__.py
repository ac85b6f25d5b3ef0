"""What mechanisms are made of: bodies, joints, contacts, couplings, and actuators. The parts of a user's own elements are named here."""

from torchdojo.elements.element import Cones, Element, Motion, Pose, Twist

__all__ = ["Cones", "Element", "Motion", "Pose", "Twist"]
