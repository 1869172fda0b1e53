"""What an oracle says: which invariant does not hold, and where."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

INVARIANTS = ("I1", "I2", "I3", "I4", "I5", "I6", "I7", "I8")


@dataclass(frozen=True)
class Violation:
    """An invariant that does not hold.

    Attributes:
        invariant: `I1` to `I8`.
        trial_id: the trial, None if it is about none.
        text: what is wrong.
    """

    invariant: str
    trial_id: str | None
    text: str

    def __str__(self) -> str:
        about = f"{self.trial_id}: " if self.trial_id else ""
        return f"{self.invariant} {about}{self.text}"


class BrokenInvariantsError(AssertionError):
    """An experiment is not what was promised.

    Attributes:
        path: of the experiment.
        violations: of the invariants.
    """

    def __init__(self, path: str, violations: Sequence[Violation]) -> None:
        super().__init__(path, violations)
        self.path = path
        self.violations = tuple(violations)

    def __str__(self) -> str:
        listed = "\n".join(f"  {violation}" for violation in self.violations)
        return f"{len(self.violations)} violations in {self.path}:\n{listed}"
