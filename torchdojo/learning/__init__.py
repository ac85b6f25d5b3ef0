"""Policies that learn on the environments of `torchdojo.envs`, and measurements of them."""
