"""Data that Python and the compiled kernel share, declared once: enums, constants, rows of tables, and the order of packed parameters.

`header.py` writes these declarations as C++, under the same names, so the kernel repeats none of them. `lowering.py` fills the rows and
`packing.py` the parameters. `calls.py` has the functions of the kernel and their arguments.
"""

from __future__ import annotations

import enum

import numpy as np

from torchdojo.dynamics import integrator
from torchdojo.elements import contact, couplings, hard_maps, joint_cones, path_maps, tendon
from torchdojo.elements.contacts import ImpactContact, LinearContact, NonlinearContact
from torchdojo.elements.element import Element
from torchdojo.elements.near_contact import NearContact
from torchdojo.geometry import distance, ellipsoids, near_ellipsoids, near_terms, pairs
from torchdojo.gradients import checks, hard_limit
from torchdojo.native.drive_kinds import DRIVE_NUMBERS, MUSCLE_BIAS, MUSCLE_GAIN, DriveDynamics, DriveTarget
from torchdojo.native.layouts import numbers, place, row, size
from torchdojo.solver import continuation, interior_point, kkt, path_newton, solution, speed, start_level
from torchdojo.solver.options import GradientMode, Status
from torchdojo.state import layout

__all__ = ["CONSTANTS", "ENUMS", "LAYOUTS", "ROWS", "TABLES", "numbers", "place", "row", "size"]

# -- enums -------------------------------------------------------------------------------------------------------------------------------

CROOKED_QUATERNION = 3  # a status of the kernel that `Status` lacks


class ContactModel(enum.IntEnum):
    """Friction of a contact: none, a second-order cone, a pyramid."""

    FRICTIONLESS = 0
    DISC = 1
    PYRAMID = 2


CONTACT_MODELS: dict[type[Element], ContactModel] = {
    ImpactContact: ContactModel.FRICTIONLESS,
    NonlinearContact: ContactModel.DISC,
    LinearContact: ContactModel.PYRAMID,
    NearContact: ContactModel.DISC,
}


class JointCone(enum.IntEnum):
    """Kinds of pairs of a joint: lower limit, upper limit, friction, lowest rate, highest rate, a servo with a range."""

    LOWER = 0
    UPPER = 1
    FRICTION = 2
    LOWEST_RATE = 3
    HIGHEST_RATE = 4
    DRIVE = 5


class StateMap(enum.IntEnum):
    """Functions of states: from z, and `TO_MAXIMAL` from q and q̇, side by side (src/maps/state_maps.hpp)."""

    TO_MINIMAL = 0
    TO_MAXIMAL = 1
    DISTANCES = 2
    CONTACT_POINTS = 3
    KINETIC_ENERGY = 4
    POTENTIAL_ENERGY = 5


class Derivative(enum.IntEnum):
    """The value of a function, a gradient pulled back through it, or a tangent pushed forward."""

    VALUE = 0
    PULL = 1
    PUSH = 2


class SensorKind(enum.IntEnum):
    """Sensors that the kernel reads, by the names of their kinds (src/maps/sensors.hpp)."""

    FRAME_POSITION = 0
    FRAME_QUATERNION = 1
    FRAME_X_AXIS = 2
    FRAME_Y_AXIS = 3
    FRAME_Z_AXIS = 4
    FRAME_LINEAR_VELOCITY = 5
    FRAME_ANGULAR_VELOCITY = 6
    FRAME_LINEAR_ACCELERATION = 7
    FRAME_ANGULAR_ACCELERATION = 8
    GYRO = 9
    VELOCIMETER = 10
    ACCELEROMETER = 11
    MAGNETOMETER = 12
    FORCE = 13
    TORQUE = 14
    TOUCH = 15
    JOINT_POSITION = 16
    JOINT_VELOCITY = 17
    JOINT_LIMIT_POSITION = 18
    JOINT_LIMIT_VELOCITY = 19
    JOINT_LIMIT_FORCE = 20
    SUBTREE_CENTER = 21
    SUBTREE_LINEAR_VELOCITY = 22
    SUBTREE_LINEAR_MOMENTUM = 23
    SUBTREE_ANGULAR_MOMENTUM = 24


ZONES = ("sphere", "ellipsoid", "box", "capsule", "cylinder")  # shapes of sites, in which touch sensors feel contacts
CONTACT_LAWS = contact.Contact.laws
COUPLES = tuple(name for name in contact.LAWS if name not in CONTACT_LAWS)
SHAPE_KINDS = (*pairs.KINDS, "surface", "polytope", "heights", "grid")
GRADIENT_MODES = {mode: number for number, mode in enumerate(GradientMode)}  # the kernel's numbers of the modes

#: C++ name, with its struct or namespace -> its integer type and its members.
ENUMS: dict[str, tuple[str, dict[str, int]]] = {
    "Status": (
        "int64_t",
        {status.name.lower(): int(status) for status in Status} | {"crooked_quaternion": CROOKED_QUATERNION, "too_fast": speed.TOO_FAST},
    ),
    "GradientMode": ("int64_t", {mode.name.lower(): number for mode, number in GRADIENT_MODES.items()}),
    "rows::Contact::Model": ("int32_t", {model.name.lower(): int(model) for model in ContactModel}),
    "rows::JointCone::Kind": ("int32_t", {kind.name.lower(): int(kind) for kind in JointCone}),
    "maps::Kind": ("int64_t", {name.name.lower(): int(name) for name in StateMap}),
    "maps::Derivative": ("int64_t", {name.name.lower(): int(name) for name in Derivative}),
    "drive_target::Kind": ("int32_t", {target.name.lower(): int(target) for target in DriveTarget}),
    "drive_dynamics::Kind": ("int32_t", {law.name.lower(): int(law) for law in DriveDynamics}),
    "senses::Kind": ("int32_t", {name.name.lower(): int(name) for name in SensorKind}),
    "zones::Kind": ("int32_t", {zone: number for number, zone in enumerate(ZONES)}),
    "geometry::Kind": ("int32_t", {kind: number for number, kind in enumerate(SHAPE_KINDS)}),
}

# -- rows of tables ----------------------------------------------------------------------------------------------------------------------


def _row(*names: str, **others: np.dtype | int) -> np.dtype:
    """A row of int32 fields, then arrays of them, by their length, and rows within the row."""
    fields: list[tuple] = [(name, np.int32) for line in names for name in line.split()]
    fields += [(name, np.int32, (kind,)) if isinstance(kind, int) else (name, kind) for name, kind in others.items()]
    return np.dtype(fields)


HEAD = _row(
    "num_bodies num_unknowns num_inputs num_parameters num_joints num_contacts num_impulses num_cones",
    "has_loops curved",  # joints or couplings may repeat each other; joints have polynomials of springs or dampers
    "num_fill num_joint_cones num_free_data num_pairs num_couples num_couplings num_links num_coordinates num_polytope_words",
    "num_coupling_ends num_tendons num_strings num_tendon_bodies num_tendon_parts num_tendon_blocks",
    "num_damped_tendons",  # tendons whose impulses depend on velocities
    "num_samples",  # samples of height fields and grids, behind the packed parameters
)
BODY = _row(
    "diagonal right",
    "slowed_by",  # number of the joint whose limits of speed keep its spin slow (−1: none; solver/speed.py)
)
JOINT = _row(
    "parent child",  # the world is the number of bodies
    "held_t held_r",  # constrained directions
    "row input",  # positions in w and in u (−1: not actuated)
    "parameters",  # position in the packed parameters
    "has_spring has_damper implicit",
    "armature stiffness curve",  # positions in the packed parameters (−1: none)
    "lower upper",  # positions of all limits in the packed parameters (−1: none)
    "limited_r",  # the limits that act on rotations: 1 lower, 2 upper, 3 both
    "cone",  # position of the largest angle of the whole rotation in the packed parameters (−1: none)
    "extra",  # rows of limits on components of a rotation vector, or of the cone
    "first_cone num_cones",  # its limits and frictions
    "has_rate_cones",  # friction, limits of rates, drives
    "driven",  # bits of the coordinates with a drive, whose inputs the drive has
    "repeats",  # whether a projection leaves out its rows that repeat other joints of a loop
    "free_data",  # number among the joints with armature, limits or friction (−1: none)
    "size",  # rows of its node: held directions, free ones where a damper or the like acts, extra ones; 0: no node
    "right",  # position in the right-hand side
    "diagonal child_joint joint_child parent_joint joint_parent",  # blocks of the condensed matrix
)
CONTACT = _row(
    "body",
    "number",  # among the contacts as declared
    "friction",  # a `ContactModel`
    "facets",  # number of facets of the pyramid
    "impulse slack",  # positions in w
    "parameters",
    "pair",  # number among the contacts between bodies or shapes (−1: a sphere on a half-space of the world)
    *CONTACT_LAWS,  # positions in the packed parameters (−1: none)
    "law",  # its number among the contacts, where its laws are (−1: a couple)
    "cone",  # from the first impulse (and slack) to those of friction
    "first_couple num_couples",  # its torsional and rolling friction
)
FILL = _row("offset count")
JOINT_CONE = _row(
    "joint coordinate",
    "row",  # in the joint's node
    "kind",  # a `JointCone`
    "impulse slack",  # positions in w
    "stride",  # from p to q of friction and drives
    "parameter",  # position in the packed parameters
    "fastest",  # position of the largest speed of the coordinate in the packed parameters (−1: none)
)
PAIR = _row(
    "other",  # body; the world is the number of bodies
    "kind_a kind_b",  # numbers in `SHAPE_KINDS`
    "shape_a shape_b",  # positions in the packed parameters
    "core_a core_b",  # numbers among the polytopes (−1: another shape)
    "body_other other_body",  # blocks of the condensed matrix
    "samples rows columns layers",  # first one of a height field or grid among the packed parameters (−1: another shape), and their counts
)
COUPLE = _row(
    "contact",
    "parameter",  # position of the coefficient in the packed parameters
    friction=CONTACT,  # as a contact of its own
)
COUPLING = _row(
    "row",  # position in w
    "parameters",
    "right diagonal",  # its node in the condensed matrix, a single row
    "first_end num_ends",  # in the table of ends
    "counts_turns",  # whether angles have the full turns that close the coupling
    "curved damped",  # whether the law has more than a ratio, and whether it yields with a damper
    "strings",  # the first of its two strings (−1: it couples coordinates)
)
COUPLING_END = _row(
    "joint coordinate",
    "leads",  # whether it is part of the sum of leaders
    "coefficient",  # position in the packed parameters (−1: one)
    body=2,  # parent and child; bodies of several ends may be the same
    body_coupling=2,  # blocks
    coupling_body=2,
)
LINK = _row("joint coordinate")
TENDON = _row(
    "row input",  # positions in w and in u (−1: not actuated)
    "parameters",
    "offset",  # position of the length of a sum where all coordinates are zero (−1: a string)
    "spatial implicit",  # whether it is a string, and whether its spring is implicit
    "damped",  # whether its impulse depends on the velocities of the step
    "limited rubs armature curved",  # whether it has limits, friction, armature, polynomials of spring or damper
    "first_body num_bodies",  # its places: bodies may repeat
    "first_part num_parts",
    "first_block",  # its first block among those of pairs of places
)
#: A coordinate of a sum, between the places 2k and 2k + 1, or a span of a string. Positions in the packed parameters, −1 for none.
TENDON_PART = _row(
    "joint coordinate",
    "start end",  # the coefficient, or the points of both ends
    "start_body end_body surface_body side_body",  # places
    "divisor",
    "center turn radius side",  # the surface between both ends
    "cylinder",
)
#: An actuator, in a table of its own (actuation.py): the coordinate that it drives, its input in u, and its number among the controls.
ACTUATOR = _row("joint coordinate input number")
#: A drive, in a table of its own (driving.py).
DRIVE = _row(
    "target",  # a `DriveTarget`
    "body",  # the body with the site or the crank, or that holds on; the world is the number of bodies (−1: none)
    "other carrier",  # the body with the other frame, and the one that takes the couple of two sites; likewise
    "joint coordinate",  # the coordinate that it drives
    "tendon",
    "input",  # its place in u (−1: none)
    "number",  # among the controls
    "activation",  # among the activations (−1: none)
    "delay steps",  # controls on their way: the place of the newest among the activations (−1: none), and their count
    "dynamics",  # a `DriveDynamics`
    "muscle_gain muscle_bias",  # whether gain and bias have the curves of a muscle
    "early",  # whether the force has the activation after the step
)
SENSOR = _row(
    "kind",  # a `SensorKind`
    "frame reference",  # numbers of frames (−1: none)
    "joint coordinate",  # −1: none
    "subtree",  # number of the subtree, or of the bodies that a force carries (−1: none)
    "first second",  # sides of a limit: whether each exists; its force: places among the impulses (−1: none)
    "place size",  # place and count of its numbers
)
SENSED_FRAME = _row("body shape")  # the world is the number of bodies; a number in `ZONES`
SENSED_CONTACT = _row("number impulse")  # among the contacts as declared; the place of its first impulse among the impulses

#: C++ name in the namespace `rows` -> row.
ROWS: dict[str, np.dtype] = {
    "Head": HEAD,
    "Body": BODY,
    "Joint": JOINT,
    "Contact": CONTACT,
    "Fill": FILL,
    "JointCone": JOINT_CONE,
    "Pair": PAIR,
    "Couple": COUPLE,
    "Coupling": COUPLING,
    "CouplingEnd": COUPLING_END,
    "Link": LINK,
    "Tendon": TENDON,
    "TendonPart": TENDON_PART,
    "Actuator": ACTUATOR,
    "Drive": DRIVE,
    "Sensor": SENSOR,
    "SensedFrame": SENSED_FRAME,
    "SensedContact": SENSED_CONTACT,
}

#: The tables of a mechanism as they follow the head, one after the other -> row, and the field of the head with their length.
TABLES: dict[str, tuple[np.dtype, str]] = {
    "bodies": (BODY, "num_bodies"),
    "joints": (JOINT, "num_joints"),
    "contacts": (CONTACT, "num_contacts"),
    "impulses": (np.dtype(np.int32), "num_impulses"),
    "fill": (FILL, "num_fill"),
    "joint_cones": (JOINT_CONE, "num_joint_cones"),
    "pairs": (PAIR, "num_pairs"),
    "couples": (COUPLE, "num_couples"),
    "couplings": (COUPLING, "num_couplings"),
    "coupling_ends": (COUPLING_END, "num_coupling_ends"),
    "tree": (LINK, "num_links"),
    "tendons": (TENDON, "num_tendons"),
    "strings": (TENDON, "num_strings"),  # of couplings: the follower, the leader; `offset` has the leader's constant
    "tendon_bodies": (np.dtype(np.int32), "num_tendon_bodies"),  # bodies of all places; the world is the number of bodies
    "tendon_parts": (TENDON_PART, "num_tendon_parts"),
    "tendon_blocks": (np.dtype(np.int32), "num_tendon_blocks"),  # per pair of places; of strings, per place and row (−1: none)
    "polytopes": (np.dtype(np.int32), "num_polytope_words"),  # float64 numbers, two words each: see polytopes.py
}


# -- packed parameters -------------------------------------------------------------------------------------------------------------------


# The packed parameters of one environment: the globals, then bodies, joints, limits and frictions of joints, contacts, couplings.
GLOBAL_PARAMETERS = numbers(timestep=1, gravity=3)
BODY_PARAMETERS = numbers(mass=1, inertia=9)
# Two bases, in the joint frame. Each has a row per held direction, then a row per free direction.
JOINT_PARAMETERS = numbers(translations=9, rotations=9, parent_anchor=3, child_anchor=3, orientation=4)
# Behind the others, per free direction; armature, stiffness and curves only where they are given. The stiffness makes springs and servos
# implicit: h times the stiffness is a damper. Both curves of a direction come together, and with a stiffness.
FREE_PARAMETERS = numbers(spring=1, damper=1, rest=1, armature=1, stiffness=1, spring_curve=2, damper_curve=2)
DRIVE_PARAMETERS = numbers(half=1, middle=1, stiffness=1, damping=1)  # per free direction: half the width and the middle of the range
# A number of each law and of each couple stands behind the others, where it is given.
CONTACT_PARAMETERS = numbers(point=3, radius=1, offset=1, normal=3, tangents=6, friction=1)
# off: 1 − active. Coefficients of the ends stand behind, where given.
COUPLING_PARAMETERS = numbers(ratio=1, offset=1, curve=3, off=1, compliance=1, damping=1)
TENDON_PARAMETERS = numbers(  # the numbers of the path follow
    stiffness=1, damping=1, rest_lower=1, rest_upper=1, **dict.fromkeys(tendon.LIMIT_FIELDS, 1), friction=1, armature=1,
    **dict.fromkeys(tendon.CURVES, 2),
)  # fmt: skip
# Each actuator has the numbers of its law (actuation.py). A range (lower, upper) of each input follows.
ACTUATOR_PARAMETERS = numbers(gear=1, gain=3, bias=3, length0=1, ctrlrange=2, forcerange=2, carried_damping=1)
# A site has its pose on its body, and the extents of its zone. The output of a sensor is scale · value + offset between two bounds.
SENSED_FRAME_NUMBERS = numbers(position=3, orientation=4, extent=3)
SENSOR_NUMBERS = numbers(scale=1, offset=1, low=1, high=1)
#: Kind of a shape -> its numbers, behind those of its contact. `half`: half the segment of a capsule, half the edges of a box, semi-axes.
SHAPES = {
    "sphere": numbers(point=3, radius=1),
    "capsule": numbers(point=3, radius=1, orientation=4, half=1),
    "box": numbers(point=3, radius=1, orientation=4, half=3),
    "ellipsoid": numbers(point=3, radius=1, orientation=4, half=3),
    "surface": numbers(normal=3, offset=1),
    "polytope": numbers(term=3, fading=1),  # the core itself is constant, in the table of polytopes
    "heights": numbers(origin=2, cell=2),  # contacts share the samples, which stand behind the parameters of all elements
    "grid": numbers(origin=3, cell=3),
}
assert tuple(SHAPES) == SHAPE_KINDS

#: C++ namespace -> name of the end -> layout: each field becomes the number of its place.
LAYOUTS: dict[str, dict[str, np.dtype]] = {
    "parameter": {
        "bodies": GLOBAL_PARAMETERS,
        "body_size": BODY_PARAMETERS,
        "free_values": JOINT_PARAMETERS,
        "contact_size": CONTACT_PARAMETERS,
    },
    "parameter::free": {"size": FREE_PARAMETERS},
    "parameter::drive": {"size": DRIVE_PARAMETERS},
    "parameter::coupling": {"size": COUPLING_PARAMETERS},
    "parameter::tendon": {"size": TENDON_PARAMETERS},
    "parameter::shape": {"size": SHAPES["box"]},
    "parameter::surface": {"size": SHAPES["surface"]},
    "parameter::slot": {"size": SHAPES["polytope"]},
    "parameter::heights": {"size": SHAPES["heights"]},
    "parameter::grid": {"size": SHAPES["grid"]},
    "actuator": {"size": ACTUATOR_PARAMETERS},
    "drive_number": {"size": DRIVE_NUMBERS},
    "drive_laws::muscle_gain": {"size": MUSCLE_GAIN},
    "drive_laws::muscle_bias": {"size": MUSCLE_BIAS},
    "frame": {"size": SENSED_FRAME_NUMBERS},
    "sensor": {"size": SENSOR_NUMBERS},
}

# -- constants ---------------------------------------------------------------------------------------------------------------------------

MOST_FACETS = 32  # maximum of facets of a pyramid
MOST_TENDON_BODIES = 16  # places of a tendon

#: C++ namespace -> name -> value. Integers stay integers, a tuple becomes an array.
CONSTANTS: dict[str, dict[str, float | tuple[float, ...]]] = {
    "": {
        "state_size": layout.STATE_SIZE,
        "tangent_size": layout.TANGENT_SIZE,
        "most_facets": MOST_FACETS,
        "most_tendon_bodies": MOST_TENDON_BODIES,
    },
    "constant": {
        "largest_sine": integrator.LARGEST_SINE,
        "most_momentum": speed.MOST_MOMENTUM,
        "first_momentum": speed.FIRST_MOMENTUM,
        "near_momentum": speed.NEAR_MOMENTUM,
        "near_sine": speed.NEAR_SINE,
        "start_sine": speed.START_SINE,
        "driven_sine": speed.DRIVEN_SINE,
        "speed_iterations": speed.SPEED_ITERATIONS,
        "unit_tolerance": checks.UNIT_TOLERANCE,
        "regularization": kkt.REGULARIZATION,
        "refined": kkt.REFINED,
        "most_refinements": kkt.MOST_REFINEMENTS,
        # elements
        "resting_acceleration": contact.RESTING_ACCELERATION,
        "recovery_share": joint_cones.RECOVERY_SHARE,
        "most_turns": couplings.MOST_TURNS,
        "tendon_slip": tendon.SLIP,
        "tendon_softening": tendon.SOFTENING,
        "alike": couplings.ALIKE,
        "satisfied": couplings.SATISFIED,
        "impulse_weight": path_maps.IMPULSE_WEIGHT,
        "most_weight": path_maps.MOST_WEIGHT,
        "squeezing_weight": path_maps.SQUEEZING_WEIGHT,
        "off_path": path_maps.OFF_PATH,
        "squeezing_iterations": path_maps.SQUEEZING_ITERATIONS,
        "bracing_contacts": path_maps.BRACING_CONTACTS,
        "other_weight": path_maps.OTHER_WEIGHT,
        "return_weight": path_maps.RETURN_WEIGHT,
        "pyramid_steps": path_maps.PYRAMID_STEPS,
        "least_height": path_maps.LEAST_HEIGHT,
        # Newton's method on the path
        "near_residual": path_newton.NEAR_RESIDUAL,
        "near_iterations": path_newton.NEAR_ITERATIONS,
        "path_shrink": path_newton.PATH_SHRINK,
        "path_residual": path_newton.PATH_RESIDUAL,
        "path_free_iterations": path_newton.EARLY_ITERATIONS,
        "path_growth": path_newton.EARLY_GROWTH,
        "path_halvings": path_newton.PATH_HALVINGS,
        "patient_iterations": path_newton.PATIENT_ITERATIONS,
        "patient_halvings": path_newton.PATIENT_HALVINGS,
        "distant": path_newton.DISTANT,
        "path_level": interior_point.DESCENT_LEVEL,
        "path_iterations": interior_point.DESCENT_ITERATIONS,
        "rescue_level": interior_point.RESCUE_LEVEL,
        "rescue_iterations": interior_point.RESCUE_ITERATIONS,
        # the interior-point method
        "step_to_boundary": interior_point.STEP_TO_BOUNDARY,
        "short_step": interior_point.SHORT_STEP,
        "stuck_step": interior_point.STUCK_STEP,
        "jammed_step": interior_point.JAMMED_STEP,
        "raise": interior_point.RAISE,
        "max_level": interior_point.MAX_LEVEL,
        "start_level": interior_point.START_LEVEL,
        "cold_iterations": interior_point.COLD_ITERATIONS,
        "least_weight": start_level.LEAST_WEIGHT,
        "line_search_halvings": interior_point.LINE_SEARCH_HALVINGS,
        "roundings": solution.ROUNDINGS,
        "most_size": solution.MOST_SIZE,
        "continuation_levels": interior_point.CONTINUATION_LEVELS,
        "continuation_steps": continuation.MAX_STEPS,
        "continuation_corrections": continuation.CORRECTIONS,
        "continuation_easy": continuation.EASY,
        "continuation_longest": continuation.LONGEST,
        "continuation_shortest": continuation.SHORTEST,
        # the hard limit κ → 0
        "limit_kappa": hard_maps.HARD_KAPPA,
        "limit_path_tol": hard_limit.HARD_PATH_TOL,
        "limit_residual_tol": hard_limit.HARD_RESIDUAL_TOL,
        "limit_refinements": hard_maps.HARD_REFINEMENTS,
        "limit_iterations": hard_maps.HARD_ITERATIONS,
        "compliance": hard_maps.COMPLIANCE,
        "vanishing": hard_maps.VANISHING,
        "tie": hard_limit.TIE,
    },
    "constant::near_terms": {
        **dict(zip(("parallel_low", "parallel_high", "cone_low", "cone_high"), (*near_terms.PARALLEL, *near_terms.CONE), strict=True)),
        **dict(zip(("wide_fading", "less_wide_fading"), near_terms.FADINGS, strict=True)),
        **{
            name: getattr(near_terms, name.upper())
            for name in ("reach", "ends", "past", "passes", "halves", "looks", "bouncing", "bearing", "outside")
        },
    },
    "constant::near_ellipsoids": {name: getattr(near_ellipsoids, name.upper()) for name in ("touching", "scales", "settling")},
    "geometry": {
        "coincident": distance.COINCIDENT,
        "parallel": distance.PARALLEL,
        "flat": pairs.FLAT,
        "parallel_edges": pairs.PARALLEL_EDGES,
        "prefer_faces": pairs.PREFER_FACES,
        "box_rounding": ellipsoids.BOX_ROUNDING,
        "newton_iterations": ellipsoids.ITERATIONS,
        "newton_halvings": ellipsoids.HALVINGS,
        "longest_turn": ellipsoids.LONGEST,
        "settled_turn": ellipsoids.SETTLED,
        "shape_sizes": tuple(size(layout) for layout in SHAPES.values()),
        "most_numbers": max(size(layout) for layout in SHAPES.values()),
    },
}
