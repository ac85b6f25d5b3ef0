"""An object with fitted values: the contents of parameters.json in the folder of a fit."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from torchdojo.identification.corrections import CorrectedMechanism, Residual
from torchdojo.identification.gauss_newton import Fit
from torchdojo.identification.levelling import levelled
from torchdojo.identification.parameters import ParametricMechanism
from torchdojo.identification.recordings import Recordings
from torchdojo.identification.starts import flight_starts
from torchdojo.identification.user_object import find_object

__all__ = ["FittedObject"]


@dataclass(frozen=True, kw_only=True)
class FittedObject:
    """All that it takes to build an object again with fitted values.

    parameters: fitted values by name, in physical units.
    given: values of parameters outside the fit that are not nominal.
    nominal: values of parameters of the nominal object.
    residual: a trained network of corrections.

    The other fields are as in `FitConfig`.
    """

    object: str
    parameters: dict[str, Any]
    given: dict[str, Any]
    laws: dict[str, Any]
    substeps: int
    kappa: float
    heading: bool
    width: float | None
    residual: Residual | None = None
    tilts: list[list[float]] = field(default_factory=list)
    flight: int | None = None
    nominal: dict[str, Any] = field(default_factory=dict)

    def prepared(self, recordings: Recordings) -> Recordings:
        """Recordings as the fit reads them: leveled, turned to their heading, started as their flights say."""
        nominal = find_object(self.object).build(recordings.dt, ())
        recordings = levelled(nominal, recordings, self.tilts) if self.tilts else recordings
        recordings = recordings.with_heading() if self.heading else recordings
        return recordings if self.flight is None else flight_starts(nominal, recordings, self.flight)

    def model(
        self, dt: float, substeps: int | None = None, kappa: float | None = None, unknowns: Sequence[str] | None = None
    ) -> ParametricMechanism:
        """The object for recordings with a sample every `dt` [s], with all its parameters as unknowns, or others."""
        names, start = self.parameters if unknowns is None else unknowns, {**self.given, **self.parameters}
        timestep = dt / (substeps or self.substeps)
        model = find_object(self.object).build(timestep, tuple(names), start=start, kappa=kappa or self.kappa, **self.laws)
        return model if self.residual is None else self.residual.build(model)

    def nominal_model(self, dt: float, substeps: int | None = None) -> ParametricMechanism:
        """The object to compare with: as its function makes it, whatever the fit assumes about contacts and kappa."""
        return find_object(self.object).build(dt / (substeps or self.substeps), (), start=self.nominal)

    def after(self, model: ParametricMechanism, found: Fit) -> FittedObject:
        """The object with the values of a stage, which fitted `model`."""
        parameters = {**self.parameters, **{name: value.tolist() for name, value in found.values.items()}}
        unfitted = {name: value for name, value in self.given.items() if name not in parameters}
        residual = model.description if isinstance(model, CorrectedMechanism) else None
        return replace(self, parameters=parameters, given=unfitted, residual=residual)

    @staticmethod
    def load(path: str | Path) -> FittedObject:
        """Read a file that ``json.dumps(dataclasses.asdict(fitted))`` wrote.

        Raises:
            ValueError: no file, or one with other contents.
        """
        path = Path(path)
        if not path.is_file():
            raise ValueError(f"no file {str(path)!r}; it comes with a finished `torchdojo fit`")
        try:
            values = json.loads(path.read_text())
            residual = values.get("residual")
            return FittedObject(**{**values, "residual": residual and Residual(**residual)})
        except (ValueError, TypeError, AttributeError, RecursionError) as error:
            raise ValueError(f"{path} does not hold the parameters of a fit, or is damaged ({error})") from error
