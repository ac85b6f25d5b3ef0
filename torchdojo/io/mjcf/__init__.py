"""MJCF, as MuJoCo compiles it: `load` builds, `state` maps qpos and qvel, `description` and the others read the compiled model."""
