"""Whatever stands in the files of a journal, reading gives the gapless front of what is there."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st
from support.journals import line, put, read

from raytrials.chaos.disk import FakeLocal
from raytrials.store.record import NotARecordError, decode

patient = settings(deadline=None, max_examples=300)
DAMAGE = (b"", b"\0" * 9, b"\n", b"hello\n", b'{"v":1,"seq":3', b'{"v":1\n')


def damaged(luck: random.Random, data: bytes) -> bytes:
    where, what = luck.randrange(len(data) + 1), luck.choice(("cut", "flip", "insert", "drop"))
    if what == "cut":
        return data[:where]
    if what == "insert":
        return data[:where] + luck.choice(DAMAGE) + data[where:]
    if what == "drop":
        return data[:where] + data[where + luck.randint(1, 200) :]
    where = min(where, len(data) - 1)
    return data[:where] + bytes([data[where] ^ luck.randint(1, 255)]) + data[where + 1 :]


def there(data: bytes, epoch: int) -> set[int]:
    """The events of an epoch that are whole in a file, found the slow way."""
    found = set()
    for one in data.split(b"\n"):
        try:
            record = decode(one)
        except NotARecordError:
            continue
        if record.epoch == epoch:
            found.add(record.seq)
    return found


@patient
@given(st.integers(0, 2**32), st.booleans())
def test_reading_gives_the_front_and_an_error_if_there_is_more(seed: int, damages: bool) -> None:
    luck = random.Random(seed)
    disk = FakeLocal()
    files: dict[tuple[int, int], bytes] = {}
    end = 1
    for epoch in range(1, luck.randint(1, 3) + 1):
        begin = max(1, end - luck.choice((0, 0, 0, 2)))
        last = begin + luck.randint(0, 8)
        for first in {begin, *(luck.randint(begin, last) for _ in range(luck.randint(0, 2)))}:
            data = b"".join(line(seq, epoch) for seq in range(first, last + 1))
            files[epoch, first] = damaged(luck, data) if damages and luck.random() < 0.5 else data
        end = last + 1
    if damages and luck.random() < 0.3:
        files.pop(luck.choice(list(files)))
    counted: set[int] = set()
    firsts: set[int] = set()
    for (epoch, first), data in files.items():
        put(disk, first, data, epoch)
        limit = min((other for at, other in files if at > epoch), default=10**9)
        counted |= {seq for seq in there(data, epoch) if seq < limit}
        firsts |= {first} if first < limit else set()
    front = 0
    while front + 1 in counted:
        front += 1
    found = read(disk)
    assert found.seqs == list(range(1, front + 1))
    more = max(counted | {first - 1 for first in firsts}, default=0) > front
    if more:
        assert found.error is not None
    if not damages:
        assert found.error is None
        assert found.damage == []
        for after in range(front + 1):
            again = read(disk, after)
            assert again.error is None
            assert again.seqs == list(range(after + 1, front + 1))


def test_the_files_of_these_tests_are_damaged_in_all_ways() -> None:
    luck = random.Random(1)
    data = line(1) + line(2)
    changed = {damaged(luck, data) for _ in range(200)}
    assert len(changed) > 100
    assert {len(there(one, 1)) for one in changed} == {0, 1, 2}
