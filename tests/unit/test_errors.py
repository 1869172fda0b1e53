"""The tree of errors: what every class in it must stand."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import Any

import pytest
from ray import cloudpickle

from raytrials import errors
from raytrials.core.fault import Cause, Phase


def tree(root: type[errors.RaytrialsError]) -> Iterator[type[errors.RaytrialsError]]:
    yield root
    for child in root.__subclasses__():
        yield from tree(child)


ARGUMENTS = {
    errors.RaytrialsError: ("text",),
    errors.ConfigurationError: ("name", "value", "another value"),
    errors.UnserializableError: ("train", "a lock"),
    errors.StorageUnwritableError: ("/storage", "no space"),
    errors.StorageError: ("writing", "/storage/file", "full", "no space left"),
    errors.SourceChangedError: ("/tmp/model", "weights grew"),
    errors.NewerFormatError: (3, 1, "lease"),
    errors.ExperimentLockedError: ("/storage/tune", "node-1", 4711, 12, 60),
    errors.LeaseLostError: ("/storage/tune", 3, 4, "node-1", 4711),
    errors.LeaseExpiredError: ("/storage/tune", 3, 31),
    errors.IllegalEventError: ("TrialAdded", 7, "t1", "it is there", ("3 TrialAdded",)),
    errors.InvariantError: (("t1: two rows", "3 run at once"),),
    errors.UnpicklableStateError: ("searcher", "Mine.lock: cannot pickle a lock"),
    errors.JournalCorruptError: ("journal/1.jsonl", 17, "a record is damaged"),
    errors.CorruptManifestError: ("its digest is wrong",),
    errors.NoCheckpointError: ("abc", ("checkpoint_000001: missing", "checkpoint_000000: torn")),
    errors.PackageMissingError: (("node-1", "node-2"),),
    errors.MissingExtraError: ("raytrials demo", ("optuna",), "demo"),
    errors.UnsupportedRayError: ("1.0", "2.0 to 3.0"),
    errors.UnsupportedPathError: ("Ray Client", "Use a job."),
    errors.MissingFilesystemError: ("abfs://a", "Install adlfs"),
    errors.ExperimentExistsError: ("/storage/fit", "a journal"),
    errors.ExperimentCorruptError: ("/storage/fit/tuner.pkl", "it is empty"),
    errors.MissingCodeError: ("/storage/fit/tuner.pkl", "No module named 'mine'"),
    errors.SearchSpaceChangedError: ("/storage/fit", ("lr: 1 became 2", "added: x")),
    errors.SearchSpaceNeededError: ("/storage/fit", ("data.train", "model")),
    errors.NotAnExperimentError: ("/storage", "it is a file"),
    errors.IllegalEventError: ("TrialPaused", 7, "abc", "it is failed", ("5 TrialFinished",)),
    errors.InvariantError: (("abc: a row is missing", "2 trials of 1"),),
    errors.JournalCorruptError: ("/storage/journal/1.jsonl", 712, "part of a record"),
}
TRIAL_ARGUMENTS = ("abc", 2, Phase.RUNNING, Cause.WORKER_DIED, "node", "it died")
CONCRETE = [kind for kind in tree(errors.RaytrialsError) if kind is not errors.TrialError]


def make(kind: type[errors.RaytrialsError]) -> errors.RaytrialsError:
    return kind(*ARGUMENTS.get(kind, TRIAL_ARGUMENTS))


@pytest.mark.parametrize("kind", CONCRETE)
@pytest.mark.parametrize("pickler", [pickle, cloudpickle], ids=["pickle", "cloudpickle"])
def test_an_error_survives_pickling_with_all_its_fields(
    kind: type[errors.RaytrialsError], pickler: object
) -> None:
    error = make(kind)
    copy = pickler.loads(pickler.dumps(error))  # type: ignore[attr-defined]
    assert type(copy) is kind
    assert vars(copy) == vars(error)
    assert str(copy) == str(error)


@pytest.mark.parametrize("kind", CONCRETE)
def test_an_error_is_hashable_and_has_an_exit_code_of_its_own_kind(
    kind: type[errors.RaytrialsError],
) -> None:
    assert isinstance(hash(make(kind)), int)
    assert 1 <= kind.exit_code <= 125


@pytest.mark.parametrize("kind", CONCRETE)
def test_the_text_of_an_error_holds_the_values_of_its_fields(
    kind: type[errors.RaytrialsError],
) -> None:
    text = str(make(kind))
    for value in ARGUMENTS.get(kind, TRIAL_ARGUMENTS):
        parts = [*value, *value.values()] if isinstance(value, dict) else [value]
        parts = list(value) if isinstance(value, tuple) else parts
        assert all(str(part) in text for part in parts)


def test_what_is_too_new_has_its_article() -> None:
    assert str(errors.NewerFormatError(2, 1)).startswith("A checkpoint's manifest has version 2;")
    of_journal = errors.NewerFormatError(2, 1, "event of the journal")
    assert str(of_journal).startswith("An event of the journal has version 2;")


def test_an_interrupted_run_is_no_error_that_a_handler_of_errors_could_catch() -> None:
    error = errors.InterruptedRunError("SIGTERM", "/storage/experiment")
    assert isinstance(error, SystemExit)
    assert not isinstance(error, Exception)
    assert error.code == error.exit_code == 75
    for part in ("SIGTERM", "Tuner.restore('/storage/experiment'", 'resume="auto"'):
        assert part in str(error)


@pytest.mark.parametrize("pickler", [pickle, cloudpickle], ids=["pickle", "cloudpickle"])
def test_an_interrupted_run_survives_pickling(pickler: Any) -> None:
    error = errors.InterruptedRunError("SIGTERM", "/storage/experiment")
    copy = pickler.loads(pickler.dumps(error))
    assert type(copy) is errors.InterruptedRunError
    assert (vars(copy), str(copy), copy.code) == (vars(error), str(error), 75)
