"""Checkpoints of every released format stay readable."""

from __future__ import annotations

import math
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import xxhash

import raytrials
from raytrials.errors import NewerFormatError
from raytrials.store.checkpoint import Verdict
from raytrials.store.commit import commit
from raytrials.store.local import LocalDisk
from raytrials.store.manifest import MANIFEST, FileRecord, Header, Manifest

GOLDEN = Path(__file__).parents[2] / "golden" / "checkpoint-v1"
FORMATS = Path(__file__).parents[3] / "docs" / "formats.md"
NAME = "checkpoint_000007"
HEADER = Header(
    experiment="5f0c4e8d",
    trial="4f2a_00001",
    attempt=2,
    epoch=3,
    index=7,
    iteration=8,
    time=1700000000.5,
    metrics={
        "loss": 0.25,
        "worst": math.inf,
        "name": "größe",
        "done": False,
        "nested": {"list": [1, None]},
    },
)
FILES = {
    "empty": FileRecord(0, "99aa06d3014798d86001c324468d497f"),
    "inner/state.json": FileRecord(12, "fd32bfaba07a36d2a9bc33dbc5aa234a"),
    "weights.bin": FileRecord(256, "f1f8a93f50849ac39408a4433b952d71"),
}


def test_a_checkpoint_of_version_1_verifies() -> None:
    audit = raytrials.verify(GOLDEN / NAME, full=True)
    assert audit.counts[Verdict.VERIFIED] == 1


def test_a_manifest_of_version_1_says_what_was_written() -> None:
    manifest = Manifest.decode((GOLDEN / NAME / MANIFEST).read_bytes())
    assert manifest == Manifest(HEADER, FILES)


def test_the_same_files_are_committed_as_in_version_1(tmp_path: Path) -> None:
    source = tmp_path / "source"
    shutil.copytree(GOLDEN / NAME, source, ignore=shutil.ignore_patterns(MANIFEST))
    disk = LocalDisk(fsync=False)
    commit(disk, str(tmp_path / "trial"), HEADER, (disk, str(source)), retry_s=0)
    written = (tmp_path / "trial" / NAME / MANIFEST).read_bytes()
    assert written == (GOLDEN / NAME / MANIFEST).read_bytes()


def test_the_check_in_the_docs_agrees(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (code,) = re.findall(r"^```python\n(.*?)^```", FORMATS.read_text(), re.DOTALL | re.MULTILINE)
    trial = tmp_path / "trial"
    shutil.copytree(GOLDEN / NAME, trial / NAME)
    (trial / NAME / ".metadata.json").write_text("{}")
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec(code, names)  # it looks at all checkpoints below the working directory
    (trial / NAME / "weights.bin").write_bytes(b"")
    assert names["problems"](trial / NAME) == ["weights.bin"]
    (trial / NAME / MANIFEST).write_bytes((GOLDEN / NAME / MANIFEST).read_bytes()[:-2])
    assert names["problems"](trial / NAME) == ["the manifest is damaged"]


def test_a_manifest_of_version_2_is_refused_clearly(tmp_path: Path) -> None:
    shutil.copytree(GOLDEN / NAME, tmp_path / NAME)
    path = tmp_path / NAME / MANIFEST
    body = path.read_bytes().replace(b'"version":1', b'"version":2').rpartition(b',"digest":')[0]
    digest = xxhash.xxh3_128_hexdigest(body + b"}").encode()
    path.write_bytes(body + b',"digest":"' + digest + b'"}\n')
    says = "version 2; this release of raytrials reads up to 1"
    with pytest.raises(NewerFormatError, match=says):
        Manifest.decode(path.read_bytes())
    with pytest.raises(NewerFormatError, match=says):
        raytrials.verify(tmp_path / NAME)
