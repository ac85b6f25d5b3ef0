"""The Raibert hopper and the four-bar of Dojo: a leg that slides, and a loop of hinges.

Masses, sizes and dampers are the defaults of DojoEnvironments (mechanisms/raiberthopper, fourbar; MIT license). It gives no efforts: those
here are our choice.
"""

from __future__ import annotations

from typing import Any

import torch

from torchdojo.elements.bodies import Body
from torchdojo.elements.contacts import Contact, NonlinearContact
from torchdojo.elements.joints import CylindricalFree, Floating, Prismatic, Revolute, StandardJoint
from torchdojo.geometry.shapes import Box, Sphere
from torchdojo.mechanism import Mechanism
from torchdojo.models.built_in import add_motors, built_in

LEG = 0.5  # [m]
ROD = 1.0  # [m]
AXIS = (1.0, 0.0, 0.0)  # of the four-bar's hinges
PIVOT = 2.1  # height of the four-bar's hinges on the world [m]


@built_in(floating_base={"q": (0.0, 0.0, LEG + 0.06, 0.0, 0.0, 0.0)}, leg={"q": -LEG})
def raibert_hopper(
    *,
    timestep: float = 0.01,
    gravity: Any = (0.0, 0.0, -9.81),
    friction: Any = 0.5,
    spring: Any = 0.0,
    damper: Any = 0.1,
    effort: float = 250.0,
    actuated_base: bool = False,
    contact: bool = True,
    contact_body: bool = True,
) -> Mechanism:
    """A ball "body" of 4.18 kg on a leg that ends in a ball "foot" of 0.52 kg: joints "floating_base" and "leg", a slide along z.

    The coordinate of the leg is the height of the foot over the body, -0.5 m at rest. Its motor pushes with up to 250 N, five times the
    weight.

    Args:
        timestep: [s]. gravity: [m/s²], world frame, (3,).
        friction: Coulomb coefficient of both balls.
        spring, damper: of the leg [N/m, N·s/m]; the spring is relaxed at -0.5 m.
        effort: largest force of the leg's motor [N].
        actuated_base: whether the body has inputs too, 3 forces and 3 torques (Dojo's has).
        contact: False leaves both contacts out. contact_body: False leaves only that of the foot.
    """
    bodies = {"body": Body(4.18, shape=Sphere(0.1)), "foot": Body(0.52, shape=Sphere(0.05))}
    joints = {
        "floating_base": Floating(None, "body", actuated=actuated_base),
        "leg": Prismatic("body", "foot", axis=(0.0, 0.0, 1.0), spring=spring, damper=damper, rest=-LEG, effort_limit=effort),
    }
    contacts: dict[str, Contact] = {}
    for name, radius in (("foot", 0.05), ("body", 0.1)):
        if contact and (name == "foot" or contact_body):
            contacts[name] = NonlinearContact(name, radius=radius, friction=friction)
    return add_motors(Mechanism(bodies, joints, contacts, timestep=timestep, gravity=gravity))


@built_in(jointb1={"q": 0.6}, joint12={"q": -1.2}, jointb3={"q": -0.6}, joint34={"q": 1.2})
def fourbar(
    *, timestep: float = 0.01, gravity: Any = (0.0, 0.0, -9.81), damper: Any = 1.0, effort: float = 50.0, actuated: bool = False
) -> Mechanism:
    """Four rods of 1 kg and 1 m in a rhombus that hangs from one point, hinges about x: "jointb1" and "jointb3" on the world, "joint12" and
    "joint34" at the sides. "joint24" closes the loop at the lower end.

    At coordinate zero all rods point down from the hinges above them. "jointb1" and "jointb3" have motors. Dojo closes the loop with a
    hinge. Three of its five rows repeat what the other hinges hold, and a loop that stays in its plane has no derivative with respect to
    axes and anchors that would leave it. So "joint24" is a `CylindricalFree`, which holds the two directions of the plane alone. The motion
    is the same.

    Args:
        timestep: [s]. gravity: [m/s²], world frame, (3,).
        damper: of every hinge [N·m·s/rad].
        effort: largest torque of the motors [N·m]; 11 N·m of each hold the rhombus of the pose "home" open.
        actuated: whether "joint12" and "joint34" have inputs too, without motors.
    """
    bodies = {f"link{i}": Body(1.0, shape=Box((0.1, 0.1, ROD))) for i in (1, 2, 3, 4)}
    top, end = (0.0, 0.0, 0.5 * ROD), (0.0, 0.0, -0.5 * ROD)

    def hinge(parent: str | None, child: str, driven: bool, anchor: Any) -> StandardJoint:
        options: dict[str, Any] = {"effort_limit": effort} if driven else {"actuated": actuated}
        return Revolute(parent, child, axis=AXIS, parent_anchor=anchor, child_anchor=top, damper=damper, **options)

    turning = torch.as_tensor(damper, dtype=torch.float64)[..., None] * torch.tensor((0.0, 1.0, 1.0, 1.0), dtype=torch.float64)
    joints = {
        "jointb1": hinge(None, "link1", True, (0.0, 0.0, PIVOT)),
        "joint12": hinge("link1", "link2", False, end),
        "jointb3": hinge(None, "link3", True, (0.0, 0.0, PIVOT)),
        "joint34": hinge("link3", "link4", False, end),
        "joint24": CylindricalFree("link2", "link4", axis=AXIS, parent_anchor=end, child_anchor=end, damper=turning, actuated=False),
    }
    return add_motors(Mechanism(bodies, joints, timestep=timestep, gravity=gravity))
