"""A quadrotor: Skydio's X2, from MuJoCo Menagerie (skydio_x2/x2.xml, Apache 2.0 license)."""

from __future__ import annotations

import itertools
import math
from typing import Any

import torch
from torch import Tensor

from torchdojo.elements.bodies import Body
from torchdojo.elements.contacts import Contact, NonlinearContact
from torchdojo.elements.joints import Floating
from torchdojo.elements.rotors import Rotor, Rotors
from torchdojo.geometry.shapes import Ellipsoid
from torchdojo.mechanism import Mechanism
from torchdojo.models.built_in import built_in
from torchdojo.sensors.kind import Sensor
from torchdojo.sensors.site import Site

#: place of the hubs in the frame of the file [m], and moment per thrust [m]
HUBS = {
    "rotor1": ((-0.14, -0.18, 0.05), -0.0201),
    "rotor2": ((-0.14, 0.18, 0.05), 0.0201),
    "rotor3": ((0.14, 0.18, 0.08), -0.0201),
    "rotor4": ((0.14, -0.18, 0.08), 0.0201),
}
RADIUS, THICKNESS, ROTOR_MASS = 0.13, 0.01, 0.25  # [m], half of it [m], [kg]
HULL, HULL_MASS, HULL_CENTER = (0.16, 0.04, 0.02), 0.325, (0.0, 0.0, 0.02)
THRUST = 13.0  # largest, of each rotor [N]
IMU = (0.0, 0.0, 0.02)  # [m], in the frame of the file
SENSORS = {"body_gyro": "gyro", "body_linacc": "accelerometer", "body_quat": "frame_quaternion"}
#: corners of the collision boxes at the bottom and at the top, in the frame of the file: |x - 0.04|, |y|, z
CORNERS = tuple((0.04 + x, y, z) for x, y, z in itertools.product((-0.06, 0.06), (-0.027, 0.027), (0.0, 0.08)))


@built_in(base={"q": (0.0, 0.0, 0.3, 0.0, 0.0, 0.0)})
def quadrotor(
    *,
    timestep: float = 0.01,
    gravity: Any = (0.0, 0.0, -9.81),
    friction: Any = 1.0,
    contact: bool = True,
    contact_body: bool = True,
) -> Mechanism:
    """Skydio's X2: one body "x2", joint "base" (free, anchored at the center of mass), and four rotors of up to 13 N. 1.325 kg.

    ``mech.step(z, ctrl=ctrl)`` takes a control in [-1, 1] for each of "rotor1" to "rotor4": thrust 6.5 (1 + control) N along the body's z.
    All at -0.5 hover. Rotors 1 and 3 turn the body one way about z, 2 and 4 the other way, by 0.0201 N·m per N. The inputs u of the joint
    are force and torque in the world's axes. The IMU at the site "imu" has the sensors "body_gyro", "body_linacc" and "body_quat" of the
    file. Drag of air is left out: `td.models.drag(mech, z, 1.225, 1.8e-5)` is the file's.

    Args:
        timestep: [s]. gravity: [m/s²], world frame, (3,).
        friction: Coulomb coefficient of all contacts.
        contact: False leaves all contacts out. contact_body: False leaves only the four corners that it stands on; the others are corners
            at the top and four points on the rim of every rotor.
    """
    parts = [(ROTOR_MASS, hub, (RADIUS, RADIUS, THICKNESS)) for hub, _ in HUBS.values()] + [(HULL_MASS, HULL_CENTER, HULL)]
    mass = sum(part[0] for part in parts)
    center = torch.stack([m * torch.tensor(place, dtype=torch.float64) for m, place, _ in parts]).sum(0) / mass
    shapes = [Ellipsoid(axes, position=torch.tensor(place, dtype=torch.float64) - center) for _, place, axes in parts]
    inertia = torch.zeros(3, 3, dtype=torch.float64)
    for (m, _, _), shape in zip(parts, shapes, strict=True):
        p = shape.position
        inertia = inertia + shape.inertia(m) + m * (p.dot(p) * torch.eye(3, dtype=torch.float64) - torch.outer(p, p))

    def placed(point: tuple[float, float, float]) -> Tensor:
        return torch.tensor(point, dtype=torch.float64) - center

    contacts: dict[str, Contact] = {}
    rims = {
        f"{name}_{i}": (x + RADIUS * math.cos(angle), y + RADIUS * math.sin(angle), z)
        for name, ((x, y, z), _) in HUBS.items()
        for i, angle in enumerate(math.radians(45 + 90 * k) for k in range(4))
    }
    corners = {f"{'foot' if corner[2] == 0 else 'top'}{i // 2}": corner for i, corner in enumerate(CORNERS)}
    for name, point in {**corners, **rims}.items():
        if contact and (name.startswith("foot") or contact_body):
            contacts[name] = NonlinearContact("x2", point=placed(point), friction=friction)
    bodies = {"x2": Body(mass, inertia, shape=shapes)}
    mech = Mechanism(bodies, {"base": Floating(None, "x2")}, contacts, timestep=timestep, gravity=gravity)
    rotors = {name: Rotor(tuple(placed(hub).tolist()), (0.0, THRUST), moment) for name, (hub, moment) in HUBS.items()}
    mech.actuators = Rotors(mech, "base", rotors)
    mech.actuators.replaceable = True
    mech.sites["imu"] = Site("x2", placed(IMU))
    for sensor, kind in SENSORS.items():
        mech.sensors[sensor] = Sensor(kind, site="imu")
    return mech
