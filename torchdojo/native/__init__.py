"""The compiled kernel: the step of `torchdojo.solver` in C++, built on first use."""
