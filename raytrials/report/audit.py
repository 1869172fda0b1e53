"""An audit of checkpoints as text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from raytrials.store.audit import SHOWN, Audit, AuditedCheckpoint
from raytrials.store.checkpoint import Verdict
from raytrials.store.sweep import Outcome


def to_text(audit: Audit) -> str:
    """Return a table of trials, one line for each problem, and a closing line with counts."""
    table = [["trial", *map(str, SHOWN)]]
    table += [
        [trial.directory, *(str(trial.counts[verdict]) for verdict in SHOWN)]
        for trial in audit.trials
    ]
    blocks = [_aligned(table) if audit.trials else [], list(_problems(audit)), [_closing(audit)]]
    return "\n\n".join("\n".join(block) for block in blocks if block) + "\n"


def _aligned(table: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    return [
        "  ".join(
            [
                row[0].ljust(widths[0]),
                *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)),
            ]
        )
        for row in table
    ]


def _problems(audit: Audit) -> Iterator[str]:
    for trial in audit.trials:
        for checkpoint in trial.checkpoints:
            if checkpoint.verdict not in {Verdict.VERIFIED, Verdict.UNVERIFIED}:
                yield f"{checkpoint.verdict}: {trial.directory}/{checkpoint.name}: " + _what(
                    checkpoint
                )


def _what(checkpoint: AuditedCheckpoint) -> str:
    swept = checkpoint.swept
    if swept is None:
        return checkpoint.problem
    reason = f" ({swept.reason})" if swept.reason else ""
    return f"{checkpoint.problem}; {_WORDS[swept.outcome]}{reason}"


_WORDS = {Outcome.REMOVED: "removed", Outcome.KEPT: "kept", Outcome.FAILED: "could not be removed"}


def _closing(audit: Audit) -> str:
    counts = ", ".join(f"{audit.counts[verdict]} {verdict}" for verdict in SHOWN)
    trials = f"{len(audit.trials)} trial{'' if len(audit.trials) == 1 else 's'}"
    parts = [f"{counts} in {trials}, by {'digests' if audit.full else 'names and sizes'}."]
    if any(audit.swept.values()):
        swept = ", ".join(f"{count} {_WORDS[how]}" for how, count in audit.swept.items() if count)
        parts.append(f"Leftovers: {swept}.")
    elif audit.counts[Verdict.INCOMPLETE]:
        parts.append("--sweep removes incomplete ones that are older than one hour.")
    return " ".join(parts)
