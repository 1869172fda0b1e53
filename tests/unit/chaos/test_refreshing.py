"""A filesystem that is made anew keeps the semantics of the one that it makes."""

from __future__ import annotations

import itertools
import pickle
from pathlib import Path
from typing import Any

import pyarrow.fs
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from support.stores import CachesListings

from raytrials.chaos.conformance import DiskConformance, Place
from raytrials.errors import StorageError
from raytrials.store.location import disk_of
from raytrials.store.refreshing import refreshing_filesystem

fresh = itertools.count()


@pytest.mark.parametrize("kind", [MemoryFileSystem, CachesListings])
class TestRefreshing(DiskConformance):
    @pytest.fixture
    def place(self, kind: Any) -> Place:
        return disk_of(refreshing_filesystem(kind)), f"/refreshing-{next(fresh)}"


class TestRefreshingLocal(DiskConformance):
    @pytest.fixture
    def place(self, tmp_path: Path) -> Place:
        return disk_of(refreshing_filesystem(pyarrow.fs.LocalFileSystem)), str(tmp_path)


class Factory:
    """Counts how often it is asked for a filesystem."""

    made = 0

    def __call__(self) -> Any:
        Factory.made += 1
        return pyarrow.fs.LocalFileSystem()


def test_copies_in_one_process_share_what_the_factory_made(tmp_path: Path) -> None:
    Factory.made = 0
    filesystem = refreshing_filesystem(Factory())
    for _ in range(5):
        # As with each report: a checkpoint brings its filesystem along.
        copy = pickle.loads(pickle.dumps(filesystem))
        assert copy == filesystem
        assert disk_of(copy).list_names(str(tmp_path)) == set()
    assert Factory.made == 1
    assert disk_of(filesystem).refresh()
    assert disk_of(copy).list_names(str(tmp_path)) == set()
    assert Factory.made == 2


def test_a_factory_that_fails_is_a_storage_error() -> None:
    def connect() -> Any:
        raise KeyError("no keys")

    with pytest.raises(StorageError, match=r"connecting of .*connect.*KeyError: 'no keys'"):
        disk_of(refreshing_filesystem(connect)).list_names("/x")
