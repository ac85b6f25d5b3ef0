"""System identification: parameters of a mechanism from recorded trajectories."""

from torchdojo.identification.evaluation import OpenLoop, open_loop
from torchdojo.identification.fitting import CUBE, ELBOW, FitConfig, FitReport, Stage, fit
from torchdojo.identification.gauss_newton import (
    Fit,
    GaussNewtonOptions,
    Identifiability,
    LeastSquares,
    fit_starts,
    gauss_newton,
    multi_start,
)
from torchdojo.identification.objects import cube_model, elbow_model
from torchdojo.identification.parameters import Parameter, ParametricMechanism
from torchdojo.identification.recordings import DataError, Recordings, WindowDataset, read_recordings
from torchdojo.identification.residual_physics import ResidualWrench
from torchdojo.identification.residuals import RobustLoss, Scales, WindowLoss, WindowResidual
from torchdojo.identification.shooting import ShootingOptions, ShootingStage, multiple_shooting

__all__ = [
    "CUBE",
    "ELBOW",
    "DataError",
    "Fit",
    "FitConfig",
    "FitReport",
    "GaussNewtonOptions",
    "Identifiability",
    "LeastSquares",
    "OpenLoop",
    "Parameter",
    "ParametricMechanism",
    "Recordings",
    "ResidualWrench",
    "RobustLoss",
    "Scales",
    "ShootingOptions",
    "ShootingStage",
    "Stage",
    "WindowDataset",
    "WindowLoss",
    "WindowResidual",
    "cube_model",
    "elbow_model",
    "fit",
    "fit_starts",
    "gauss_newton",
    "multi_start",
    "multiple_shooting",
    "open_loop",
    "read_recordings",
]
