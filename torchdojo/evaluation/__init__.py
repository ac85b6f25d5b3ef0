"""Experiments with known outcomes, run by `torchdojo evaluate`: one table of experiments per topic, one module per group of them."""
