"""What `raytrials.verify` says of each checkpoint, on a local disk and on an object store."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pyarrow.fs
import pytest
from fsspec.implementations.dirfs import DirFileSystem
from fsspec.registry import known_implementations
from support.experiments import FILES, Experiment, saved

import raytrials
from raytrials.errors import (
    ConfigurationError,
    MissingFilesystemError,
    NotAnExperimentError,
    StorageError,
)
from raytrials.store import local
from raytrials.store.audit import Audit
from raytrials.store.checkpoint import Verdict
from raytrials.store.filesystem import as_pyarrow
from raytrials.store.manifest import MANIFEST

ACCOUNT = {"version": 1, "attempt": 1}


@pytest.fixture(params=["local", "memory"])
def experiment(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Experiment]:
    if request.param == "local":
        yield Experiment(pyarrow.fs.LocalFileSystem(), str(tmp_path / "exp"))
        return
    memory = fsspec.filesystem("memory")
    top = f"/{uuid.uuid4().hex}"
    yield Experiment(as_pyarrow(memory), f"{top}/exp")
    if memory.exists(top):
        memory.rm(top, recursive=True)


def verify(experiment: Experiment, *names: str, **options: Any) -> Audit:
    return raytrials.verify(experiment.at(*names), filesystem=experiment.filesystem, **options)


def verdicts(audit: Audit) -> dict[str, str]:
    return {
        f"{trial.directory}/{checkpoint.name}": str(checkpoint.verdict)
        for trial in audit.trials
        for checkpoint in trial.checkpoints
    }


def problem(audit: Audit) -> str:
    (found,) = [
        checkpoint.problem
        for trial in audit.trials
        for checkpoint in trial.checkpoints
        if checkpoint.problem
    ]
    return found


@pytest.mark.parametrize("full", [False, True])
def test_what_was_committed_is_verified(experiment: Experiment, full: bool) -> None:
    for trial in ("a", "b"):
        for index in (0, 3):
            experiment.commit(trial, index)
    experiment.save_state(saved("a", account=ACCOUNT), saved("b", account=ACCOUNT))
    audit = verify(experiment, full=full)
    assert audit.ok
    assert audit.counts == {
        Verdict.VERIFIED: 4,
        Verdict.UNVERIFIED: 0,
        Verdict.CORRUPT: 0,
        Verdict.MISSING: 0,
        Verdict.INCOMPLETE: 0,
    }
    assert [trial.trial_id for trial in audit.trials] == ["id-a", "id-b"]
    last = audit.trials[0].checkpoints[1]
    assert (last.name, last.iteration, last.size_bytes) == ("checkpoint_000003", 4, 102)


@pytest.mark.parametrize(
    ("data", "says", "full"),
    [
        (b"w" * 99, "weights.bin: expected 100 bytes, found 99", False),
        (b"", "weights.bin: expected 100 bytes, found 0", False),
        (b"w" * 99 + b"x", "weights.bin: expected digest", True),
    ],
    ids=["short", "empty", "flipped"],
)
def test_a_damaged_file_is_named_with_what_was_expected_and_found(
    experiment: Experiment, data: bytes, says: str, full: bool
) -> None:
    experiment.commit("a", 0)
    name = experiment.commit("a", 1)
    experiment.write(data, "a", name, "weights.bin")
    audit = verify(experiment, full=full)
    assert not audit.ok
    assert verdicts(audit) == {
        "a/checkpoint_000000": "verified",
        "a/checkpoint_000001": "corrupt",
    }
    assert problem(audit).startswith(says)


def test_sizes_alone_do_not_tell_of_a_flipped_bit(experiment: Experiment) -> None:
    name = experiment.commit("a", 1)
    experiment.write(b"x" * 100, "a", name, "weights.bin")
    assert verify(experiment).ok
    assert not verify(experiment, full=True).ok


def test_a_missing_and_an_extra_file_are_corrupt(experiment: Experiment) -> None:
    name = experiment.commit("a", 1)
    experiment.disk.delete_file(experiment.at("a", name, "weights.bin"))
    assert problem(verify(experiment)) == "weights.bin: missing"
    experiment.write(FILES["weights.bin"], "a", name, "weights.bin")
    experiment.write(b"?", "a", name, "stranger")
    assert problem(verify(experiment)) == "stranger: does not belong to it"


def test_a_damaged_manifest_is_corrupt(experiment: Experiment) -> None:
    name = experiment.commit("a", 1)
    whole = experiment.disk.read(experiment.at("a", name, MANIFEST))
    experiment.write(whole[:-5], "a", name, MANIFEST)
    assert problem(verify(experiment)).startswith(f"{MANIFEST}: not a manifest")


def test_what_ray_adds_later_is_not_part_of_it(experiment: Experiment) -> None:
    name = experiment.commit("a", 1)
    experiment.write(b"{}", "a", name, ".metadata.json")
    assert verify(experiment, full=True).ok


def test_a_checkpoint_of_another_trial_is_corrupt(experiment: Experiment) -> None:
    name = experiment.commit("a", 1)
    for file, data in FILES.items():
        experiment.write(data, "b", name, file)
    manifest = experiment.disk.read(experiment.at("a", name, MANIFEST))
    experiment.write(manifest, "b", name, MANIFEST)
    experiment.save_state(saved("a", account=ACCOUNT), saved("b", account=ACCOUNT))
    audit = verify(experiment)
    assert verdicts(audit) == {"a/checkpoint_000001": "verified", "b/checkpoint_000001": "corrupt"}
    assert problem(audit) == "it belongs to trial id-a"


def test_a_checkpoint_under_another_name_is_corrupt(experiment: Experiment) -> None:
    experiment.commit("a", 1)
    for file, entry in experiment.disk.list_files(experiment.at("a", "checkpoint_000001")).items():
        del entry
        data = experiment.disk.read(experiment.at("a", "checkpoint_000001", file))
        experiment.write(data, "a", "checkpoint_000002", file)
    assert problem(verify(experiment)) == "its manifest is that of checkpoint_000001"


def test_a_vanilla_experiment_is_unverified_and_ok(experiment: Experiment) -> None:
    experiment.put("a/checkpoint_000000")
    experiment.put("b/checkpoint_000001")
    experiment.save_state(saved("a"), saved("b"))
    audit = verify(experiment, full=True)
    assert audit.ok
    assert set(verdicts(audit).values()) == {"unverified"}


def test_without_a_manifest_it_depends_on_whose_trial_it_is(experiment: Experiment) -> None:
    experiment.commit("ours", 2)
    experiment.put("ours/checkpoint_000000")
    experiment.put("ours/checkpoint_000001")
    experiment.put("vanilla/checkpoint_000000")
    experiment.put("unknown/checkpoint_000000")
    account = {**ACCOUNT, "unverified": ["checkpoint_000000"]}
    experiment.save_state(saved("ours", account=account), saved("vanilla"))
    audit = verify(experiment)
    assert audit.ok
    assert verdicts(audit) == {
        "ours/checkpoint_000000": "unverified",
        "ours/checkpoint_000001": "incomplete",
        "ours/checkpoint_000002": "verified",
        "unknown/checkpoint_000000": "incomplete",
        "vanilla/checkpoint_000000": "unverified",
    }


def test_without_a_state_file_manifests_tell_whose_it_is(experiment: Experiment) -> None:
    experiment.put("a/checkpoint_000000")
    experiment.put("b/checkpoint_000000")
    assert set(verdicts(verify(experiment)).values()) == {"unverified"}
    experiment.commit("a", 1)
    assert verdicts(verify(experiment)) == {
        "a/checkpoint_000000": "incomplete",
        "a/checkpoint_000001": "verified",
        "b/checkpoint_000000": "incomplete",
    }


@pytest.mark.parametrize(
    "torn", [b"", b'{"trial_data": [["{', b"[]", b"null", b'{"trial_data": [1]}', b"\xff\xfe"]
)
def test_a_torn_state_file_gives_way_to_the_one_before_it(
    experiment: Experiment, torn: bytes
) -> None:
    experiment.put("a/checkpoint_000000")
    experiment.save_state(saved("a"), time="2026-01-01_00-00-00")
    experiment.save_state(saved("a", account=ACCOUNT), time="2026-01-02_00-00-00")
    assert verdicts(verify(experiment)) == {"a/checkpoint_000000": "incomplete"}
    experiment.write(torn, "experiment_state-2026-01-02_00-00-00.json")
    assert verdicts(verify(experiment)) == {"a/checkpoint_000000": "unverified"}


@pytest.mark.parametrize("name", [".staging-000004-2", ".removed-000004"])
def test_what_an_interrupted_attempt_left_is_incomplete(experiment: Experiment, name: str) -> None:
    experiment.commit("a", 1)
    experiment.put(f"a/{name}")
    audit = verify(experiment)
    assert audit.ok
    assert verdicts(audit) == {f"a/{name}": "incomplete", "a/checkpoint_000001": "verified"}


def test_an_incomplete_one_that_the_saved_state_names_says_so(experiment: Experiment) -> None:
    experiment.put("a/checkpoint_000000")
    pickled = b".../a/checkpoint_000000...".hex()
    experiment.save_state(saved("a", account=ACCOUNT, runtime=f'{{"value": "{pickled}"}}'))
    says = "it has no manifest, though the saved state of its trial names it"
    assert problem(verify(experiment)) == says


def test_what_the_saved_state_names_and_is_not_there_is_missing(experiment: Experiment) -> None:
    experiment.commit("a", 1)
    names = [b".../a/checkpoint_000001", b".../a/checkpoint_000002...", b".../z/checkpoint_000003"]
    runtime = "/".join(name.hex() for name in names)
    gone = b"/b/checkpoint_000000".hex()
    experiment.save_state(
        saved("a", account=ACCOUNT, runtime=runtime), saved("b", account=ACCOUNT, runtime=gone)
    )
    audit = verify(experiment)
    assert verdicts(audit) == {
        "a/checkpoint_000001": "verified",
        "a/checkpoint_000002": "missing",
        "b/checkpoint_000000": "missing",
    }
    assert not audit.ok
    assert verdicts(verify(experiment, "a", "checkpoint_000001")) == {
        "a/checkpoint_000001": "verified"
    }


def test_what_vanilla_ray_made_after_raytrials_is_unverified(experiment: Experiment) -> None:
    experiment.commit("a", 1)
    for name in ("checkpoint_000000", "checkpoint_000002"):
        experiment.put(f"a/{name}")
    runtime = "/".join(f"/a/checkpoint_00000{index}".encode().hex() for index in range(3))
    experiment.save_state(saved("a", account={**ACCOUNT, "next_index": 2}, runtime=runtime))
    assert verdicts(verify(experiment)) == {
        "a/checkpoint_000000": "corrupt",
        "a/checkpoint_000001": "verified",
        "a/checkpoint_000002": "unverified",
    }


def test_a_path_may_be_a_trial_or_one_checkpoint(experiment: Experiment) -> None:
    experiment.commit("a", 1)
    experiment.put("a/checkpoint_000000")
    experiment.commit("b", 5)
    experiment.save_state(saved("a", account=ACCOUNT), saved("b"))
    of_trial = verify(experiment, "a")
    assert verdicts(of_trial) == {
        "a/checkpoint_000000": "incomplete",
        "a/checkpoint_000001": "verified",
    }
    assert of_trial.trials[0].trial_id == "id-a"
    of_one = verify(experiment, "a", "checkpoint_000000")
    assert verdicts(of_one) == {"a/checkpoint_000000": "incomplete"}
    assert verdicts(verify(experiment, "b", "checkpoint_000005/")) == {
        "b/checkpoint_000005": "verified"
    }


def test_a_checkpoint_alone_is_ours_if_a_sibling_is(experiment: Experiment) -> None:
    experiment.put("a/checkpoint_000000")
    one = verify(experiment, "a", "checkpoint_000000")
    assert verdicts(one) == {"a/checkpoint_000000": "unverified"}
    experiment.commit("a", 1)
    one = verify(experiment, "a", "checkpoint_000000")
    assert verdicts(one) == {"a/checkpoint_000000": "incomplete"}


def test_an_experiment_or_a_trial_without_checkpoints_is_ok(experiment: Experiment) -> None:
    experiment.write(b"{}", "a", "params.json")
    experiment.save_state(saved("a"))
    assert verify(experiment).ok
    assert verdicts(verify(experiment, "a")) == {}


def test_json_holds_all_of_it(experiment: Experiment) -> None:
    name = experiment.commit("a", 1)
    experiment.write(b"", "a", name, "weights.bin")
    assert verify(experiment, full=True).to_json() == {
        "path": experiment.path,
        "full": True,
        "ok": False,
        "counts": {"verified": 0, "unverified": 0, "corrupt": 1, "missing": 0, "incomplete": 0},
        "swept": {"removed": 0, "kept": 0, "failed": 0},
        "trials": [
            {
                "directory": "a",
                "trial_id": None,
                "checkpoints": [
                    {
                        "name": "checkpoint_000001",
                        "verdict": "corrupt",
                        "problem": "weights.bin: expected 100 bytes, found 0",
                        "iteration": 2,
                        "size_bytes": 102,
                        "swept": None,
                    }
                ],
            }
        ],
    }


def test_a_moved_experiment_still_verifies(experiment: Experiment, tmp_path: Path) -> None:
    experiment.commit("a", 1, {**FILES, "empty": b""})
    target = tmp_path / "elsewhere"
    pyarrow.fs.copy_files(
        experiment.path,
        str(target),
        source_filesystem=experiment.filesystem,
        destination_filesystem=pyarrow.fs.LocalFileSystem(),
    )
    assert raytrials.verify(target, full=True).counts[Verdict.VERIFIED] == 1


# --- paths ---------------------------------------------------------------------------------------


def test_a_path_may_be_relative_a_link_or_a_uri(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    experiment = Experiment(pyarrow.fs.LocalFileSystem(), str(tmp_path / "exp"))
    name = experiment.commit("a", 1)
    experiment.save_state(saved("a", account=ACCOUNT))
    (tmp_path / "best").symlink_to(tmp_path / "exp" / "a" / name)
    monkeypatch.chdir(tmp_path / "exp" / "a")
    for path in ("..", ".", "../../best", f"file://{tmp_path}/exp", tmp_path / "exp" / "a"):
        audit = raytrials.verify(path)
        assert verdicts(audit) == {"a/checkpoint_000001": "verified"}
        assert audit.trials[0].trial_id == "id-a"


def test_a_url_of_fsspec_is_enough() -> None:
    top = uuid.uuid4().hex
    experiment = Experiment(as_pyarrow(fsspec.filesystem("memory")), f"/{top}/exp")
    experiment.commit("a", 1)
    assert raytrials.verify(f"memory://{top}/exp").counts[Verdict.VERIFIED] == 1
    fsspec.filesystem("memory").rm(f"/{top}", recursive=True)


def test_an_empty_directory_is_a_checkpoint_without_manifest(tmp_path: Path) -> None:
    experiment = Experiment(pyarrow.fs.LocalFileSystem(), str(tmp_path))
    (tmp_path / "a" / "checkpoint_000000").mkdir(parents=True)
    (tmp_path / "a" / ".staging-000001-1").mkdir()
    assert verdicts(verify(experiment)) == {
        "a/.staging-000001-1": "incomplete",
        "a/checkpoint_000000": "unverified",
    }


def test_a_path_without_an_experiment_is_an_error_that_says_what_is_wanted(
    tmp_path: Path,
) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "empty").mkdir()
    for name, says in (
        ("none", "does not exist"),
        ("file", "is a file"),
        ("empty", "holds no checkpoints"),
    ):
        with pytest.raises(NotAnExperimentError, match=says) as caught:
            raytrials.verify(tmp_path / name)
        assert str(tmp_path / name) in str(caught.value)
        assert "checkpoint_NNNNNN" in str(caught.value)


def test_a_directory_of_experiments_names_them(tmp_path: Path) -> None:
    for name in ("one", "two"):
        Experiment(pyarrow.fs.LocalFileSystem(), str(tmp_path / name)).save_state(saved("a"))
    with pytest.raises(NotAnExperimentError, match="one by one: one, two"):
        raytrials.verify(tmp_path)


@pytest.mark.parametrize(
    ("path", "filesystem", "kind", "says"),
    [
        ("", None, ConfigurationError, "path is ''"),
        ("foo://bucket/exp", None, ConfigurationError, "Protocol not known: foo"),
        ("/exp", "s3", ConfigurationError, "a filesystem of pyarrow or fsspec"),
        ("needs-it://bucket/exp", None, MissingFilesystemError, "Install the-package"),
    ],
)
def test_a_location_that_nobody_knows_is_a_typed_error(
    path: str,
    filesystem: Any,
    kind: type[Exception],
    says: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    known = {"class": "not_there_at_all.FileSystem", "err": "Install the-package"}
    monkeypatch.setitem(known_implementations, "needs-it", known)
    with pytest.raises(kind, match=says):
        raytrials.verify(path, filesystem=filesystem)


class _Unreachable(fsspec.AbstractFileSystem):
    cachable = False

    def info(self, path: str, **kwargs: Any) -> Any:
        raise TimeoutError("no answer")


def test_a_storage_that_does_not_answer_is_a_storage_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAYTRIALS_STORAGE_RETRY_S", "0")
    with pytest.raises(StorageError, match="no answer") as caught:
        raytrials.verify("/exp", filesystem=_Unreachable())
    assert caught.value.kind == "unavailable"


def test_files_that_go_while_they_are_read_are_no_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    experiment = Experiment(pyarrow.fs.LocalFileSystem(), str(tmp_path))
    gone = tmp_path / "a" / experiment.commit("a", 1)
    experiment.commit("a", 2)
    inspect = raytrials.store.audit.inspect

    def deleted_meanwhile(port: Any, path: str, *, full: bool) -> Any:
        if path == str(gone) and gone.exists():
            (gone / "weights.bin").unlink()
            finding = inspect(port, path, full=full)
            gone.rename(tmp_path / "elsewhere")
            return finding
        return inspect(port, path, full=full)

    monkeypatch.setattr(raytrials.store.audit, "inspect", deleted_meanwhile)
    assert verdicts(raytrials.verify(tmp_path)) == {"a/checkpoint_000002": "verified"}
    assert not gone.exists()


def test_a_file_that_goes_while_it_is_listed_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    experiment = Experiment(pyarrow.fs.LocalFileSystem(), str(tmp_path))
    experiment.commit("a", 1)
    experiment.write(b"", "a", "progress.csv")
    scan = os.scandir

    class Gone:
        name = "progress.csv"

        def is_file(self) -> bool:
            return True

        def is_dir(self) -> bool:
            return False

        def stat(self) -> Any:
            raise FileNotFoundError(self.name)

    @contextlib.contextmanager
    def scandir(path: str) -> Iterator[list[Any]]:
        with scan(path) as entries:
            yield [Gone() if entry.name == Gone.name else entry for entry in entries]

    monkeypatch.setattr(local.os, "scandir", scandir)
    assert verify(experiment).counts[Verdict.VERIFIED] == 1


@pytest.mark.parametrize("path", ["a", "/a"])
def test_the_saved_state_beside_a_trial_on_the_first_level_is_read(
    tmp_path: Path, path: str
) -> None:
    experiment = Experiment(pyarrow.fs.LocalFileSystem(), str(tmp_path))
    experiment.commit("a", 1)
    experiment.save_state(saved("a", account=ACCOUNT))
    subtree = pyarrow.fs.SubTreeFileSystem(str(tmp_path), pyarrow.fs.LocalFileSystem())
    assert raytrials.verify(path, filesystem=subtree).trials[0].trial_id == "id-a"


def test_what_is_listed_and_cannot_be_read_does_not_pass_for_good() -> None:
    memory = fsspec.filesystem("memory")
    top = f"/{uuid.uuid4().hex}"
    Experiment(as_pyarrow(memory), top).commit("a", 1)
    # It takes "/" for its own first level in a listing, and not in a name.
    with pytest.raises(StorageError, match="It is listed, and nothing is in it"):
        raytrials.verify("/", filesystem=DirFileSystem(top, memory))
    memory.rm(top, recursive=True)


WITHOUT_RAY = """
import sys
sys.modules["ray"] = None
import raytrials
from raytrials.cli import main
assert raytrials.verify(sys.argv[1], full=True, sweep=True).ok
sys.exit(main(["verify", sys.argv[1]]))
"""


def test_it_needs_no_ray(tmp_path: Path) -> None:
    Experiment(pyarrow.fs.LocalFileSystem(), str(tmp_path)).commit("a", 1)
    command = [sys.executable, "-c", WITHOUT_RAY, str(tmp_path)]
    done = subprocess.run(command, check=True, capture_output=True, text=True, env={**os.environ})
    assert "1 verified" in done.stdout
