"""A filesystem that is made anew keeps the semantics of the one that it makes."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pyarrow.fs
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from support.stores import CachesListings

from raytrials.chaos.conformance import DiskConformance, Place
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
