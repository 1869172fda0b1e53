"""The tree of errors.

Every error carries its facts as fields, passes all of them positionally to `Exception.__init__`
(so that it survives pickling and the way through Ray) and builds its text in `__str__`. Nothing
here imports Ray, and nothing here decides: what a failure costs is `raytrials.core.retry`.
:class:`InterruptedRunError` alone is outside of the tree: it ends the process.
"""

from __future__ import annotations

from typing import ClassVar


class RaytrialsError(Exception):
    """Root of every error that raytrials raises.

    Attributes:
        exit_code: what the `raytrials` command exits with when this error ends it.
    """

    exit_code: ClassVar[int] = 1


class ConfigurationError(RaytrialsError, ValueError):
    """An argument or environment variable has a value that is not allowed.

    The caller's fault; raised before any trial starts; spends no budget.
    """

    exit_code = 2

    def __init__(self, name: str, value: object, expected: str) -> None:
        super().__init__(name, value, expected)
        self.name = name
        self.value = value
        self.expected = expected

    def __str__(self) -> str:
        return f"{self.name} is {self.value!r}; expected {self.expected}."


class UnserializableError(RaytrialsError, TypeError):
    """The trainable, or a value of `param_space`, cannot be sent to a worker.

    The caller's fault; raised before any trial starts; spends no budget.
    """

    exit_code = 2

    def __init__(self, what: str, detail: str) -> None:
        super().__init__(what, detail)
        self.what = what
        self.detail = detail

    def __str__(self) -> str:
        return (
            f"The {self.what} cannot be serialized, so it cannot reach a worker. Open files, "
            "locks, clients and the like inside the trainable instead of bringing them along.\n"
            f"{self.detail}"
        )


class StorageUnwritableError(RaytrialsError):
    """Results cannot be written to the storage path.

    The caller's or the storage's fault; raised before any trial starts; spends no budget.
    """

    exit_code = 3

    def __init__(self, storage_path: str, detail: str) -> None:
        super().__init__(storage_path, detail)
        self.storage_path = storage_path
        self.detail = detail

    def __str__(self) -> str:
        return (
            f"The storage path {self.storage_path!r} cannot be written: {self.detail}. "
            "RunConfig(storage_path=...) must be the absolute path of a directory, or a URI, that "
            "this machine and every worker can write."
        )


class UnsupportedRayError(RaytrialsError):
    """The installed Ray is outside the range that raytrials was tested with."""

    exit_code = 2

    def __init__(self, installed: str, tested: str) -> None:
        super().__init__(installed, tested)
        self.installed = installed
        self.tested = tested

    def __str__(self) -> str:
        return (
            f"Ray {self.installed} is installed; raytrials was tested with Ray {self.tested}. "
            "Install a version in that range, or set RAYTRIALS_ALLOW_UNTESTED_RAY=1 to run at your "
            "own risk."
        )


class UnsupportedPathError(RaytrialsError):
    """The call would run Ray's own controller instead of ours (Ray Client, for one)."""

    exit_code = 2

    def __init__(self, found: str, instead: str) -> None:
        super().__init__(found, instead)
        self.found = found
        self.instead = instead

    def __str__(self) -> str:
        return f"raytrials.Tuner cannot run through {self.found}. {self.instead}"


class PackageMissingError(RaytrialsError):
    """No node of the cluster can import raytrials.

    The cluster's set-up; raised before any trial starts; spends no budget.
    """

    exit_code = 2

    def __init__(self, node_ids: tuple[str, ...]) -> None:
        super().__init__(node_ids)
        self.node_ids = node_ids

    def __str__(self) -> str:
        return (
            f"No worker can import raytrials; asked were the nodes {', '.join(self.node_ids)}. "
            "Install the driver's version on them, or put it into the runtime environment: "
            "ray.init(runtime_env={'pip': [...]}) or {'py_modules': [raytrials]}."
        )


class Fatal(Exception):  # noqa: N818 - reads as what it is: `raise raytrials.Fatal(...)`
    """Raised by the user's code: this trial is not to be tried again, whatever its budget."""


class InterruptedRunError(SystemExit):
    """A signal ended the run before it was finished; what it has reached is on storage.

    Nobody's fault; spends no budget. No `except Exception` stops it, and a process that it ends has
    a code by which SLURM, Kubernetes and the like do not take the job for done.

    Attributes:
        signal_name: such as `SIGTERM`.
        path: of the experiment.
    """

    exit_code: ClassVar[int] = 75  # EX_TEMPFAIL of sysexits.h: try again later

    def __init__(self, signal_name: str, path: str) -> None:
        super().__init__(signal_name, path)
        self.code = self.exit_code
        self.signal_name = signal_name
        self.path = path

    def __str__(self) -> str:
        return (
            f"{self.signal_name} ended the run of {self.path!r} before it was finished. It goes on "
            f"from where it was with Tuner.restore({self.path!r}, trainable), or when it is "
            'started again with resume="auto".'
        )


class MissingExtraError(RaytrialsError, ImportError):
    """A command needs packages that raytrials does not install by default.

    The caller's to mend; raised before anything starts; spends no budget.
    """

    exit_code = 2

    def __init__(self, command: str, packages: tuple[str, ...], extra: str) -> None:
        super().__init__(command, packages, extra)
        self.command = command
        self.packages = packages
        self.extra = extra

    def __str__(self) -> str:
        return (
            f"`{self.command}` needs {' and '.join(self.packages)}, not installed here. "
            f"Install with: pip install 'raytrials[{self.extra}]'"
        )


class MissingFilesystemError(RaytrialsError, ImportError):
    """The package that reads a kind of storage is not installed. The caller's to mend."""

    exit_code = 2

    def __init__(self, location: str, detail: str) -> None:
        super().__init__(location, detail)
        self.location = location
        self.detail = detail

    def __str__(self) -> str:
        return f"{self.location!r} needs a package that is not installed here: {self.detail}"


class NotAnExperimentError(RaytrialsError, ValueError):
    """A path that should hold an experiment, a trial or a checkpoint holds none.

    The caller's fault; nothing was changed.
    """

    exit_code = 2

    def __init__(self, location: str, detail: str) -> None:
        super().__init__(location, detail)
        self.location = location
        self.detail = detail

    def __str__(self) -> str:
        return (
            f"There is no experiment at {self.location!r}: {self.detail}. Give the directory of an "
            "experiment (with experiment_state-*.json and a directory for each trial), of one of "
            "its trials, or of one checkpoint_NNNNNN, as a path or a URI."
        )


class ExperimentExistsError(RaytrialsError, ValueError):
    """A new experiment was to be started at a path that holds one.

    The caller's to decide; raised before anything is written; spends no budget.

    Attributes:
        path: of the experiment.
        found: what shows that there is one.
    """

    exit_code = 2

    def __init__(self, path: str, found: str) -> None:
        super().__init__(path, found)
        self.path = path
        self.found = found

    def __str__(self) -> str:
        return (
            f"{self.path!r} holds an experiment ({self.found}). Continue it with "
            'Tuner(..., resume="auto") or Tuner.restore(path, trainable), start beside it with '
            'another RunConfig(name=...), or start anew in its place with resume="overwrite", '
            "which removes it when fit() is called. Nothing was changed."
        )


class ExperimentCorruptError(RaytrialsError):
    """What an experiment is restored with is damaged, and nothing is left that mends it.

    The storage's fault; nothing was written; spends no budget.

    Attributes:
        path: of the damaged file.
        reason: what is wrong with it.
    """

    exit_code = 4

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(path, reason)
        self.path = path
        self.reason = reason

    def __str__(self) -> str:
        return (
            f"The experiment cannot be restored: {self.path!r} is damaged: {self.reason}. Nothing "
            "was changed. Bring the file back from a backup or from another copy of the "
            'experiment, or start anew in its place with Tuner(..., resume="overwrite").'
        )


class MissingCodeError(RaytrialsError, ImportError):
    """A saved object needs code that this process cannot import.

    The caller's to mend; nothing was written, and nothing is damaged; spends no budget.

    Attributes:
        path: of the file with the object.
        missing: what was looked for.
    """

    exit_code = 2

    def __init__(self, path: str, missing: str) -> None:
        super().__init__(path, missing)
        self.path = path
        self.missing = missing

    def __str__(self) -> str:
        return (
            f"{self.path!r} holds an object whose code is not found here: {self.missing}. Install "
            "the package, or run with the PYTHONPATH and the versions that the experiment was "
            "started with. Nothing was changed."
        )


class SearchSpaceChangedError(RaytrialsError, ValueError):
    """An experiment was to be continued with another search space than its own.

    The caller's fault; raised before anything is written; spends no budget.

    Attributes:
        path: of the experiment.
        differences: one for each key.
    """

    exit_code = 2

    def __init__(self, path: str, differences: tuple[str, ...]) -> None:
        super().__init__(path, differences)
        self.path = path
        self.differences = differences

    def __str__(self) -> str:
        return (
            f"The experiment {self.path!r} has another param_space: {'; '.join(self.differences)}. "
            "Pass the one that it was started with, or none; for another search space start "
            "another experiment, with another RunConfig(name=...)."
        )


class SearchSpaceNeededError(RaytrialsError, ValueError):
    """An experiment cannot go on without values of its search space that are not on storage.

    Object references, datasets and actors live as long as their cluster; other objects could not be
    saved, or do not load here; or the state of the searcher is gone, which held them. The caller's
    to give; raised before any trial starts; spends no budget.

    Attributes:
        path: of the experiment.
        keys: of the values, with dots between those of nested dictionaries.
    """

    exit_code = 2

    def __init__(self, path: str, keys: tuple[str, ...]) -> None:
        super().__init__(path, keys)
        self.path = path
        self.keys = keys

    def __str__(self) -> str:
        return (
            f"The experiment {self.path!r} needs its param_space again, for the values of "
            f"{', '.join(self.keys)}, which are not saved with it, or no longer (references, "
            "datasets and actors end with their cluster). Pass it: "
            "Tuner.restore(path, trainable, param_space=...)."
        )


class TrialError(RaytrialsError):
    """One failure of one trial, typed.

    Attributes:
        trial_id: the trial.
        attempt: which attempt of the trial failed, counted from 1 over all drivers.
        phase: the :class:`raytrials.core.fault.Phase` in which it failed.
        cause: the :class:`raytrials.Cause`.
        node_id: hex id of the Ray node that the attempt ran on; None if it never started.
        detail: what Ray or the user's code said.
        __cause__: Ray's own exception, where it could be kept.
    """

    fault_class: ClassVar[str]

    def __init__(  # noqa: PLR0913, PLR0917 - the fields are the error
        self,
        trial_id: str,
        attempt: int,
        phase: str,
        cause: str,
        node_id: str | None,
        detail: str,
    ) -> None:
        super().__init__(trial_id, attempt, phase, cause, node_id, detail)
        self.trial_id = trial_id
        self.attempt = attempt
        self.phase = phase
        self.cause = cause
        self.node_id = node_id
        self.detail = detail

    def __str__(self) -> str:
        place = f" on node {self.node_id}" if self.node_id else ""
        return (
            f"Trial {self.trial_id}, attempt {self.attempt}{place}: {self.fault_class} failure in "
            f"phase {self.phase}, cause {self.cause}: {self.detail}"
        )


class RestoreError(TrialError):
    """The attempt failed before its checkpoint was loaded, whatever the reason.

    Spends a restore retry (`TUNE_RESTORE_RETRY_NUM`); only when those are used up does one failure
    count against `max_failures`. Always retried while that budget lasts.
    """

    exit_code = 11
    fault_class = "restore"


class TrainingError(TrialError):
    """The user's code raised: in setup, train, save or report.

    The trial's fault: counts one failure against `max_failures`, retried while that lasts.
    """

    exit_code = 12
    fault_class = "training"


class ActorError(TrialError):
    """The process or machine under the trial went away or stopped answering.

    What it costs depends on the cause (see `docs/failures.md`): a machine's death is free.
    """

    exit_code = 13
    fault_class = "actor"


class StorageError(RaytrialsError):
    """The storage did not do what was asked of it.

    The storage's fault, not the trial's: free, and counted against the infrastructure budget; what
    was committed before stays as it is. Retried with backoff where time may mend it.

    Attributes:
        operation: what was tried.
        path: where.
        kind: `full`, `forbidden`, `refused`, `absent` (from this node) or `unavailable`.
        detail: what the storage said.
    """

    exit_code = 3

    def __init__(self, operation: str, path: str, kind: str, detail: str) -> None:
        super().__init__(operation, path, kind, detail)
        self.operation = operation
        self.path = path
        self.kind = kind
        self.detail = detail

    def __str__(self) -> str:
        advice = _STORAGE_ADVICE.get(self.kind, "")
        return (
            f"Storage {self.kind}: {self.operation} of {self.path!r} failed. {advice}{self.detail}"
        )


_STORAGE_ADVICE = {
    "full": "Free space, or raise the quota. ",
    "forbidden": "Check the permissions and the credentials. ",
    "unavailable": "It did not come back in RAYTRIALS_STORAGE_RETRY_S. ",
}


class SourceChangedError(RaytrialsError):
    """The files of a reported checkpoint changed while they were copied.

    The user's code wrote on into the directory that it had reported: a training failure.
    """

    def __init__(self, path: str, detail: str) -> None:
        super().__init__(path, detail)
        self.path = path
        self.detail = detail

    def __str__(self) -> str:
        return (
            f"The checkpoint {self.path!r} changed while it was saved: {self.detail}. Write each "
            "checkpoint into a directory of its own, and finish writing before it is reported."
        )


class CorruptManifestError(RaytrialsError):
    """The manifest of a checkpoint is damaged. Charged to the checkpoint, never to a trial."""

    exit_code = 4

    def __init__(self, detail: str) -> None:
        super().__init__(detail)
        self.detail = detail

    def __str__(self) -> str:
        return f"The manifest is damaged: {self.detail}"


class NewerFormatError(RaytrialsError):
    """A file was written by a newer release, in a format that this one does not know.

    Nothing is wrong with it, and nothing is marked: the caller needs the newer release.
    """

    exit_code = 2

    def __init__(self, version: object, known: int, what: str = "checkpoint's manifest") -> None:
        super().__init__(version, known, what)
        self.version = version
        self.known = known
        self.what = what

    def __str__(self) -> str:
        article = "An" if self.what[:1] in {*"aeiou"} else "A"
        return (
            f"{article} {self.what} has version {self.version}; this release of raytrials reads up "
            f"to {self.known}. Use the release that wrote it, or a newer one."
        )


class ExperimentLockedError(RaytrialsError):
    """Another driver has the experiment, and did not let go of it in time.

    Nobody's fault, or the caller's, who started it twice; nothing was changed, no budget is spent;
    raised after the wait for the lease, and not retried.

    Attributes:
        experiment: the experiment.
        host: the machine of the driver that has it; "" if its lease cannot be read (yet).
        pid: its process there; 0 likewise.
        idle_s: for how many seconds it was seen to do nothing.
        waited_s: how many seconds this driver waited for it.
    """

    exit_code = 5

    def __init__(self, experiment: str, host: str, pid: int, idle_s: int, waited_s: int) -> None:
        super().__init__(experiment, host, pid, idle_s, waited_s)
        self.experiment = experiment
        self.host = host
        self.pid = pid
        self.idle_s = idle_s
        self.waited_s = waited_s

    def __str__(self) -> str:
        holder = f"process {self.pid} on {self.host}" if self.host else "a driver that just started"
        return (
            f"The experiment {self.experiment!r} is being written by {holder}, last seen to move "
            f"{self.idle_s} s ago; waited {self.waited_s} s for it. If it is to go on, leave it "
            "alone; if not, stop it (SIGTERM) and start again. A driver that is dead is noticed by "
            "itself after 30 s at most."
        )


class LeaseLostError(RaytrialsError):
    """Another driver took over the experiment: this one has to stop and may write nothing more.

    The fault of what kept this driver from renewing its lease (a frozen machine, storage out of
    reach) while another was started. Spends no budget: the trials go on at the other driver. Final.

    Attributes:
        experiment: the experiment.
        epoch: of the lease that was lost.
        holder_epoch: of the new lease; 0 if nobody has one, because this driver released its own
            or somebody deleted it.
        host: the machine of the new driver; "" if not known.
        pid: its process there; 0 likewise.
    """

    exit_code = 6

    def __init__(self, experiment: str, epoch: int, holder_epoch: int, host: str, pid: int) -> None:
        super().__init__(experiment, epoch, holder_epoch, host, pid)
        self.experiment = experiment
        self.epoch = epoch
        self.holder_epoch = holder_epoch
        self.host = host
        self.pid = pid

    def __str__(self) -> str:
        if not self.holder_epoch:
            return (
                f"The lease of the experiment {self.experiment!r} (epoch {self.epoch}) is nobody's "
                "any more: it was released, or its file was deleted. This driver stops; start it "
                "again to go on."
            )
        holder = f"process {self.pid} on {self.host}" if self.host else "another driver"
        return (
            f"The experiment {self.experiment!r} was taken over by {holder} (epoch "
            f"{self.holder_epoch}) while this driver (epoch {self.epoch}) did not renew its lease. "
            "This driver stops; the other one goes on with all trials."
        )


class LeaseExpiredError(RaytrialsError):
    """The lease was not renewed for so long that another driver may take over.

    The storage's fault, or of what froze this process. It may come back: until it is renewed this
    driver starts and commits nothing. Spends no budget, and is no reason to stop.

    Attributes:
        experiment: the experiment.
        epoch: of the lease.
        idle_s: how many seconds ago the last renewal began.
    """

    exit_code = 3

    def __init__(self, experiment: str, epoch: int, idle_s: int) -> None:
        super().__init__(experiment, epoch, idle_s)
        self.experiment = experiment
        self.epoch = epoch
        self.idle_s = idle_s

    def __str__(self) -> str:
        return (
            f"The lease of the experiment {self.experiment!r} (epoch {self.epoch}) was last "
            f"renewed {self.idle_s} s ago. Nothing is started or committed until the storage "
            "takes the renewal."
        )


class NoCheckpointError(RaytrialsError):
    """A trial had checkpoints, and none of them is whole. The trial ends; it is not retried.

    Attributes:
        problems: the name of each and what is wrong with it.
    """

    exit_code = 4

    def __init__(self, trial_id: str, problems: tuple[str, ...]) -> None:
        super().__init__(trial_id, problems)
        self.trial_id = trial_id
        self.problems = problems

    def __str__(self) -> str:
        return (
            f"Trial {self.trial_id} has no whole checkpoint left ({'; '.join(self.problems)}). To "
            "start it from the beginning instead, set RAYTRIALS_RESTART_WITHOUT_CHECKPOINT=1."
        )


class IllegalEventError(RaytrialsError):
    """An event of the journal cannot follow those before it.

    A mistake in raytrials, or a journal that something else wrote into. The state stays as it was
    before the event.

    Attributes:
        event: name of the event.
        seq: its number.
        trial_id: the trial that it is about, None if about none.
        detail: why it cannot follow.
        story: the trial's latest events, oldest first.
    """

    exit_code = 4

    def __init__(
        self, event: str, seq: int, trial_id: str | None, detail: str, story: tuple[str, ...]
    ) -> None:
        super().__init__(event, seq, trial_id, detail, story)
        self.event = event
        self.seq = seq
        self.trial_id = trial_id
        self.detail = detail
        self.story = story

    def __str__(self) -> str:
        about = f" of trial {self.trial_id}" if self.trial_id else ""
        before = f" Before it: {', '.join(self.story)}." if self.story else ""
        return f"Event {self.seq}, {self.event}{about}, cannot follow: {self.detail}.{before}"


class InvariantError(RaytrialsError):
    """What must hold in every state does not: a mistake in raytrials."""

    exit_code = 4

    def __init__(self, wrong: tuple[str, ...]) -> None:
        super().__init__(wrong)
        self.wrong = wrong

    def __str__(self) -> str:
        return f"The state of the experiment contradicts itself: {'; '.join(self.wrong)}."


class UnpicklableStateError(RaytrialsError):
    """The state of the searcher or scheduler cannot be saved, or not be loaded here.

    The fault of the object that is named, such as a lock or a connection in a searcher of the
    user's own. Spends no budget and ends nothing: trials are saved without it.

    Attributes:
        part: whose state.
        detail: the attribute that is the reason, and what was said of it.
    """

    exit_code = 4

    def __init__(self, part: str, detail: str) -> None:
        super().__init__(part, detail)
        self.part = part
        self.detail = detail

    def __str__(self) -> str:
        return (
            f"The state of the {self.part} does not outlive the driver, because it cannot be "
            f"pickled: {self.detail}. Trials and checkpoints are saved all the same. Leave such "
            "an object out in __getstate__ and make it again in __setstate__."
        )


class JournalCorruptError(RaytrialsError):
    """The journal or its snapshots are damaged where it cannot be mended.

    The storage's fault; nothing was written. What stands before the place can still be read.

    Attributes:
        path: of the file.
        offset: of the damage in it, in bytes; None if it is about the file as a whole.
        detail: what is wrong.
    """

    exit_code = 4

    def __init__(self, path: str, offset: int | None, detail: str) -> None:
        super().__init__(path, offset, detail)
        self.path = path
        self.offset = offset
        self.detail = detail

    def __str__(self) -> str:
        where = f" at byte {self.offset}" if self.offset is not None else ""
        return (
            f"The journal is damaged: {self.path!r}{where}: {self.detail}. Nothing was changed. "
            "Bring the file back from a backup or from another copy of the experiment."
        )
