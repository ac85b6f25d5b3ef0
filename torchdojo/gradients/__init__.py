"""The derivative of a step: implicit differentiation, batching rules, the hard limit, impacts."""
