"""MJCF files with every kind of sensor on random trees."""

from __future__ import annotations

import numpy as np

# ruff: noqa: E501 (lines of XML)

FRAME = ("framepos", "framequat", "framexaxis", "frameyaxis", "framezaxis", "framelinvel", "frameangvel")
SITE = ("gyro", "velocimeter", "accelerometer", "magnetometer", "force", "torque", "rangefinder", "touch")


def numbers(values) -> str:
    return " ".join(f"{value:.6f}" for value in values)


def random_tree(seed: int, links: int = 4) -> str:
    """A tree of `links` bodies, with a welded child each, on hinges, slides, balls or a free joint, and all sensors that fit."""
    rng = np.random.default_rng(seed)
    body, sensors, motors, ends = "", [], "", ""
    for i in range(links):
        kind = "free" if i == 0 and seed % 3 == 0 else ("hinge", "slide", "ball", "hinge")[int(rng.integers(4))]
        axis = f'axis="{numbers(rng.normal(size=3))}"' if kind in ("hinge", "slide") else ""
        ref = f'ref="{rng.uniform(-0.3, 0.3):.3f}"' if kind in ("hinge", "slide") else ""
        joint = (
            '<freejoint name="j0"/>'
            if kind == "free"
            else f'<joint name="j{i}" type="{kind}" {axis} {ref} pos="{numbers(rng.normal(size=3) / 20)}"/>'
        )
        body += (
            f'<body name="b{i}" pos="{numbers(rng.normal(size=3) / 4)}" quat="{numbers(rng.normal(size=4))}">{joint}'
            f'<geom name="g{i}" type="box" size="{numbers(rng.uniform(0.02, 0.2, 3))}" pos="{numbers(rng.normal(size=3) / 20)}" '
            f'quat="{numbers(rng.normal(size=4))}"/><site name="s{i}" pos="{numbers(rng.normal(size=3) / 5)}" quat="{numbers(rng.normal(size=4))}"/>'
            f'<body name="w{i}" pos="{numbers(rng.normal(size=3) / 5)}" quat="{numbers(rng.normal(size=4))}"><geom type="sphere" size=".05" rgba="0 0 0 0"/>'
            f'<site name="t{i}" pos="{numbers(rng.normal(size=3) / 5)}" quat="{numbers(rng.normal(size=4))}"/></body>'
        )
        ends += "</body>"
        for kind_of_sensor in (*FRAME, "framelinacc", "frameangacc"):
            for what, name in (("site", f"s{i}"), ("site", f"t{i}"), ("body", f"b{i}"), ("xbody", f"w{i}"), ("geom", f"g{i}")):
                sensors.append(f'<{kind_of_sensor} objtype="{what}" objname="{name}"/>')
            if kind_of_sensor in FRAME and i:
                sensors.append(f'<{kind_of_sensor} objtype="site" objname="s{i}" reftype="xbody" refname="w{i - 1}"/>')
        sensors += [f'<{one} site="s{i}"/>' for one in SITE] + [f'<{one} site="t{i}"/>' for one in SITE[:4]]
        sensors += [f'<subtree{one} body="b{i}"/>' for one in ("com", "linvel", "angmom")]
        if kind in ("hinge", "slide"):
            motors += (
                f'<general name="m{i}" joint="j{i}" gear="{rng.uniform(1, 3):.3f}" biastype="affine" gainprm="2" biasprm="0.1 -3 -0.2"/>'
            )
            sensors += [f'<{one} joint="j{i}"/>' for one in ("jointpos", "jointvel", "jointactuatorfrc")]
            sensors += [f'<{one} actuator="m{i}"/>' for one in ("actuatorpos", "actuatorvel", "actuatorfrc")]
        if kind == "ball":
            sensors += [f'<{one} joint="j{i}"/>' for one in ("ballquat", "ballangvel")]
    sensors += ["<clock/>", '<accelerometer site="s1" cutoff="2.5"/>']
    named = "".join(one.replace("/>", f' name="x{k}"/>') for k, one in enumerate(sensors))
    return (
        '<mujoco><option timestep="0.002" gravity="0.3 -0.4 -9.81"><flag contact="disable"/></option><worldbody>'
        f'<geom type="box" size="50 50 1" pos="0 0 -4"/>{body}{ends}</worldbody><actuator>{motors}</actuator><sensor>{named}</sensor></mujoco>'
    )
