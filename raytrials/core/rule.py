"""Users' own rules: which failures are retried, which never, and after how long.

A :class:`Rule` matches a fault and answers; the first rule of a policy that matches wins over the
table of costs. Nothing here reads a file; that is `raytrials.rulefile`, which knows of tables only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, fields
from typing import Any, Literal, get_args

from raytrials import rulefile
from raytrials.core.fault import Cause, Fault, FaultClass
from raytrials.errors import ConfigurationError

Answer = Literal["retry", "never", "free"]

_CONDITIONS = ("fault_class", "cause", "exception", "exit_code")
_PARENTS_OF_ALL = frozenset({"Exception", "BaseException"})
_MAX_EXIT_CODE = 255


@dataclass(frozen=True)
class Rule:
    """One rule. What is given has to match all; at least one condition is.

    Args:
        answer: "retry" counts one failure and retries while `max_failures` lasts; "never" ends the
            trial; "free" retries and counts nothing.
        after_s: seconds from the failure to the retry; None waits as the policy does.
        fault_class: condition: "restore", "training" or "actor".
        cause: condition: a :class:`raytrials.Cause` or its text.
        exception: condition: name of the exception's class or of one of its parents, with or
            without its module: "ValueError", "requests.exceptions.Timeout". Only exceptions of the
            user's code have one here; a process or machine that went away has none.
        exit_code: condition: what the worker process exited with, 0 to 255. Ray tells it only of a
            process that Python ended, as `sys.exit(7)` does; after `os._exit`, a signal or an abort
            of native code it is unknown, and no exit code matches.

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
        self._check_after_s()
        if self.exception is not None:
            _check_exception(self.exception)
        code = self.exit_code
        whole = isinstance(code, int) and not isinstance(code, bool)
        if code is not None and not (whole and 0 <= code <= _MAX_EXIT_CODE):
            expected = f"a whole number from 0 to {_MAX_EXIT_CODE}"
            raise ConfigurationError("Rule(exit_code=...)", code, expected)
        if all(getattr(self, name) is None for name in _CONDITIONS):
            raise ConfigurationError(
                "Rule(...)", self.answer, f"at least one condition: {', '.join(_CONDITIONS)}"
            )

    def _check_after_s(self) -> None:
        after_s = self.after_s
        number = isinstance(after_s, int | float) and not isinstance(after_s, bool)
        if after_s is not None and not (number and 0 <= after_s < float("inf")):
            raise ConfigurationError("Rule(after_s=...)", after_s, "seconds, 0 or more")
        if after_s is not None and self.answer == "never":
            expected = "none with the answer 'never': there is no retry to wait for"
            raise ConfigurationError("Rule(after_s=...)", after_s, expected)

    @classmethod
    def from_mapping(cls, data: Mapping[str, Any], where: str = "a rule") -> Rule:
        """Return the rule that a file describes.

        Args:
            data: one table of the file.
            where: which rule of which file that is, for messages.

        Raises:
            ConfigurationError: a name or value is not one of a rule's.
        """
        known = [field.name for field in fields(cls)]
        for name in data:
            if name not in known:
                raise ConfigurationError(f"A key in {where}", name, f"one of {', '.join(known)}")
        if "answer" not in data:
            raise ConfigurationError(where, dict(data), "a key 'answer'")
        try:
            return cls(**data)
        except ConfigurationError as error:
            raise ConfigurationError(
                f"{error.name} in {where}", error.value, error.expected
            ) from error

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


def rules_of_environment() -> tuple[Rule, ...]:
    """Return the rules of the file that `RAYTRIALS_RULES` names; none if it names none.

    Raises:
        ConfigurationError: the file cannot be read, or a rule in it is wrong; the message names
            file, rule and key.
    """
    path, tables = rulefile.read_tables()
    return tuple(
        Rule.from_mapping(table, f"rule {number} of {path} (RAYTRIALS_RULES)")
        for number, table in enumerate(tables, start=1)
    )


def _check_exception(name: object) -> None:
    if isinstance(name, type):
        raise ConfigurationError(
            "Rule(exception=...)", name, f"its name as text: {name.__qualname__!r}"
        )
    if not isinstance(name, str) or not all(part.isidentifier() for part in name.split(".")):
        raise ConfigurationError(
            "Rule(exception=...)",
            name,
            "the name of a class, with or without its module, as in 'ValueError' or "
            "'requests.exceptions.Timeout'; it is not a pattern",
        )
    if name.rpartition(".")[2] in _PARENTS_OF_ALL:
        raise ConfigurationError(
            "Rule(exception=...)", name, "a narrower class; fault_class='training' matches them all"
        )
