"""Mechanisms without limits, friction or armature on their joints."""

from __future__ import annotations

import torchdojo as td

KEYWORDS = ("limits", "friction", "armature")


def stripped(mech: td.Mechanism, *keywords: str) -> td.Mechanism:
    """A mechanism of the same bodies and contacts, with joints that lack these of limits, friction and armature (default: all)."""
    joints = []
    for name, joint in mech.joints.items():
        if isinstance(joint, td.StandardJoint):
            kept = {key: getattr(joint, key) for key in KEYWORDS if key not in (keywords or KEYWORDS)}
            fields = {key: getattr(joint, key) for key in td.StandardJoint.fields}
            if joint.servo_stiffness is not None:
                kept |= {"servo_stiffness": joint.servo_stiffness, "servo_damping": joint.servo_damping}
                kept |= {"servo_range": (joint.servo_lower, joint.servo_upper)} if joint.driven else {}
            joint = type(joint)(joint.parent, joint.child, **fields, **kept, actuated=joint.actuated, implicit=joint.implicit)
        joints.append((name, joint))
    given = list(mech.bodies.items()), joints, list(mech.contacts.items())
    new = td.Mechanism(*given, timestep=mech.timestep, gravity=mech.gravity, options=mech.options)
    new.actuators = None if mech.actuators is None else mech.actuators.on(new)
    return new
