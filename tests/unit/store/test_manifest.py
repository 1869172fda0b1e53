"""A manifest says what it was made of, or that it is damaged."""

from __future__ import annotations

import json
import math
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.disks import header

from raytrials.core.plain import plain
from raytrials.errors import CorruptManifestError, NewerFormatError
from raytrials.store.manifest import (
    FileRecord,
    Manifest,
    checkpoint_name,
    digest_of,
    index_of,
)

FILES = {"b": FileRecord(0, digest_of(b"")), "a/Ünïcödé 模型": FileRecord(3, digest_of(b"abc"))}


def resealed(manifest: Manifest, **changed: Any) -> bytes:
    """The manifest with other fields, and a digest that is right."""
    fields = {**json.loads(manifest.encode()), **changed}
    del fields["digest"]
    body = json.dumps(fields, separators=(",", ":")).encode()
    return body[:-1] + f',"digest":"{digest_of(body)}"}}\n'.encode()


def test_what_is_encoded_is_decoded() -> None:
    manifest = Manifest(header(7, 2, loss=0.25, done=False, name="x", none=None), FILES)
    assert Manifest.decode(manifest.encode()) == manifest


def test_nan_and_infinities_come_back() -> None:
    manifest = Manifest(header(0, loss=math.nan, best=math.inf, worst=-math.inf), {})
    metrics = Manifest.decode(manifest.encode()).header.metrics
    assert math.isnan(metrics["loss"])
    assert metrics["best"] == math.inf
    assert metrics["worst"] == -math.inf


def test_the_order_of_files_changes_no_byte() -> None:
    backwards = dict(reversed(FILES.items()))
    assert Manifest(header(), FILES).encode() == Manifest(header(), backwards).encode()


def test_its_digest_names_one_commit() -> None:
    manifest = Manifest(header(0, 1), FILES)
    assert manifest.digest == Manifest.decode(manifest.encode()).digest
    assert manifest.digest != Manifest(header(0, 2), FILES).digest


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x00" * 100,
        b"\xff",
        b"null",
        b"[]",
        b"{}",
        b'"text"',
        b'{"digest":"x"}',
        b"[" * 100_000,
        b'{"version":1,"digest":["\\ud800"]}',
    ],
    ids=lambda data: repr(data[:20]),
)
def test_what_is_no_manifest_is_damaged(data: bytes) -> None:
    with pytest.raises(CorruptManifestError):
        Manifest.decode(data)


@pytest.mark.parametrize("version", [2, 99, "1", None, 1.5])
def test_a_version_that_this_release_does_not_know_is_refused(version: object) -> None:
    manifest = Manifest(header(), FILES)
    kind = NewerFormatError if isinstance(version, int) else CorruptManifestError
    with pytest.raises(kind, match="version"):
        Manifest.decode(resealed(manifest, version=version))


@pytest.mark.parametrize("files", [None, [None], [{}], [{"path": 1}], [{"path": [], "size": 1}]])
def test_files_of_another_form_are_damage(files: object) -> None:
    manifest = Manifest(header(), FILES)
    assert Manifest.decode(resealed(manifest)) == manifest
    with pytest.raises(CorruptManifestError):
        Manifest.decode(resealed(manifest, files=files))


@pytest.mark.parametrize("path", ["../outside", "/etc/outside", "a/../../outside"])
def test_a_file_outside_of_the_checkpoint_is_damage(path: str) -> None:
    manifest = Manifest(header(), {path: FileRecord(1, digest_of(b"x"))})
    with pytest.raises(CorruptManifestError, match="outside"):
        Manifest.decode(manifest.encode())


@pytest.mark.parametrize(
    "change",
    [
        lambda data: data[:-1],
        lambda data: data + b"\n",
        lambda data: b" " + data,
        lambda data: data.replace(b'"attempt":1', b'"attempt":2'),
        lambda data: data.replace(b",", b", ", 1),
        lambda data: data.replace(b'"index":0', b'"index":-0'),
        lambda data: data.upper(),
    ],
)
def test_a_changed_byte_is_damage_even_where_json_means_the_same(change: Any) -> None:
    data = Manifest(header(), FILES).encode()
    with pytest.raises(CorruptManifestError):
        Manifest.decode(change(data))


class Loud(str):
    __slots__ = ()


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (True, True),
        (np.bool_(True), True),
        (np.int64(3), 3),
        (np.float32(0.5), 0.5),
        (np.float64(0.5), 0.5),
        (np.longdouble(0.5), 0.5),
        (np.array([[1, 2], [3, 4]]), [[1, 2], [3, 4]]),
        (np.array(5), 5),
        (np.str_("x"), "x"),
        (Loud("x"), "x"),
        (Fraction(1, 2), 0.5),
        (Decimal("0.5"), "Decimal('0.5')"),
        (b"\x00\xff", "AP8="),
        ((1, {2}), [1, [2]]),
        ({1: {"a": np.int8(1)}}, {"1": {"a": 1}}),
        (Path("/x"), repr(Path("/x"))),
        (np.ndarray, repr(np.ndarray)),
        (np.clongdouble(1), repr(np.clongdouble(1))),
        (len, repr(len)),
    ],
    ids=repr,
)
def test_any_value_becomes_plain_json(value: object, expected: object) -> None:
    found = plain(value)
    assert found == expected
    assert type(found) is type(expected)
    json.dumps(found)


def test_a_checkpoint_is_named_as_ray_names_it() -> None:
    assert checkpoint_name(7) == "checkpoint_000007"
    for index in (0, 7, 999_999, 1_000_000):
        assert index_of(checkpoint_name(index)) == index
    for name in ("checkpoint_7", "checkpoint_0000007x", ".staging-000007-1", "xcheckpoint_000007"):
        assert index_of(name) is None


class Unspeakable:
    """A metric that nothing can be made of."""

    def __repr__(self) -> str:
        raise RuntimeError("no words")


def test_no_metric_keeps_a_checkpoint_from_being_saved() -> None:
    endless: list[Any] = []
    endless.append(endless)
    metrics = {
        "words": Unspeakable(),
        "endless": endless,
        "huge": 10**5000,
        "delta": np.timedelta64(1, "s"),
        "fine": 1.5,
    }
    decoded = Manifest.decode(Manifest(header(**metrics), FILES).encode()).header.metrics
    assert decoded["fine"] == 1.5
    assert decoded["words"] == "<Unspeakable>"
    assert decoded["endless"] == "<list>"
    assert set(decoded) == set(metrics)
