"""Write tests/data/golden_small.json: a few records of the golden data, so that the repository can check itself without the shared folder.

python scripts/make_golden_small.py [--golden ../shared/golden] [--output tests/data/golden_small.json]
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
SOURCE = (
    "Numbers computed with Dojo.jl (https://github.com/dojo-sim/Dojo.jl, commit be7b5183, v0.7.6, MIT licence) under Julia 1.5.3, "
    "polished to the exact central path; selected by scripts/make_golden_small.py. "
    "Format: one entry per case; z, u, z_next are float64 and one step apart."
)

# The cases map to the exponent of kappa (with contacts) or None. They cover all kinds of rows, springs, dampers, inputs, both contact
# models, and a robot with joints and contacts.
CASES: dict[str, int | None] = {
    "pendulum_orientation_offset": None,
    "pendulum_spring_damper_input": None,
    "cartpole_spring_damper_h01": None,
    "npendulum5_h05_input": None,
    "snake3_Cylindrical": None,
    "snake3_FreeRevolute": None,
    "snake3_Orbital": None,
    "snake3_Planar": None,
    "snake3_Spherical": None,
    "block_impact_h05_a": 6,
    "block_nonlinear_h01_a": 4,
    "sphere_rolling_h05": 3,
    "raiberthopper_h05": 6,
}
RECORDS = (0, 0.1, 0.3, 0.6, 0.99)  # fractions of the trajectory, which include flight, impact, sliding and rest

BODY_KEYS = ("name", "mass", "inertia")
JOINT_KEYS = (
    "name", "type", "parent", "child", "axis", "parent_vertex", "child_vertex", "orientation_offset",
    "free_translational_axes", "free_rotational_axes", "constrained_translational_axes", "constrained_rotational_axes",
    "spring", "spring_rotational", "damper", "damper_rotational", "spring_offset", "input_offset", "input_dim",
)  # fmt: skip
CONTACT_KEYS = ("name", "body", "model", "normal", "contact_origin", "radius", "contact_offset", "friction")


def selection(folder: Path, case: str, kappa_exponent: int | None) -> dict[str, Any]:
    description = json.loads((folder / f"{case}.json").read_text())
    with np.load(folder / f"{case}.npz") as arrays:
        suffix = "" if kappa_exponent is None else f"_k{kappa_exponent}"
        z, u, z_next = arrays["z"], arrays["u"], arrays[f"z_next{suffix}"]
    index = [int(fraction * len(z)) for fraction in RECORDS]
    return {
        "kappa": None if kappa_exponent is None else 10.0**-kappa_exponent,
        "description": {
            "timestep": description["timestep"],
            "gravity": description["gravity"],
            "bodies": [{key: body[key] for key in BODY_KEYS} for body in description["bodies"]],
            "joints": [{key: joint[key] for key in JOINT_KEYS} for joint in description["joints"]],
            "contacts": [{key: contact[key] for key in CONTACT_KEYS} for contact in description["contacts"]],
        },
        "records": index,
        "z": z[index].tolist(),
        "u": u[index].tolist(),
        "z_next": z_next[index].tolist(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--golden", type=Path, default=ROOT.parent / "shared" / "golden", help="folder with the golden data")
    parser.add_argument("--output", type=Path, default=ROOT / "tests" / "data" / "golden_small.json")
    arguments = parser.parse_args()
    if not (arguments.golden / "index.json").is_file():
        parser.error(f"no golden data in {arguments.golden}; give its folder with --golden")
    table = {"source": SOURCE, "cases": {case: selection(arguments.golden, case, exponent) for case, exponent in CASES.items()}}
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    arguments.output.write_text(json.dumps(table, separators=(",", ":")).replace('},"', '},\n"') + "\n")
    print(f"{arguments.output}: {len(CASES)} cases, {arguments.output.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
