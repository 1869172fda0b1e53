"""The `raytrials` command.

One function a subcommand: it takes the parsed arguments and returns the exit code. Ray and what a
subcommand alone needs are imported inside of it, so that `--help` answers at once and the commands
that read results run where Ray is not installed. What a subcommand does stands elsewhere.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import cast

import raytrials
from raytrials.errors import (
    ConfigurationError,
    CorruptManifestError,
    MissingExtraError,
    RaytrialsError,
    StorageError,
)

# Ray reads most of these when it is imported. The demo's Ray serves this machine for a minute: it
# needs no token and sends no statistics. The rest keeps Ray from writing between the demo's lines.
_RAY_ENVIRONMENT: Mapping[str, str] = {
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_AIR_NEW_OUTPUT": "0",
    "RAY_AUTH_MODE": "disabled",
    "RAY_DEDUP_LOGS_SKIP_REGEX": "A worker died or was killed|marked dead|Raylet is terminated",
    "RAY_USAGE_STATS_ENABLED": "0",
    # A node that is silent for 3 s is dead; Ray takes 15 s and more for it.
    "RAY_health_check_initial_delay_ms": "1000",
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_timeout_ms": "1000",
    "RAY_health_check_failure_threshold": "3",
}

_DEMO_PACKAGES: Mapping[str, str] = {"sklearn": "scikit-learn", "optuna": "optuna"}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the `raytrials` command and return its exit code.

    Args:
        argv: the arguments after the command's name; None takes them from the command line.

    Raises:
        SystemExit: the arguments asked for help or the version, or were wrong (code 2).
    """
    arguments = _parser().parse_args(argv)
    run = cast("Callable[[argparse.Namespace], int]", arguments.run)
    try:
        return run(arguments)
    except RaytrialsError as error:
        if getattr(arguments, "json", False):
            _print_json({"error": _as_json(error)})
        else:
            sys.stderr.write(f"error: {error}\n")
        return error.exit_code


def _print_json(value: Mapping[str, object]) -> None:
    sys.stdout.write(json.dumps(value) + "\n")


def _as_json(error: RaytrialsError) -> Mapping[str, object]:
    return {"type": type(error).__name__, "message": str(error), "exit_code": error.exit_code}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="raytrials", description="Hyperparameter tuning on Ray that survives worker deaths."
    )
    parser.add_argument("--version", action="version", version=f"raytrials {raytrials.__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    _add_demo(commands)
    _add_verify(commands)
    return parser


def _add_demo(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    summary = "tune a classifier on real data while workers are killed"
    parser = commands.add_parser(
        "demo",
        help=summary,
        description=f"{summary.capitalize()}: scikit-learn's digits, Optuna under ASHA, on a Ray "
        "started for it on this machine. Downloads nothing. Exits with 0 if all trials finished.",
    )
    parser.add_argument("--no-faults", action="store_true", help="kill nothing")
    parser.add_argument("--quick", action="store_true", help="fewer trials and epochs")
    parser.add_argument(
        "--storage", metavar="PATH", help="where results go (default: where Ray puts them)"
    )
    parser.set_defaults(run=_demo)


def _demo(arguments: argparse.Namespace) -> int:
    _require("raytrials demo", _DEMO_PACKAGES, extra="demo")
    for name, value in _RAY_ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    from raytrials import demo  # noqa: PLC0415 - it imports Ray and scikit-learn

    if arguments.storage == "":
        raise ConfigurationError("--storage", "", "a directory or a URI")
    return demo.run(
        faults=not arguments.no_faults, quick=arguments.quick, storage=arguments.storage
    )


def _add_verify(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    summary = "say which checkpoints of an experiment are whole"
    parser = commands.add_parser(
        "verify",
        help=summary,
        description=f"{summary.capitalize()}. Needs no Ray. Exits with 0 if no committed "
        "checkpoint is corrupt, with 4 if one is.",
    )
    parser.add_argument(
        "path",
        metavar="PATH",
        help="directory or URI of an experiment, of one of its trials or of one checkpoint",
    )
    parser.add_argument(
        "--full",
        action="store_true",
        help="read every file and compare digests (default: manifests, names and sizes)",
    )
    parser.add_argument(
        "--sweep",
        action="store_true",
        help="delete what interrupted attempts left behind, if it is older than one hour",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(run=_verify)


def _verify(arguments: argparse.Namespace) -> int:
    from raytrials.report.audit import to_text  # noqa: PLC0415 - --help answers at once
    from raytrials.store.sweep import Outcome  # noqa: PLC0415 - likewise

    audit = raytrials.verify(arguments.path, full=arguments.full, sweep=arguments.sweep)
    if arguments.json:
        _print_json(audit.to_json())
    else:
        _print(to_text(audit))
    if not audit.ok:
        return CorruptManifestError.exit_code
    return StorageError.exit_code if audit.swept[Outcome.FAILED] else 0


def _print(text: str) -> None:
    """Print what a terminal may not be able to show: file names are any bytes."""
    encoding = sys.stdout.encoding or "utf-8"
    sys.stdout.write(text.encode(encoding, "backslashreplace").decode(encoding))


def _require(command: str, packages: Mapping[str, str], extra: str) -> None:
    missing = [
        package for module, package in packages.items() if importlib.util.find_spec(module) is None
    ]
    if missing:
        raise MissingExtraError(command, tuple(missing), extra)


if __name__ == "__main__":
    sys.exit(main())
