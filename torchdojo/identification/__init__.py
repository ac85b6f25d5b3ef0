"""System identification: parameters of a mechanism from recorded trajectories. README.md in this folder shows how.

`torchdojo.identification.lightning` (extra ``torchdojo[fit]``) and `torchdojo.identification.plots` (extra ``torchdojo[plots]``) are
imported by name.
"""

from torchdojo.identification.config import read_config
from torchdojo.identification.corrections import Residual, ResidualDistance, ResidualWrench
from torchdojo.identification.cross_validation import CrossValidation, cross_validate
from torchdojo.identification.description import FitConfig, Stage
from torchdojo.identification.evaluation import OpenLoop, open_loop
from torchdojo.identification.fitted_object import FittedObject
from torchdojo.identification.fitting import FitReport, fit
from torchdojo.identification.gauss_newton import (
    Fit,
    GaussNewtonOptions,
    Identifiability,
    LeastSquares,
    fit_starts,
    gauss_newton,
    multi_start,
)
from torchdojo.identification.levelling import levelled
from torchdojo.identification.misfit import RobustLoss, Scales, WindowLoss, WindowResidual
from torchdojo.identification.objects.cube import cube_model
from torchdojo.identification.objects.elbow import elbow_model
from torchdojo.identification.parameters import Parameter, ParametricMechanism
from torchdojo.identification.recordings import DataError, Recordings, WindowDataset, read_recordings
from torchdojo.identification.shooting import ShootingOptions, ShootingStage, multiple_shooting
from torchdojo.identification.starts import flight_starts
from torchdojo.identification.synthetic import record_rollouts

__all__ = [
    "CrossValidation",
    "DataError",
    "Fit",
    "FitConfig",
    "FitReport",
    "FittedObject",
    "GaussNewtonOptions",
    "Identifiability",
    "LeastSquares",
    "OpenLoop",
    "Parameter",
    "ParametricMechanism",
    "Recordings",
    "Residual",
    "ResidualDistance",
    "ResidualWrench",
    "RobustLoss",
    "Scales",
    "ShootingOptions",
    "ShootingStage",
    "Stage",
    "WindowDataset",
    "WindowLoss",
    "WindowResidual",
    "cross_validate",
    "cube_model",
    "elbow_model",
    "fit",
    "fit_starts",
    "flight_starts",
    "gauss_newton",
    "levelled",
    "multi_start",
    "multiple_shooting",
    "open_loop",
    "read_config",
    "read_recordings",
    "record_rollouts",
]
