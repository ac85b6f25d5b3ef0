"""Functions of the compiled kernel and their structures, declared once. ctypes makes types of them, and `header.py` makes C++."""

from __future__ import annotations

import ctypes

__all__ = ["ENTRIES", "STRUCTS", "Drives", "Feedback", "Gradient", "Impacts", "Law", "Map", "Near", "Options", "Rollout", "Sensors", "bind"]

#: Name of a structure -> its fields, in C's words. N environments, T steps, nb bodies. Strides count numbers, and a stride of zero shares
#: the array. Other arrays are contiguous. P = T / repeat periods hold an input each. S = T results belong to steps, or S = P to
#: periods; adjoints and Jacobians need results of every step.
STRUCTS: dict[str, dict[str, str]] = {
    "TdOptions": {
        "kappa": "double",
        "grad_kappa": "double",
        "residual_tol": "double",
        "path_tol": "double",
        "max_iterations": "int64_t",
        "min_iterations": "int64_t",
        "max_halvings": "int64_t",
        "max_total_iterations": "int64_t",
        "depenetration_speed": "double",  # [m/s]; 0: one step undoes any overlap
        "warm_iterations": "int64_t",
        "threads": "int64_t",
        "gradient_mode": "int64_t",  # a `GradientMode`
        "budget": "int64_t",  # Newton iterations of a step, after which a rollout gives its environment up; 0: none
    },
    # The law that turns controls into inputs at the start of every step.
    "TdLaw": {
        "actuators": "int64_t",
        "table": "const int32_t *",  # rows `Actuator`; rows of a joint lie side by side
        "values": "const double *",  # (N or 1, numbers): `ACTUATOR_PARAMETERS` of each actuator, then the range of each input
        "stride": "int64_t",
        "measures": "int64_t",  # whether the law reads the state
        "per_thrust": "const double *",  # (rotors, 6): wrench of each rotor at 1 N, in axes of the body; or null
        "body": "int64_t",  # number of the body that the rotors turn with
        "first": "int64_t",  # number of the first of the six inputs that the rotors make
    },
    # The laws of drives, whose activations a rollout carries (src/elements/drives.hpp), and gradients by them.
    "TdDrives": {
        "drives": "int64_t",
        "activations": "int64_t",
        "pushes": "int64_t",  # whether some drive acts at a site
        "table": "const int32_t *",  # rows `Drive`; rows of a joint lie side by side
        "values": "const double *",  # (N or 1, drives, `DRIVE_NUMBERS`)
        "stride": "int64_t",
        "start": "const double *",  # activations before the first step, (N, na)
        "act": "double *",  # activations after the S stored steps, (N, S, na)
        "force": "double *",  # forces in the first step of each period, (N, P, drives)
        "inputs": "double *",  # inputs of all steps, (N, T, nu), as gradients need them; or null
        "wrenches": "double *",  # wrenches of all steps, (N, T, 6 nb), as gradients need them; null where no drive acts at a site
        "grad_act": "const double *",  # (N, T, na), or null
        "grad_force": "const double *",  # (N, P, drives), or null
        "by_start": "double *",  # (N, na)
    },
    # The law u = clip(ū + α k + K (x ⊖ x̄)) that makes the input of a period from the state at its start (src/elements/feedback.hpp).
    # Environment n takes rows `..._row[n]` of arrays (rows, P, ·), so that environments share what they have in common.
    "TdFeedback": {
        "minimal": "int64_t",  # whether x are minimal coordinates and rates, or states z
        "size": "int64_t",  # length of x ⊖ x̄
        "inputs": "int64_t",  # m, length of u: inputs, or controls of a law
        "nominal": "const double *",  # x̄
        "nominal_row": "const int64_t *",
        "nominal_stride": "int64_t",  # numbers from one row to the next: a row may have more than P states
        "input": "const double *",  # ū, (rows, P, m)
        "input_row": "const int64_t *",
        "feedforward": "const double *",  # k, (rows, P, m), or null
        "feedforward_row": "const int64_t *",
        "gain": "const double *",  # K, (rows, P, m, size), or null
        "gain_row": "const int64_t *",
        "solution": "const double *",  # (rows, P, n) of the nominal steps, where the iterations of each step start, or null
        "solution_row": "const int64_t *",
        "scale": "const double *",  # α, (N,)
        "lower": "const double *",  # (P, m)
        "upper": "const double *",
        "applied": "double *",  # u, (N, P, m): the `u` of the rollout
    },
    "TdRollout": {
        "environments": "int64_t",
        "steps": "int64_t",
        "repeat": "int64_t",  # steps of a period
        "every": "int64_t",  # steps from one stored result to the next: 1 or `repeat`
        "parameters": "const double *",  # (N or 1, P)
        "parameter_stride": "int64_t",
        "z0": "const double *",  # (N, 13 nb)
        "z0_stride": "int64_t",
        "u": "const double *",  # (N, P, nu), or null; with a law, the controls (N, P, number of actuators)
        "law": "const TdLaw *",  # or null
        "drives": "const TdDrives *",  # or null: u are controls (N, P, drives)
        "feedback": "const TdFeedback *",  # or null: u is written before it is read
        "wrench": "const double *",  # (N, 6 nb), or null
        "warm": "const double *",  # (N, n), or null
        "grad_kappa": "const double *",  # (N,), or null for the value in the options
        "z": "double *",  # (N, S, 13 nb), environments `z_stride` apart
        "z_stride": "int64_t",
        "impulses": "double *",  # (N, P, ni), summed over the period
        "w": "double *",  # (N, S, n), or (N, n) where w_steps is 1: the last solution only
        "w_steps": "int64_t",
        "status": "int64_t *",  # (N, S): of a period the worst; iterations and substeps are sums
        "iterations": "int64_t *",
        "substeps": "int64_t *",
    },
    # Impacts of a rollout, K of its steps (gradients/impacts.py).
    "TdImpacts": {
        "step": "const int64_t *",  # (N, T): number of the impact of each step, or −1
        "before": "const double *",  # f⁻ and f⁺ (K, 13 nb)
        "after": "const double *",
        "slope": "const double *",  # (K, 13 nb)
        "component": "const int64_t *",  # (K, nb): the first body of each body's component
        "by_time": "double *",  # (K, nb): gradients of τ, in the places of these first bodies
    },
    # A function of states (src/maps/state_maps.hpp), or a product with its derivative.
    "TdMap": {
        "map": "int64_t",  # a `StateMap`
        "derivative": "int64_t",  # a `Derivative`
        "environments": "int64_t",
        "threads": "int64_t",
        "parameters": "const double *",  # (N or 1, P)
        "parameter_stride": "int64_t",
        "in": "const double *",  # (N, size of the argument)
        "along": "const double *",  # the gradient of the value, or the tangent of the argument; null for the value
        "out": "double *",
    },
    # Sensors at a state and the step that starts there (src/maps/sensors.hpp), or the gradients by their readings.
    "TdSensors": {
        "environments": "int64_t",
        "threads": "int64_t",
        "repeat": "int64_t",  # steps of the period
        "sensors": "int64_t",
        "frames": "int64_t",
        "contacts": "int64_t",
        "size": "int64_t",  # numbers of all sensors
        "table": "const int32_t *",  # rows `Sensor`
        "frame_table": "const int32_t *",  # rows `SensedFrame`
        "contact_table": "const int32_t *",  # rows `SensedContact`
        "subtree_table": "const int32_t *",  # (subtrees, nb): whether a body belongs to a subtree
        "frame_numbers": "const double *",  # `SENSED_FRAME_NUMBERS` of each frame
        "numbers": "const double *",  # `SENSOR_NUMBERS` of each sensor
        "magnetic": "const double *",  # (3,)
        "parameters": "const double *",  # (N or 1, P)
        "parameter_stride": "int64_t",
        "z": "const double *",  # (N, 13 nb)
        "after": "const double *",  # (N, 13 nb), the state after the step, or null
        "impulses": "const double *",  # (N, ni), or null
        "wrench": "const double *",  # (N, 6 nb), or null
        "out": "double *",  # (N, size)
        "along": "const double *",  # (N, size), the gradient of `out`, which is not written then; or null
        "by_z": "double *",  # gradients
        "by_after": "double *",
        "by_impulses": "double *",
        "by_wrench": "double *",
    },
    # The near terms of a pair of polytopes (base/near_search.hpp), of each environment the nearest first.
    "TdNear": {
        "environments": "int64_t",
        "threads": "int64_t",
        "contact": "int64_t",  # number of a contact of the pair, as declared
        "capacity": "int64_t",
        "reach": "const double *",  # (N,)
        "z": "const double *",  # (N, 13 nb)
        "terms": "double *",  # (N, capacity, 3)
        "gaps": "double *",  # (N, capacity)
        "counts": "int64_t *",  # (N,): how many there are, which may be more than the capacity
    },
    # The terms of a rollout by near contacts (abi/near_steps.hpp), as `numbers` of engine/near_slots.py. K: how many contacts, as declared.
    "TdNearSteps": {
        "known": "const int64_t *",  # (N, K) before the first step, or null
        "free": "int64_t",  # whether, without inputs, gravity alone gives bodies energy
        "stored": "int64_t",  # steps whose terms are kept: T, or 1 for the last step alone
        "terms": "int64_t *",  # (N, stored, K)
        "overflow": "int64_t *",  # (N, 2): a contact of a pair with more terms than slots, or −1, and how many it has
    },
    "TdGradient": {
        "grad_z": "const double *",  # (N, T, 13 nb) of the states after each step, environments `grad_z_stride` apart
        "grad_z_stride": "int64_t",
        "grad_impulses": "const double *",  # (N, P, ni), or null
        "grad_z0": "double *",  # (N, 13 nb)
        "grad_u": "double *",  # (N, T, nu), or null; with a law or drives, by controls (N, P, ·); added to the numbers there
        "grad_wrench": "double *",  # (N, 6 nb), or null
        "grad_parameters": "double *",  # (N, P), or (P) where parameters are shared, or null; added to the numbers there
        "impacts": "const TdImpacts *",  # or null
    },
}

#: Name of a function -> the type of its result and those of its arguments, in C's words.
ENTRIES: dict[str, tuple[str, tuple[str, ...]]] = {
    # layout; tables and their length; schedule and its length; receives the layout and lengths that the kernel expects. Null on mismatch.
    "td_mechanism_create": ("void *", ("uint64_t", "const int32_t *", "int64_t", "const int32_t *", "int64_t", "uint64_t *")),
    "td_mechanism_destroy": ("void", ("void *",)),
    # environments that a rollout of this mechanism takes side by side
    "td_lanes": ("int64_t", ("const void *",)),
    # number of tensors; their implementations; a function that gives the address of their data; addresses, bytes, and a copy of all:
    # whether the tensors still have these addresses, and the copy still equals the data
    "td_same": (
        "int64_t",
        ("int64_t", "const void *const *", "const void *", "const void *const *", "const int64_t *", "const char *"),
    ),
    # number of tensors; their implementations; a method without arguments: whether it is true of any of them
    "td_any": ("int64_t", ("int64_t", "const void *const *", "const void *")),
    # memory of whole pages from mmap, and its bytes: whether it could be set to zero, where it has been written
    "td_clear": ("int64_t", ("void *", "int64_t")),
    "td_rollout": ("void", ("void *", "const TdOptions *", "const TdRollout *")),
    "td_rollout_adjoint": ("void", ("void *", "const TdOptions *", "const TdRollout *", "const TdGradient *")),
    # w (N, T, n): solutions on the way to the hard limit κ → 0
    "td_near_limit": ("void", ("void *", "const TdOptions *", "const TdRollout *", "double *")),
    # (N, 12 nb, 12 nb + nu) of rollouts of one step
    "td_jacobian": ("void", ("void *", "const TdOptions *", "const TdRollout *", "double *")),
    # q and q̇ (N, 2n); (N, 2n, 2n + nu) of rollouts of one step
    "td_minimal_jacobian": ("void", ("void *", "const TdOptions *", "const TdRollout *", "const double *", "double *")),
    # a rollout of one step, then its Jacobian, in minimal coordinates if they are given
    "td_linearize": ("void", ("void *", "const TdOptions *", "const TdRollout *", "const double *", "double *")),
    "td_map": ("void", ("void *", "const TdMap *")),
    "td_sense": ("void", ("void *", "const TdSensors *")),
    "td_near_terms": ("void", ("void *", "const TdNear *")),
    "td_near_rollout": ("void", ("void *", "const TdOptions *", "const TdRollout *", "const TdNearSteps *")),
    "td_near_adjoint": ("void", ("void *", "const TdOptions *", "const TdRollout *", "const TdNearSteps *", "const TdGradient *")),
}

_TYPES = {"void": None, "double": ctypes.c_double, "int64_t": ctypes.c_int64, "uint64_t": ctypes.c_uint64}


def _ctype(text: str) -> type | None:
    return ctypes.c_void_p if text.endswith("*") else _TYPES[text]


def _structure(name: str) -> type[ctypes.Structure]:
    fields = [(field, _ctype(kind)) for field, kind in STRUCTS[name].items()]
    # Without __slots__, a field with a typing error would become an attribute of its own.
    return type(name, (ctypes.Structure,), {"__slots__": (), "_fields_": fields})


Options, Law, Drives, Feedback, Rollout, Impacts, Gradient, Map, Sensors, Near, NearSteps = (
    _structure(f"Td{name}")
    for name in ("Options", "Law", "Drives", "Feedback", "Rollout", "Impacts", "Gradient", "Map", "Sensors", "Near", "NearSteps")
)


def bind(kernel: ctypes.CDLL) -> ctypes.CDLL:
    """The library with the types of its functions."""
    for name, (result, arguments) in ENTRIES.items():
        function = getattr(kernel, name)
        function.restype, function.argtypes = _ctype(result), [_ctype(argument) for argument in arguments]
    return kernel
