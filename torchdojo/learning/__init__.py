"""Learning of policies on the environments of `torchdojo.envs` (extra ``torchdojo[learn]``).

    torchdojo train configs/shac_ant.yaml --output outputs/ant
    torchdojo play outputs/ant --html ant.html

The modules are imported by name, `torchdojo.learning.shac`, since each algorithm has packages of its own.
"""
