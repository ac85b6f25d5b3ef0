"""The common part of all runs: folders with one writer, files that are never torn, checkpoints that are checked, descriptions in YAML.

files.py        atomic writes, checkpoints with their checksums, bounds of archives
lock.py         one process writes to a folder
description.py  descriptions in YAML and on the command line
versions.py     versions and revision of the code, for reports and checkpoints
figures.py      whether figures can be drawn (needs an extra)
memory.py       freed memory that stays with the process
lightning.py    checkpoints of pytorch-lightning, without its remarks (needs an extra)
"""

from torchdojo.runs.files import check_arrays, read_checkpoint, save_checkpoint, write_atomically
from torchdojo.runs.lock import locked

__all__ = ["check_arrays", "locked", "read_checkpoint", "save_checkpoint", "write_atomically"]
