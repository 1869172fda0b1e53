"""What a tuner that continues an experiment asks for, and whether that contradicts it."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

from raytrials.errors import ConfigurationError

_DEFAULTS = {"search_alg": "BasicVariantGenerator", "scheduler": "FIFOScheduler"}


@dataclass(frozen=True)
class Asked:
    """The configurations of the call.

    Attributes:
        tune_config: a `TuneConfig`, None for that of the experiment.
        run_config: a `RunConfig`.
    """

    tune_config: Any
    run_config: Any

    def over(self, tune_config: Any, run_config: Any) -> tuple[Any, Any]:
        """Return the two configurations that the experiment goes on with.

        Args:
            tune_config: of the experiment.
            run_config: of the experiment, at the place where it is.

        Raises:
            ConfigurationError: something contradicts what was done already.
        """
        run = copy.copy(self.run_config)
        for name in ("name", "storage_path", "storage_filesystem"):
            setattr(run, name, getattr(run_config, name))
        if self.tune_config is None:
            return tune_config, run
        tune = copy.copy(self.tune_config)
        for name in ("metric", "mode"):
            old, new = getattr(tune_config, name), getattr(tune, name)
            if new is None:
                setattr(tune, name, old)
            elif old is not None and new != old:
                raise _contradiction(name, new, repr(old))
        for name, default in _DEFAULTS.items():
            old, new = (_kind(getattr(one, name), default) for one in (tune_config, tune))
            if old != new:
                raise _contradiction(name, new, f"one of {old}")
        old, new = (_samples(one.num_samples) for one in (tune_config, tune))
        if new < old:
            raise _contradiction(
                "num_samples", tune.num_samples, f"{tune_config.num_samples} or more"
            )
        return tune, run


def _samples(number: int) -> float:
    return float("inf") if number == -1 else number


def _kind(part: Any, default: str) -> str:
    """Return what a searcher or scheduler is, with those that it wraps."""
    if part is None:
        return default
    if isinstance(part, str):
        return part
    inner = getattr(part, "searcher", None)
    return type(part).__name__ + (f" of {_kind(inner, default)}" if inner is not None else "")


def _contradiction(name: str, value: object, expected: str) -> ConfigurationError:
    return ConfigurationError(
        f"TuneConfig({name}=...)",
        value,
        f"{expected}, as in the experiment that resume='auto' continues, or another "
        "RunConfig(name=...)",
    )
