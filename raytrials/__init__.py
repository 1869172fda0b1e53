"""Hyperparameter tuning on Ray that survives anything.

`from raytrials import Tuner` instead of `from ray.tune import Tuner` is the whole change. Names are
loaded on first use, so that reading results never imports Ray.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from raytrials.core.fault import Cause, ChargedFault
    from raytrials.core.retry import RetryPolicy
    from raytrials.core.rule import Rule
    from raytrials.errors import ActorError, Fatal, RaytrialsError, RestoreError, TrainingError
    from raytrials.store.audit import verify
    from raytrials.store.refreshing import refreshing_filesystem
    from raytrials.tuner import Tuner

__version__ = "0.1.0"

_HOMES = {
    "ActorError": "raytrials.errors",
    "Cause": "raytrials.core.fault",
    "ChargedFault": "raytrials.core.fault",
    "Fatal": "raytrials.errors",
    "RaytrialsError": "raytrials.errors",
    "RestoreError": "raytrials.errors",
    "RetryPolicy": "raytrials.core.retry",
    "Rule": "raytrials.core.rule",
    "TrainingError": "raytrials.errors",
    "Tuner": "raytrials.tuner",
    "refreshing_filesystem": "raytrials.store.refreshing",
    "verify": "raytrials.store.audit",
}

__all__ = [
    "ActorError",
    "Cause",
    "ChargedFault",
    "Fatal",
    "RaytrialsError",
    "RestoreError",
    "RetryPolicy",
    "Rule",
    "TrainingError",
    "Tuner",
    "refreshing_filesystem",
    "verify",
]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
