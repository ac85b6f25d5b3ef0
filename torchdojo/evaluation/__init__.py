"""Experiments with known outcomes, run by `torchdojo evaluate`. A topic is a table of experiments; a module holds a group of them."""
