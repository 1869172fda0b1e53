"""What every storage has to pass: the semantics of :class:`raytrials.store.disk.Disk` as tests.

For a disk of your own, subclass :class:`DiskConformance` in a test module and give it a fixture::

    class TestMyDisk(DiskConformance):
        @pytest.fixture
        def place(self, tmp_path):
            return MyDisk(), str(tmp_path)
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from raytrials.store.disk import CHUNK_BYTES, Disk

Place = tuple[Disk, str]

NAMES = (
    "plain",
    "with space",
    "Ünïcödé-模型",
    "100%+1&2=3#4;5,6~7'8",
    "%41",
    "[ab]*?",
    ".hidden",
    "-dash",
    "archive.gz",
    "archive.zst",
    "a/b/c/d/e/f/g/deep",
)


class DiskConformance:
    """The tests. A subclass gives the fixture `place`: a fresh disk, and an empty path on it."""

    whole_on_close = False
    """Whether nothing of a file is to be seen before it is closed."""

    takes_empty_files = True

    def test_what_is_missing_lists_as_empty(self, place: Place) -> None:
        disk, root = place
        for path in (root, f"{root}/none", f"{root}/none/below"):
            assert disk.list_files(path) == {}
            assert disk.list_names(path) == set()
            assert disk.list_directories(path) == []

    def test_a_file_lists_as_empty_when_asked_for_as_a_directory(self, place: Place) -> None:
        disk, root = place
        disk.make_directory(root)
        disk.write(f"{root}/file", b"content")
        assert disk.list_files(f"{root}/file") == {}
        assert disk.list_names(f"{root}/file") == set()
        assert disk.list_directories(f"{root}/file") == []

    def test_opening_what_is_missing_says_so(self, place: Place) -> None:
        disk, root = place
        for path in (f"{root}/none", f"{root}/none/below"):
            with raises(FileNotFoundError):
                disk.read(path)

    def test_deleting_what_is_missing_is_no_error(self, place: Place) -> None:
        disk, root = place
        for path in (f"{root}/none", f"{root}/none/below"):
            disk.delete_file(path)
            disk.delete_tree(path)

    def test_what_is_written_is_read(self, place: Place) -> None:
        disk, root = place
        contents = {name: f"of {name}".encode() * 9 for name in NAMES}
        put(disk, root, contents)
        for name, data in contents.items():
            assert disk.read(f"{root}/{name}") == data, name

    def test_a_listing_shows_all_files_below_with_their_sizes(self, place: Place) -> None:
        disk, root = place
        contents = {name: b"x" * (1000 + n) for n, name in enumerate(NAMES)}
        put(disk, root, contents)
        sizes = {name: entry.size for name, entry in disk.list_files(root).items()}
        assert sizes == {name: len(data) for name, data in contents.items()}
        below = {name: entry.size for name, entry in disk.list_files(f"{root}/a/b").items()}
        assert below == {"c/d/e/f/g/deep": len(contents["a/b/c/d/e/f/g/deep"])}

    def test_names_are_those_directly_in_a_directory(self, place: Place) -> None:
        disk, root = place
        put(disk, root, dict.fromkeys(NAMES, b"x"))
        assert disk.list_names(root) == {name.split("/")[0] for name in NAMES}
        assert disk.list_names(f"{root}/a") == {"b"}

    def test_directories_come_with_their_parents_first(self, place: Place) -> None:
        disk, root = place
        put(disk, root, {"a/b/file": b"x", "a/c/file": b"x", "d/file": b"x"})
        found = disk.list_directories(root)
        assert sorted(found) == ["a", "a/b", "a/c", "d"]
        assert found.index("a") < min(found.index("a/b"), found.index("a/c"))

    def test_writing_again_begins_from_the_beginning(self, place: Place) -> None:
        disk, root = place
        put(disk, root, {"file": b"long content"})
        for content in (b"short", b"longer again"):
            disk.write(f"{root}/file", content)
            assert disk.read(f"{root}/file") == content
            assert disk.list_files(root)["file"].size == len(content)

    def test_overwriting_leaves_nothing_of_what_was_there(self, place: Place) -> None:
        disk, root = place
        put(disk, root, {"file": b"long content"})
        for content in (b"short", b"longer content again"):
            disk.overwrite(f"{root}/file", content)
            assert disk.read(f"{root}/file") == content

    def test_a_file_longer_than_a_chunk_stays_whole(self, place: Place) -> None:
        disk, root = place
        data = bytes(range(251)) * (CHUNK_BYTES // 251 + 77)
        disk.make_directory(root)
        with disk.create(f"{root}/file") as writer:
            writer.write(memoryview(data)[:CHUNK_BYTES])
            writer.write(memoryview(data)[CHUNK_BYTES:])
        assert disk.read(f"{root}/file") == data

    def test_reading_fills_the_buffer_from_its_front(self, place: Place) -> None:
        disk, root = place
        put(disk, root, {"file": b"content"})
        buffer = memoryview(bytearray(b"." * 10))
        with disk.open(f"{root}/file") as reader:
            assert reader.readinto(buffer) == len(b"content")
            assert bytes(buffer) == b"content..."
            assert reader.readinto(buffer) == 0

    def test_an_empty_file_is_a_file(self, place: Place) -> None:
        disk, root = place
        disk.make_directory(root)
        if not self.takes_empty_files:
            with raises(OSError):
                disk.write(f"{root}/empty", b"")
            return
        disk.write(f"{root}/empty", b"")
        assert disk.read(f"{root}/empty") == b""
        assert disk.list_files(root)["empty"].size == 0

    def test_a_writer_that_fails_hurts_no_other_file(self, place: Place) -> None:
        disk, root = place
        put(disk, root, {"other": b"other", "below/other": b"below"})
        with raises(ZeroDivisionError), disk.create(f"{root}/file") as writer:
            writer.write(memoryview(b"half"))
            raise ZeroDivisionError
        assert disk.read(f"{root}/other") == b"other"
        assert disk.read(f"{root}/below/other") == b"below"
        assert disk.list_names(root) - {"file"} == {"other", "below"}
        disk.write(f"{root}/file", b"whole")
        assert disk.read(f"{root}/file") == b"whole"

    def test_nothing_of_a_file_is_seen_before_it_is_whole(self, place: Place) -> None:
        disk, root = place
        disk.make_directory(root)
        with disk.create(f"{root}/file") as writer:
            writer.write(memoryview(b"content"))
            if self.whole_on_close:
                assert disk.list_files(root) == {}
        assert disk.read(f"{root}/file") == b"content"

    def test_a_listing_shows_what_was_just_written_and_deleted(self, place: Place) -> None:
        disk, root = place
        put(disk, root, {"keep": b"x"})
        for _ in range(3):
            disk.write(f"{root}/file", b"x")
            assert disk.list_names(root) == {"keep", "file"}
            disk.delete_file(f"{root}/file")
            assert disk.list_names(root) == {"keep"}

    def test_a_file_that_is_written_again_lists_as_another_entry(self, place: Place) -> None:
        disk, root = place
        put(disk, root, {"file": b"x"})
        before = disk.list_files(root)["file"]
        disk.write(f"{root}/file", b"xx")
        assert disk.list_files(root)["file"] != before

    def test_making_a_directory_twice_is_no_error(self, place: Place) -> None:
        disk, root = place
        for _ in range(2):
            disk.make_directory(f"{root}/a/b")
        put(disk, root, {"a/b/file": b"x"})
        disk.make_directory(f"{root}/a/b")
        assert set(disk.list_files(root)) == {"a/b/file"}

    def test_a_directory_is_renamed_with_all_that_is_in_it(self, place: Place) -> None:
        disk, root = place
        put(disk, root, {"old/a": b"a", "old/b/c": b"c"})
        if not disk.has_rename:
            with raises(NotImplementedError):
                disk.rename(f"{root}/old", f"{root}/new")
            return
        disk.rename(f"{root}/old", f"{root}/new")
        assert disk.list_names(root) == {"new"}
        assert disk.read(f"{root}/new/a") == b"a"
        assert disk.read(f"{root}/new/b/c") == b"c"

    def test_a_rename_takes_no_name_that_exists(self, place: Place) -> None:
        disk, root = place
        if not disk.has_rename:
            return
        put(disk, root, {"old/a": b"old", "new/a": b"new"})
        disk.make_directory(f"{root}/empty")
        for taken in ("new", "empty"):
            with raises(FileExistsError):
                disk.rename(f"{root}/old", f"{root}/{taken}")
        with raises(FileNotFoundError):
            disk.rename(f"{root}/none", f"{root}/other")
        assert disk.read(f"{root}/old/a") == b"old"
        assert disk.read(f"{root}/new/a") == b"new"

    def test_a_directory_is_not_renamed_into_itself(self, place: Place) -> None:
        disk, root = place
        if not disk.has_rename:
            return
        put(disk, root, {"a/b/file": b"x"})
        for below in ("a/c", "a/b/c"):
            with raises(OSError):
                disk.rename(f"{root}/a", f"{root}/{below}")
        assert set(disk.list_files(root)) == {"a/b/file"}

    def test_a_file_takes_no_place_of_a_directory(self, place: Place) -> None:
        disk, root = place
        if not disk.has_rename:
            return
        put(disk, root, {"file": b"file", "full/a": b"a"})
        disk.make_directory(f"{root}/empty")
        for taken in ("full", "empty"):
            with raises(OSError):
                disk.replace(f"{root}/file", f"{root}/{taken}")
        assert disk.read(f"{root}/file") == b"file"
        assert disk.read(f"{root}/full/a") == b"a"
        assert disk.list_names(root) == {"file", "full", "empty"}

    def test_a_file_takes_the_place_of_another(self, place: Place) -> None:
        disk, root = place
        put(disk, root, {"old": b"old", "new": b"new"})
        if not disk.has_rename:
            with raises(NotImplementedError):
                disk.replace(f"{root}/new", f"{root}/old")
            return
        disk.replace(f"{root}/new", f"{root}/old")
        assert disk.list_names(root) == {"old"}
        assert disk.read(f"{root}/old") == b"new"
        disk.replace(f"{root}/old", f"{root}/other")
        assert disk.list_names(root) == {"other"}
        with raises(FileNotFoundError):
            disk.replace(f"{root}/none", f"{root}/other")

    def test_what_is_appended_is_seen_at_once_at_the_end(self, place: Place) -> None:
        disk, root = place
        disk.make_directory(root)
        if not disk.has_rename:
            with raises(NotImplementedError):
                disk.append(f"{root}/file")
            return
        expected = b""
        for data in (b"first", b"", b"second" * CHUNK_BYTES):
            appender = disk.append(f"{root}/file")
            assert disk.read(f"{root}/file") == expected
            for _ in range(2):
                appender.write(memoryview(data))
                expected += data
                assert disk.read(f"{root}/file") == expected
                appender.sync()
            appender.close()
            appender.close()
        assert disk.list_files(root)["file"].size == len(expected)

    def test_what_two_append_to_a_file_is_all_there(self, place: Place) -> None:
        disk, root = place
        if not disk.has_rename:
            return
        put(disk, root, {"file": b"0"})
        one, other = disk.append(f"{root}/file"), disk.append(f"{root}/file")
        one.write(memoryview(b"1"))
        other.write(memoryview(b"2"))
        one.write(memoryview(b"3"))
        one.close()
        other.close()
        assert disk.read(f"{root}/file") == b"0123"

    def test_appending_makes_no_directory(self, place: Place) -> None:
        disk, root = place
        if disk.has_rename:
            with raises(FileNotFoundError):
                disk.append(f"{root}/none/file")

    def test_a_file_is_synced_while_another_thread_appends(self, place: Place) -> None:
        disk, root = place
        if not disk.has_rename:
            return
        disk.make_directory(root)
        appender = disk.append(f"{root}/file")
        with ThreadPoolExecutor(2) as pool:
            writing = pool.submit(lambda: [appender.write(memoryview(b"x" * 9)) for _ in range(99)])
            for _ in range(9):
                pool.submit(appender.sync).result()
            writing.result()
        appender.close()
        assert disk.read(f"{root}/file") == b"x" * 9 * 99

    def test_a_new_file_takes_no_name_that_exists(self, place: Place) -> None:
        disk, root = place
        disk.make_directory(root)
        disk.create_exclusive(f"{root}/file", b"first")
        for _ in range(2):
            with raises(FileExistsError):
                disk.create_exclusive(f"{root}/file", b"second")
        assert disk.read(f"{root}/file") == b"first"
        disk.delete_file(f"{root}/file")
        disk.create_exclusive(f"{root}/file", b"third")
        assert disk.read(f"{root}/file") == b"third"

    def test_of_many_that_make_a_file_one_does(self, place: Place) -> None:
        disk, root = place
        if not disk.has_rename:
            return
        disk.make_directory(root)

        def make(number: int) -> int | None:
            try:
                disk.create_exclusive(f"{root}/file", str(number).encode())
            except FileExistsError:
                return None
            return number

        with ThreadPoolExecutor(8) as pool:
            made = [number for number in pool.map(make, range(8)) if number is not None]
        assert [str(number).encode() for number in made] == [disk.read(f"{root}/file")]

    def test_a_file_is_held_by_one_until_it_lets_go(self, place: Place) -> None:
        disk, root = place
        disk.make_directory(root)
        path = f"{root}/lock"
        hold = disk.hold(path)
        if hold is None:  # a storage without locks
            assert disk.is_held(path) is None
            return
        for _ in range(2):
            assert disk.is_held(path) is True
            with raises(BlockingIOError):
                disk.hold(path)
        for _ in range(2):
            hold.release()
            assert disk.is_held(path) is False
        again = disk.hold(path)
        assert again is not None
        hold.release()  # of the first: none of its business
        assert disk.is_held(path) is True
        again.release()

    def test_holding_leaves_what_is_in_the_file(self, place: Place) -> None:
        disk, root = place
        put(disk, root, {"file": b"content", "other": b"x"})
        hold = disk.hold(f"{root}/file")
        assert disk.read(f"{root}/file") == b"content"
        if hold is not None:
            assert disk.is_held(f"{root}/other") is False
            hold.release()

    def test_a_hold_is_told_only_of_the_file_it_is_on(self, place: Place) -> None:
        disk, root = place
        put(disk, root, {"other": b"x"})
        path = f"{root}/lock"
        hold = disk.hold(path)
        if hold is None:
            return
        assert disk.is_held(path, hold.place) is True
        assert disk.is_held(f"{root}/other", hold.place) is None
        assert disk.is_held(f"{root}/none", hold.place) is None
        assert disk.is_held(f"{root}/none") is False
        hold.release()
        assert disk.is_held(path, hold.place) is False

    def test_syncing_changes_nothing(self, place: Place) -> None:
        disk, root = place
        put(disk, root, {"a/file": b"x"})
        disk.sync(f"{root}/a")
        disk.sync(root)
        assert set(disk.list_files(root)) == {"a/file"}

    def test_deleting_a_file_leaves_the_others(self, place: Place) -> None:
        disk, root = place
        names = {*NAMES, "ax", "%4[1]"}  # which patterns among them match
        for name in names:
            put(disk, root, dict.fromkeys(names, b"x"))
            disk.delete_file(f"{root}/{name}")
            assert set(disk.list_files(root)) == names - {name}, name

    def test_deleting_a_tree_leaves_the_others(self, place: Place) -> None:
        disk, root = place
        trees = ("lr=[01]", "lr=0", "lr=1", "l*", "l?=0", "l", "with space", "{lr=0,lr=1}")
        for tree in trees:
            put(disk, root, {f"{other}/a/file": other.encode() for other in trees})
            disk.delete_tree(f"{root}/{tree}")
            expected = {f"{other}/a/file" for other in trees if other != tree}
            assert set(disk.list_files(root)) == expected, tree
            assert tree not in disk.list_names(root)

    def test_files_are_written_side_by_side(self, place: Place) -> None:
        disk, root = place
        contents = {f"{n % 3}/file-{n}": bytes([n]) * 1000 for n in range(24)}
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda item: put(disk, root, dict([item])), contents.items()))
        assert {name: disk.read(f"{root}/{name}") for name in disk.list_files(root)} == contents


def put(disk: Disk, root: str, contents: dict[str, bytes]) -> None:
    """Write files with their directories."""
    for name, data in contents.items():
        disk.make_directory(f"{root}/{name}".rpartition("/")[0])
        disk.write(f"{root}/{name}", data)


class raises:  # noqa: N801 - pytest's, by which it would be bound to pytest
    """Expect an exception."""

    def __init__(self, expected: type[BaseException]) -> None:
        self._expected = expected

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> bool:
        if kind is None:
            raise AssertionError(f"nothing raised {self._expected.__name__}")
        return issubclass(kind, self._expected)
