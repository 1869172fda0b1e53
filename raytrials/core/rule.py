"""Users' own rules: which failures are retried, which never, and after how long.

A :class:`Rule` matches a fault and answers; the first rule of a policy that matches wins over the
table of costs. Nothing here reads a file; that is `raytrials.rulefile`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, fields
from typing import Any, Literal, get_args

from raytrials.core.fault import Cause, Fault, FaultClass
from raytrials.errors import ConfigurationError

Answer = Literal["retry", "never", "free"]


@dataclass(frozen=True)
class Rule:
    """One rule. What is left out matches everything; what is given has to match all.

    Args:
        answer: "retry" counts one failure and retries while `max_failures` lasts; "never" ends the
            trial; "free" retries and counts nothing.
        after_s: seconds to wait before the retry; None waits as the policy does.
        fault_class: "restore", "training" or "actor".
        cause: a :class:`raytrials.Cause` or its text.
        exception: name of the exception's class or of one of its parents, with or without its
            module: "ValueError", "torch.cuda.OutOfMemoryError".
        exit_code: what the worker process exited with.

    Raises:
        ConfigurationError: an argument has a value that is not allowed.
    """

    answer: Answer
    _: KW_ONLY
    after_s: float | None = None
    fault_class: FaultClass | None = None
    cause: Cause | None = None
    exception: str | None = None
    exit_code: int | None = None

    def __post_init__(self) -> None:
        if self.answer not in get_args(Answer):
            raise ConfigurationError("Rule(answer=...)", self.answer, "'retry', 'never' or 'free'")
        for name, kind in (("fault_class", FaultClass), ("cause", Cause)):
            value = getattr(self, name)
            words = [str(word) for word in kind]
            if value is not None and value not in words:
                raise ConfigurationError(f"Rule({name}=...)", value, f"one of {', '.join(words)}")
            if value is not None:
                object.__setattr__(self, name, kind(value))
        after_s = self.after_s
        number = isinstance(after_s, int | float) and not isinstance(after_s, bool)
        if after_s is not None and not (number and 0 <= after_s < float("inf")):
            raise ConfigurationError("Rule(after_s=...)", after_s, "seconds, 0 or more")
        for name, plain in (("exception", str), ("exit_code", int)):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, plain) or isinstance(value, bool)):
                raise ConfigurationError(f"Rule({name}=...)", value, f"a {plain.__name__}")

    @classmethod
    def from_mapping(cls, data: Mapping[str, Any]) -> Rule:
        """Return the rule that a file describes.

        Raises:
            ConfigurationError: a name or value is not one of a rule's.
        """
        known = [field.name for field in fields(cls)]
        for name in data:
            if name not in known:
                raise ConfigurationError("a rule's key", name, f"one of {', '.join(known)}")
        if "answer" not in data:
            raise ConfigurationError("a rule", dict(data), "a key 'answer'")
        return cls(**data)

    def matches(self, fault: Fault) -> bool:
        """Whether this rule speaks of `fault`."""
        named = self.exception
        return (
            self.fault_class in {None, fault.fault_class}
            and self.cause in {None, fault.cause}
            and self.exit_code in {None, fault.exit_code}
            and (
                named is None
                or any(named in {full, full.rpartition(".")[2]} for full in fault.exceptions)
            )
        )
