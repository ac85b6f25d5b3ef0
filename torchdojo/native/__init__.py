"""The compiled kernel: the step of `torchdojo.solver` in C++, built on first use, and the block-sparse solver that it is built on."""

from torchdojo.native.ldu import BlockLDU, Factor

__all__ = ["BlockLDU", "Factor"]
