"""MJCF models with tendons: fixed, straight, around surfaces with and without side sites, from inside, and behind pulleys."""

ARM = """
<mujoco>
  <option gravity="0 0 -9.81" timestep="0.001" integrator="implicitfast"><flag contact="disable"/></option>
  <default><geom density="1000" contype="0" conaffinity="0"/><joint damping="0.02"/></default>
  <worldbody>
    <site name="w1" pos="0.05 0.02 0.35"/>
    <site name="w2" pos="-0.10 -0.04 0.30"/>
    <site name="w3" pos="0.20 0.15 0.10"/>
    <body name="upper" pos="0 0 0.3">
      <joint name="shoulder" axis="0 1 0"/>
      <joint name="twist" axis="0.3 0.2 1"/>
      <geom type="capsule" fromto="0 0 0 0.3 0 0" size="0.03"/>
      <site name="u1" pos="0.12 0.03 0.05"/>
      <site name="u2" pos="0.20 -0.02 -0.05"/>
      <geom name="ball" type="sphere" pos="0.28 0.01 0.02" size="0.045"/>
      <site name="above" pos="0.29 0.02 0.12"/>
      <body name="fore" pos="0.3 0 0">
        <joint name="elbow" axis="0 1 0" ref="0.2"/>
        <geom name="pin" type="cylinder" size="0.05 0.04" euler="90 10 0"/>
        <geom type="capsule" fromto="0 0 0 0.25 0 0" size="0.025"/>
        <site name="f1" pos="0.10 0.01 0.03"/>
        <site name="f2" pos="0.18 -0.02 -0.04"/>
        <site name="core" pos="0.005 0.0 0.004"/>
        <site name="under" pos="0.0 0.0 -0.12"/>
        <body name="slider" pos="0.28 0 0">
          <joint name="rail" type="slide" axis="1 0 0.2"/>
          <geom type="box" size="0.04 0.03 0.02"/>
          <site name="s1" pos="0.02 0.03 0.05"/>
        </body>
      </body>
    </body>
  </worldbody>
  <tendon>
    <fixed name="sum" stiffness="30" damping="0.4" springlength="0.02">
      <joint joint="shoulder" coef="0.04"/><joint joint="elbow" coef="-0.03"/><joint joint="rail" coef="0.5"/>
    </fixed>
    <spatial name="straight" stiffness="150" damping="1.5" springlength="0.3">
      <site site="w1"/><site site="u1"/><site site="f1"/><site site="s1"/></spatial>
    <spatial name="sphere" stiffness="80" springlength="0.1 0.3"><site site="u1"/><geom geom="ball"/><site site="f2"/></spatial>
    <spatial name="sphere_side"><site site="u2"/><geom geom="ball" sidesite="above"/><site site="f1"/></spatial>
    <spatial name="cylinder" damping="0.8"><site site="u2"/><geom geom="pin"/><site site="f2"/></spatial>
    <spatial name="cylinder_side"><site site="u1"/><geom geom="pin" sidesite="under"/><site site="f1"/></spatial>
    <spatial name="inside"><site site="u2"/><geom geom="pin" sidesite="core"/><site site="f2"/></spatial>
    <spatial name="pulley" stiffness="40">
      <site site="w1"/><site site="u1"/>
      <pulley divisor="2"/><site site="w2"/><geom geom="ball" sidesite="above"/><site site="f1"/>
      <pulley divisor="3"/><site site="w3"/><site site="f2"/><site site="s1"/>
    </spatial>
  </tendon>
</mujoco>
"""

#: A ball that hangs on strings: a free body, and one on a ball joint.
HUNG = """
<mujoco>
  <option gravity="0 0 -9.81" timestep="0.001" integrator="implicitfast"><flag contact="disable"/></option>
  <default><geom density="1000" contype="0" conaffinity="0"/></default>
  <worldbody>
    <site name="hook" pos="0.05 0 0.6"/>
    <site name="peg" pos="-0.25 0.05 0.4"/>
    <body name="free" pos="0 0 0.2">
      <freejoint name="root"/>
      <geom name="round" type="sphere" size="0.06"/>
      <geom type="box" size="0.02 0.08 0.05" pos="0.02 0 0"/>
      <site name="top" pos="0.01 0.02 0.07"/>
      <site name="low" pos="0.05 -0.01 -0.05"/>
      <body name="arm" pos="0 0 -0.1">
        <joint name="socket" type="ball"/>
        <geom type="capsule" fromto="0 0 0 0.1 0 -0.2" size="0.02"/>
        <site name="tip" pos="0.1 0 -0.2"/>
        <site name="side" pos="0.15 0.1 0.0"/>
      </body>
    </body>
  </worldbody>
  <tendon>
    <spatial name="string" stiffness="60" damping="0.3" springlength="0.2"><site site="hook"/><site site="top"/></spatial>
    <spatial name="brace" stiffness="50" damping="0.2" springlength="0.15"><site site="low"/><site site="tip"/></spatial>
    <spatial name="around"><site site="peg"/><geom geom="round"/><site site="tip"/></spatial>
    <spatial name="around_side"><site site="peg"/><geom geom="round" sidesite="side"/><site site="tip"/></spatial>
  </tendon>
</mujoco>
"""

#: Two links with every kind of activation, on joints, tendons and a site.
DRIVEN = """
<mujoco>
  <option gravity="0 0 -9.81" timestep="0.001" integrator="implicitfast"><flag contact="disable"/></option>
  <default><geom density="1000" contype="0" conaffinity="0"/><joint damping="0.1"/></default>
  <worldbody>
    <site name="high" pos="0.04 0 0.62"/>
    <site name="back" pos="-0.05 0 0.5"/>
    <body name="upper" pos="0 0 0.5">
      <joint name="shoulder" axis="0 1 0"/>
      <geom type="capsule" fromto="0 0 0 0.3 0 0" size="0.03"/>
      <site name="biceps" pos="0.05 0 0.04"/>
      <site name="triceps" pos="0.05 0 -0.04"/>
      <body name="fore" pos="0.3 0 0">
        <joint name="elbow" axis="0 1 0"/>
        <geom name="pin" type="sphere" size="0.035"/>
        <geom type="capsule" fromto="0 0 0 0.25 0 0" size="0.02"/>
        <site name="radius" pos="0.06 0 0.03"/>
        <site name="ulna" pos="0.05 0 -0.03"/>
        <site name="tip" pos="0.25 0.01 0.02" euler="20 30 0"/>
      </body>
    </body>
  </worldbody>
  <tendon>
    <spatial name="flexor" damping="0.5"><site site="biceps"/><geom geom="pin"/><site site="radius"/></spatial>
    <spatial name="extensor"><site site="triceps"/><site site="ulna"/></spatial>
    <spatial name="cable" stiffness="30" springlength="0.1"><site site="high"/><site site="triceps"/></spatial>
    <fixed name="gear"><joint joint="shoulder" coef="0.5"/><joint joint="elbow" coef="-1"/></fixed>
  </tendon>
  <actuator>
    <muscle name="pull" tendon="flexor" force="40" lengthrange="0.2 0.4" timeconst="0.01 0.05"/>
    <muscle name="push" tendon="extensor" force="30" lengthrange="0.2 0.4" tausmooth="0.2"/>
    <position name="servo" joint="elbow" kp="2"/>
    <general name="winch" tendon="cable" dyntype="filterexact" dynprm="0.03" gainprm="20"
      biastype="affine" biasprm="1 -2 -0.1" forcerange="-15 15"/>
    <general name="slow" joint="shoulder" dyntype="filter" dynprm="0.02" gainprm="3" actearly="true"/>
    <intvelocity name="creep" joint="elbow" kp="1" actrange="-1 1"/>
    <motor name="jet" site="tip" gear="0.5 0.2 1 0.02 0.01 0" ctrlrange="-1 1"/>
    <motor name="twist" tendon="gear" gear="0.3"/>
  </actuator>
</mujoco>
"""
