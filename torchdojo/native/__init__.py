"""The compiled kernel: its build, the tables that it reads, and its calls."""
