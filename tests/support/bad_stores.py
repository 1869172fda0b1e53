"""Filesystems that misbehave, over a directory of this machine that all its processes see.

Each is a pyarrow handler. None of them is local by its type, so raytrials takes them for object
stores: a file appears whole when its writer is closed.
"""

from __future__ import annotations

import errno
import io
import os
import random
import time
import uuid
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import fs


class Store(fs.FileSystemHandler):
    """An object store over the local disk, without fault; what is pickled are its arguments."""

    def __init__(self, *arguments: Any) -> None:
        self.arguments = arguments
        self.inner = fs.LocalFileSystem()

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), self.arguments)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Store) and self.__reduce__() == other.__reduce__()

    def __hash__(self) -> int:
        return hash(type(self))

    def filesystem(self) -> fs.FileSystem:
        return fs.PyFileSystem(self)

    def before(self, operation: str, path: str) -> None:
        """Called before every operation; may raise."""

    def closing(self, path: str, data: bytes) -> None:
        """Called before a file appears; may raise."""

    def get_type_name(self) -> str:
        return "store"

    def normalize_path(self, path: str) -> str:
        return path

    def get_file_info(self, paths: list[str]) -> Any:
        for path in paths:
            self.before("info", path)
        return self.inner.get_file_info(paths)

    def get_file_info_selector(self, selector: fs.FileSelector) -> Any:
        self.before("list", selector.base_dir)
        return self.inner.get_file_info(selector)

    def create_dir(self, path: str, recursive: bool) -> None:
        self.before("create_dir", path)
        self.inner.create_dir(path, recursive=recursive)

    def delete_dir(self, path: str) -> None:
        self.before("delete", path)
        self.inner.delete_dir(path)

    def delete_dir_contents(self, path: str, missing_dir_ok: bool = False) -> None:
        self.before("delete", path)
        self.inner.delete_dir_contents(path, missing_dir_ok=missing_dir_ok)

    def delete_root_dir_contents(self) -> None:
        raise NotImplementedError

    def delete_file(self, path: str) -> None:
        self.before("delete", path)
        self.inner.delete_file(path)

    def move(self, src: str, dest: str) -> None:
        raise NotImplementedError("this store has no rename")

    def copy_file(self, src: str, dest: str) -> None:
        raise NotImplementedError("this store has no copy")

    def open_input_stream(self, path: str) -> Any:
        self.before("read", path)
        return self.inner.open_input_stream(path)

    def open_input_file(self, path: str) -> Any:
        self.before("read", path)
        return self.inner.open_input_file(path)

    def open_output_stream(self, path: str, metadata: Any) -> Any:
        self.before("write", path)
        if not Path(path).parent.is_dir():
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return pa.PythonFile(_Upload(path, self.closing), mode="w")

    def open_append_stream(self, path: str, metadata: Any) -> Any:
        raise NotImplementedError("this store has no append")


class _Upload(io.BytesIO):
    """A file on its way; it appears whole when it is closed."""

    def __init__(self, path: str, closing: Callable[[str, bytes], None]) -> None:
        super().__init__()
        self._path = path
        self._closing = closing

    def close(self) -> None:
        if self.closed:
            return
        data = self.getvalue()
        super().close()
        self._closing(self._path, data)
        part = Path(self._path).parents[1] / f".part-{uuid.uuid4().hex}"
        part.write_bytes(data)
        part.replace(self._path)


class Awkward(Store):
    """Takes no empty files, and lists everything below, whatever was asked."""

    def closing(self, path: str, data: bytes) -> None:
        if not data:
            raise OSError(f"InvalidRequest: {path} is empty")

    def get_file_info_selector(self, selector: fs.FileSelector) -> Any:
        return self.inner.get_file_info(
            fs.FileSelector(selector.base_dir, selector.allow_not_found, recursive=True)
        )


class Flaky(Store):
    """Lets a share of the writes time out, each path by a fixed plan.

    Args: a seed, the share, and a log of what timed out.
    """

    def __init__(self, seed: int, share: float, log: str) -> None:
        super().__init__(seed, share, log)
        self.seed, self.share, self.log = seed, share, log
        self.tries: Counter[str] = Counter()

    def before(self, operation: str, path: str) -> None:
        if operation != "write":
            return
        self.tries[path] += 1
        name = "/".join(path.rsplit("/", 2)[1:])  # of the directory and the file
        draw = random.Random(f"{self.seed} {name} {self.tries[path]}").random()
        if draw < self.share:
            with Path(self.log).open("a") as log:
                log.write(f"{name}\n")
            raise TimeoutError(f"writing {path} timed out")


class Slow(Store):
    """Answers late, and lets a share of the writes time out.

    Args: how long an answer takes in seconds, and the share.
    """

    def __init__(self, delay_s: float, share: float) -> None:
        super().__init__(delay_s, share)
        self.delay_s, self.share = delay_s, share

    def before(self, operation: str, path: str) -> None:
        time.sleep(self.delay_s)
        if operation == "write" and random.random() < self.share:
            raise TimeoutError(f"writing {path} timed out")


class Breaking(Store):
    """Fails every write of a file of a checkpoint while a file `broken` stands.

    Args: the path of that file, and the name of the error: `timeout`, `forbidden` or `full`.
    """

    def __init__(self, broken: str, kind: str) -> None:
        super().__init__(broken, kind)
        self.broken, self.kind = Path(broken), kind

    def before(self, operation: str, path: str) -> None:
        if operation == "write" and "/checkpoint_" in path and self.broken.exists():
            raise error_of(self.kind)


def error_of(kind: str) -> Exception:
    """Return a new error as a local filesystem would raise it."""
    if kind == "timeout":
        return TimeoutError("the store timed out")
    code = {"forbidden": errno.EACCES, "full": errno.ENOSPC}[kind]
    return OSError(code, os.strerror(code))


class Keeping(Store):
    """Deletes nothing while a file stands, whose path is the argument."""

    def before(self, operation: str, path: str) -> None:
        if operation == "delete" and Path(self.arguments[0]).exists():
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)


class Holding(Store):
    """Answers no deletion of a checkpoint while a file stands, whose path is the argument.

    A file beside it, `.seen`, says that one waits.
    """

    def before(self, operation: str, path: str) -> None:
        held = Path(self.arguments[0])
        while operation == "delete" and "checkpoint_" in path and held.exists():
            held.with_suffix(".seen").touch()
            time.sleep(0.05)
