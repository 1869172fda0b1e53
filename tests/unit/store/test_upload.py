"""The upload of files that are written again and again."""

from __future__ import annotations

import contextlib
import errno
import os
import threading
from pathlib import Path

import pytest
from pyarrow import fs
from support.bad_stores import Flaky, Store

from raytrials.errors import StorageError
from raytrials.store.upload import Upload

NOBODY = contextlib.nullcontext()


@pytest.fixture
def source(tmp_path: Path) -> Path:
    directory = tmp_path / "source"
    (directory / "trial").mkdir(parents=True)
    (directory / "state.json").write_text("one")
    (directory / "trial" / "result.json").write_text("1\n")
    return directory


def content(directory: Path) -> dict[str, str]:
    return {
        str(path.relative_to(directory)): path.read_text()
        for path in directory.rglob("*")
        if path.is_file()
    }


@pytest.mark.parametrize("filesystem", [fs.LocalFileSystem(), Store().filesystem()])
def test_what_has_changed_arrives(tmp_path: Path, source: Path, filesystem: fs.FileSystem) -> None:
    upload, target = Upload(filesystem), tmp_path / "target"
    upload.run(str(source), str(target), retry_s=0, writing=NOBODY)
    assert content(target) == content(source)
    (source / "state.json").write_text("another")
    (source / "trial" / "new").write_text("")
    (target / "trial" / "result.json").unlink()
    upload.run(str(source), str(target), retry_s=0, writing=NOBODY)
    # What has not changed is not sent again.
    assert content(target) == {"state.json": "another", "trial/new": ""}


def test_a_file_that_fails_leaves_the_old_one_and_keeps_no_other_back(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    upload, target = Upload(fs.LocalFileSystem()), tmp_path / "target"
    upload.run(str(source), str(target), retry_s=0, writing=NOBODY)
    (source / "state.json").write_text("another")
    (source / "trial" / "result.json").write_text("1\n2\n")

    def no_space_for_logs(descriptor: int, data: bytes) -> int:
        if bytes(data).startswith(b"1"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(descriptor, data)

    write = os.write
    with monkeypatch.context() as patch:
        patch.setattr("os.write", no_space_for_logs)
        with pytest.raises(StorageError) as caught:
            upload.run(str(source), str(target), retry_s=0, writing=NOBODY)
    assert caught.value.kind == "full"
    assert content(target) == {"state.json": "another", "trial/result.json": "1\n"}
    upload.run(str(source), str(target), retry_s=0, writing=NOBODY)
    assert content(target) == content(source)


def test_writes_that_time_out_are_tried_again(tmp_path: Path, source: Path) -> None:
    store, target = Flaky(1, 0.6, str(tmp_path / "log")).filesystem(), tmp_path / "target"
    for number in range(4):
        (source / f"{number}").write_text("")
    with pytest.raises(StorageError):
        Upload(store).run(str(source), str(target), retry_s=0, writing=NOBODY)
    Upload(store).run(str(source), str(target), retry_s=5, writing=NOBODY)
    assert content(target) == content(source)


def test_no_half_written_file_is_taken(tmp_path: Path, source: Path) -> None:
    """The driver holds the lock while it writes; what is read is what it has written then."""
    lock, target = threading.Lock(), tmp_path / "target"
    upload = Upload(fs.LocalFileSystem())
    arguments = {"retry_s": 0, "writing": lock}
    with lock:
        (source / "state.json").write_text("")
        thread = threading.Thread(
            target=upload.run, args=(str(source), str(target)), kwargs=arguments
        )
        thread.start()
        thread.join(0.2)
        assert not target.exists()
        (source / "state.json").write_text("whole")
    thread.join()
    assert content(target)["state.json"] == "whole"
