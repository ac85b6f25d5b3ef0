"""An MJCF model whose actuators act between sites, and from a crank to a slider: between free bodies, in a tree, and with the world."""

from __future__ import annotations

#: name -> attributes of a transmission between frames.
TRANSMISSIONS = {
    "hand in base": 'site="lhand" refsite="back"',
    "tip in base": 'site="ltip" refsite="back"',
    "tip in hand": 'site="ltip" refsite="rhand"',
    "base in hand": 'site="back" refsite="rhand"',
    "hand in world": 'site="rhand" refsite="home"',
    "world in hand": 'site="home" refsite="lhand"',
    "free bodies": 'site="spot" refsite="ltip"',
    "crank in tree": 'cranksite="ltip" slidersite="rhand" cranklength="0.9"',
    "crank to world": 'cranksite="rhand" slidersite="line" cranklength="1.6"',
    "crank of free bodies": 'cranksite="spot" slidersite="back" cranklength="1.3"',
    "crank too short": 'cranksite="lhand" slidersite="line" cranklength="0.01"',
}
GEARS = "0.8 -0.5 0.6 0.03 0.05 -0.04", "0.8 -0.5 0.6 0 0 0", "0 0 0 0.03 0.05 -0.04"
LAW = 'gaintype="affine" gainprm="2 0.5 -0.3" biastype="affine" biasprm="0.2 -1.5 -0.4"'

MODEL = """
<mujoco>
  <compiler angle="degree" autolimits="true"/>
  <option gravity="0 0 -9.81" timestep="0.001" integrator="implicitfast"><flag contact="disable"/></option>
  <default><geom density="1000" contype="0" conaffinity="0"/></default>
  <worldbody>
    <site name="home" pos="0.2 -0.1 0.9" euler="20 -30 50"/>
    <site name="line" pos="0.1 0.1 0.4" euler="10 80 0"/>
    <body name="trunk" pos="0 0 1">
      <freejoint/>
      <geom type="box" size="0.2 0.1 0.05" pos="0.02 0.01 0"/>
      <site name="back" pos="-0.1 0.05 0.05" euler="20 30 40"/>
      <body name="left" pos="0.2 0.1 0">
        <joint name="l1" type="ball" damping="0.05"/>
        <geom type="capsule" fromto="0 0 0 0.3 0 0" size="0.03"/>
        <site name="lhand" pos="0.3 0.02 0.01" euler="50 -10 5"/>
        <body name="tool" pos="0.3 0 0">
          <joint name="l2" type="slide" axis="1 0 0.2" damping="1"/>
          <geom type="box" size="0.04 0.03 0.02"/>
          <site name="ltip" pos="0.05 0 0.01" euler="-30 10 15"/>
        </body>
      </body>
      <body name="right" pos="0.2 -0.1 0">
        <joint name="r1" axis="0 1 0.3" damping="0.05"/>
        <geom type="capsule" fromto="0 0 0 0.25 0 0" size="0.03"/>
        <site name="rhand" pos="0.25 0.01 0.02" euler="15 25 -35"/>
      </body>
    </body>
    <body name="ball" pos="0.1 0.5 1.2">
      <freejoint/>
      <geom type="ellipsoid" size="0.08 0.1 0.06"/>
      <site name="spot" pos="0.05 -0.04 0.03" euler="70 10 -40"/>
    </body>
  </worldbody>
  <actuator>{actuators}</actuator>
</mujoco>
"""


def actuators(law: str = LAW) -> str:
    """All transmissions with all gears; cranks have one gear."""
    rows = []
    for name, target in TRANSMISSIONS.items():
        gears = ("1.7",) if "crank" in name else GEARS
        rows += [f'<general name="{name} {i}" {target} gear="{gear}" {law}/>' for i, gear in enumerate(gears)]
    return "".join(rows)


def text(inside: str | None = None) -> str:
    return MODEL.format(actuators=actuators() if inside is None else inside)
