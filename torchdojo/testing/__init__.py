"""Checks of mechanisms and of users' own elements: the suite of an element, gradients against differences, reports, diagnostics."""

from torchdojo.testing.check_element import Check, ElementReport, check_element
from torchdojo.testing.check_gradients import GradientReport, InputRow, StepReport, check_gradients, gradient_report, tangent_step

__all__ = [
    "Check",
    "ElementReport",
    "GradientReport",
    "InputRow",
    "StepReport",
    "check_element",
    "check_gradients",
    "gradient_report",
    "tangent_step",
]
