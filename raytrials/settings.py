"""Every environment variable that raytrials reads, in one table.

Each variable is one :class:`Setting` below: its name, the kind of value, the default and the
meaning. `docs/environment.md` is made from this table (`python -m raytrials.settings`), and
:func:`validate` checks all of them before the first trial starts. Only this module reads
`os.environ`; nothing here knows what a setting is used for.
"""

from __future__ import annotations

import difflib
import os
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from raytrials.errors import ConfigurationError

T = TypeVar("T")


@dataclass(frozen=True)
class Kind(Generic[T]):
    """How the text of a variable becomes a value.

    `parse` raises `ValueError` for a text that is not `expected`.
    """

    expected: str
    parse: Callable[[str], T]


def _parse_count(text: str) -> int:
    value = int(text)
    if value < 0:
        raise ValueError(text)
    return value


def _parse_flag(text: str) -> bool:
    return {"0": False, "1": True}[text]


def _parse_seconds(text: str) -> float:
    value = float(text)
    if not 0 <= value < float("inf"):
        raise ValueError(text)
    return value


def _parse_verification(text: str) -> str:
    if text not in {"full", "quick", "off"}:
        raise ValueError(text)
    return text


VERIFICATION: Kind[str] = Kind("full, quick or off", _parse_verification)
SECONDS: Kind[float] = Kind("seconds, 0 or more", _parse_seconds)
TEXT: Kind[str] = Kind("a path", str)
COUNT: Kind[int] = Kind("a whole number, 0 or more", _parse_count)
FLAG: Kind[bool] = Kind("0 or 1", _parse_flag)


@dataclass(frozen=True)
class Setting(Generic[T]):
    """One environment variable.

    Attributes:
        name: the variable.
        kind: what its text must be.
        default: the value when the variable is unset or empty.
        meaning: one sentence for the documentation.
        owner: who defined the variable: "Ray" for those that Ray also reads.
    """

    name: str
    kind: Kind[T]
    default: T
    meaning: str
    owner: str = "raytrials"

    def get(self) -> T:
        """Return the value in force now.

        Raises:
            ConfigurationError: the text is not what the kind expects.
        """
        text = os.environ.get(self.name, "").strip()
        if not text:
            return self.default
        try:
            return self.kind.parse(text)
        except (ValueError, KeyError) as error:
            raise ConfigurationError(
                f"environment variable {self.name}", text, self.kind.expected
            ) from error


RESTORE_RETRY_NUM = Setting(
    "TUNE_RESTORE_RETRY_NUM",
    COUNT,
    0,
    "Failed restores of a trial that are retried free before one failure is counted against "
    "`max_failures`.",
    owner="Ray",
)
COUNT_PREEMPTION_AS_FAILURE = Setting(
    "RAY_TRAIN_COUNT_PREEMPTION_AS_FAILURE",
    FLAG,
    default=False,
    meaning="1 charges an announced preemption to the trial, as if its worker had died.",
    owner="Ray",
)
MAX_INFRA_FAILURES = Setting(
    "RAYTRIALS_MAX_INFRA_FAILURES",
    COUNT,
    16,
    "Failures of the infrastructure in a row, without progress of the trial, that are free; the "
    "next one counts as one failure against `max_failures`.",
)
COUNT_NODE_LOSS_AS_FAILURE = Setting(
    "RAYTRIALS_COUNT_NODE_LOSS_AS_FAILURE",
    FLAG,
    default=False,
    meaning="1 charges the loss of a node to the trial, as if its worker had died.",
)
COUNT_WORKER_DEATH_AS_FAILURE = Setting(
    "RAYTRIALS_COUNT_WORKER_DEATH_AS_FAILURE",
    FLAG,
    default=True,
    meaning="0 makes the death of a worker process on a live node free; it then counts against "
    "`RAYTRIALS_MAX_INFRA_FAILURES`.",
)
BACKOFF_INITIAL_S = Setting(
    "RAYTRIALS_BACKOFF_INITIAL_S",
    SECONDS,
    1.0,
    "How long the second retry of the same kind in a row waits; each further one waits twice as "
    "long. 0 switches waiting off.",
)
BACKOFF_MAX_S = Setting("RAYTRIALS_BACKOFF_MAX_S", SECONDS, 60.0, "How long a retry waits at most.")
AVOID_NODE_S = Setting(
    "RAYTRIALS_AVOID_NODE_S",
    SECONDS,
    600.0,
    "How long a trial stays off the node of its failure, while another node fits. 0 switches that "
    "off.",
)
SYNC_WAIT_S = Setting(
    "RAYTRIALS_SYNC_WAIT_S",
    SECONDS,
    0.0,
    "How long a synchronous population (`PopulationBasedTraining(synch=True)`) waits for a trial "
    "that finds no place to run before it goes on without it. 0 waits for ever.",
)
CHARGE_DECISION_S = Setting(
    "RAYTRIALS_CHARGE_DECISION_S",
    SECONDS,
    30.0,
    "How long the charge of an actor that cannot be reached stays open at most, until the cluster "
    "knows what became of its node.",
)
VERIFY = Setting(
    "RAYTRIALS_VERIFY",
    VERIFICATION,
    "full",
    "How a checkpoint is checked before it is restored: `full` reads every byte, `quick` looks at "
    "names and sizes, `off` does not look.",
)
CHECKPOINT_FSYNC = Setting(
    "RAYTRIALS_CHECKPOINT_FSYNC",
    FLAG,
    default=True,
    meaning="0 leaves it to the operating system when a saved checkpoint reaches the disk: faster, "
    "and lost when the machine loses power soon after. Object stores do not know the difference.",
)
STORAGE_RETRY_S = Setting(
    "RAYTRIALS_STORAGE_RETRY_S",
    SECONDS,
    30.0,
    "How long an operation on a storage that does not answer is tried again, with backoff.",
)
FSYNC_S = Setting(
    "RAYTRIALS_FSYNC_S",
    SECONDS,
    1.0,
    "How long an event of the journal that nothing waits for is unsynced at most, on local disks.",
)
FLUSH_S = Setting(
    "RAYTRIALS_FLUSH_S",
    SECONDS,
    2.0,
    "The same on object stores: how long it stays in memory before it is uploaded.",
)
RESTART_WITHOUT_CHECKPOINT = Setting(
    "RAYTRIALS_RESTART_WITHOUT_CHECKPOINT",
    FLAG,
    default=False,
    meaning="1 starts a trial from the beginning when none of its checkpoints is whole; 0 ends it "
    "with an error.",
)
RULES = Setting(
    "RAYTRIALS_RULES",
    TEXT,
    "",
    "A JSON or TOML file with rules of the retry policy (see `docs/failures.md`).",
)
GRACE_S = Setting(
    "RAYTRIALS_GRACE_S",
    SECONDS,
    20.0,
    "How long the last checkpoints of running trials may take when a run is asked to stop. "
    "A second signal ends that wait.",
)
ALLOW_UNTESTED_RAY = Setting(
    "RAYTRIALS_ALLOW_UNTESTED_RAY",
    FLAG,
    default=False,
    meaning="1 runs on a Ray version outside the tested range.",
)

SETTINGS: tuple[Setting[Any], ...] = (
    RESTORE_RETRY_NUM,
    COUNT_PREEMPTION_AS_FAILURE,
    MAX_INFRA_FAILURES,
    COUNT_NODE_LOSS_AS_FAILURE,
    COUNT_WORKER_DEATH_AS_FAILURE,
    BACKOFF_INITIAL_S,
    BACKOFF_MAX_S,
    AVOID_NODE_S,
    SYNC_WAIT_S,
    CHARGE_DECISION_S,
    VERIFY,
    CHECKPOINT_FSYNC,
    STORAGE_RETRY_S,
    FSYNC_S,
    FLUSH_S,
    RESTART_WITHOUT_CHECKPOINT,
    RULES,
    GRACE_S,
    ALLOW_UNTESTED_RAY,
)


def validate() -> None:
    """Check every setting; warn of `RAYTRIALS_` variables that do not exist.

    Raises:
        ConfigurationError: a variable holds a text that is not allowed.
    """
    known = {setting.name for setting in SETTINGS}
    for setting in SETTINGS:
        setting.get()
    for name in sorted(os.environ):
        if name.startswith("RAYTRIALS_") and name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f" Did you mean {near[0]}?" if near else ""
            warnings.warn(
                f"Environment variable {name} is unknown to raytrials and ignored.{hint}",
                stacklevel=3,
            )


def _shown(default: object) -> str:
    return f"{default:g}" if isinstance(default, int | float) else str(default) or "none"


def to_markdown() -> str:
    """Return the table of all settings as a Markdown page (the source of the docs page)."""
    lines = [
        "# Environment variables",
        "",
        "Checked when a `Tuner` is made and when `fit()` starts: a wrong value is a",
        "`ConfigurationError` before any trial starts. An empty variable counts as unset.",
        "Arguments of `RetryPolicy` win over the environment.",
        "",
        "| variable | value | default | meaning |",
        "|---|---|---|---|",
    ]
    lines += [
        f"| `{setting.name}`{' (from Ray)' if setting.owner == 'Ray' else ''} "
        f"| {setting.kind.expected} | {_shown(setting.default)} | {setting.meaning} |"
        for setting in SETTINGS
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(to_markdown(), end="")  # noqa: T201 - this is the command that writes the page
