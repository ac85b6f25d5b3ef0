"""Checks of mechanisms and of what users write for them: gradients against differences, reports, diagnostics."""

from torchdojo.testing.check_gradients import GradientReport, InputRow, StepReport, check_gradients, gradient_report, tangent_step

__all__ = ["GradientReport", "InputRow", "StepReport", "check_gradients", "gradient_report", "tangent_step"]
