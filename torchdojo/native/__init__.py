"""The compiled kernel and what it needs: building it, the elimination order of a mechanism, the linear solver, the step."""
