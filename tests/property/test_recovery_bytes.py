"""Whatever happens to a byte of an experiment, a recovery gives a state that was, or says where.

Damage is one flipped byte, a cut, missing bytes, zero bytes between or in place of others, an empty
file, or a file that is gone. A recovery then comes to exactly one of these, and changes nothing:

===================================================  ===============================================
what is damaged                                      what a recovery comes to
===================================================  ===============================================
a snapshot that is not the newest                    the same state; it is not looked at
the newest snapshot                                  the same state, from an older one or from the
                                                     journal alone; the file is named as damaged
the newest snapshot is gone                          the same; nobody can name it
a segment that ends before the newest snapshot       the same state; it is not looked at. Who reads
                                                     the whole history gets JournalCorruptError
zero bytes at the end of a line, or its newline cut  the same state; the line is whole
off at the end of a segment
more behind the last whole line of a segment         the same state; the place is named as damaged
the last line of the last segment                    the state before that event; named
the last segment ends early                          the state after its last whole line; named if
                                                     part of a line is left, for a cut between two
                                                     lines leaves no trace
the last segment is gone                             the state before it: there is no trace
one of these three, and a snapshot has the event     JournalCorruptError: it ends too early
that is lost
the last newline became another byte                 JournalCorruptError: a whole line stands there
                                                     that was durable
any other place in a segment behind the snapshot     JournalCorruptError with file and offset
such a segment, and not the last, is gone or cut     JournalCorruptError: events are missing; it
between two lines                                    names the segment that comes after them
a line whose event a snapshot has, with others       the same state; named
behind it
a lease                                              it is nobody's: waited for until it expires,
                                                     then the next epoch is taken
===================================================  ===============================================

It is never another exception: NewerFormatError needs a digest that is right.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.damaging import STRIDE, WAYS, Damaged, History
from support.leases import ELSEWHERE, HERE, LEASES, Machine

from raytrials.chaos.disk import FakeObjectStore
from raytrials.errors import JournalCorruptError
from raytrials.store.leasefile import newest
from raytrials.store.recovery import Recovered

BEHIND = History.write(3, 4)
SNAPSHOT_OF_ALL = History.write()

Way = Callable[[str, bytes, int], Iterator[Damaged]]
ways = pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
histories = pytest.mark.parametrize(
    "history", [BEHIND, SNAPSHOT_OF_ALL], ids=["events behind", "all in the snapshot"]
)


def damaged_files(found: Recovered) -> set[str]:
    return {one.file for one in found.damage}


def base(name: str) -> str:
    return name.rpartition("/")[2]


def assert_same(history: History, found: Recovered | JournalCorruptError) -> Recovered:
    assert isinstance(found, Recovered), found
    assert found.state == history.whole.state
    return found


@ways
@histories
def test_damage_in_a_snapshot_loses_nothing(history: History, way: Way) -> None:
    for name in (one for one in history.files if one.endswith("snapshot")):
        for damaged in way(name, history.files[name], 2 * STRIDE):
            found = assert_same(history, history.outcome(damaged))
            expected = {base(name)} if name == history.newest_snapshot else set()
            assert damaged_files(found) == expected
        assert not assert_same(history, history.outcome(Damaged(name, None, 0))).damage


@ways
@histories
def test_damage_before_the_snapshot_is_not_looked_at(history: History, way: Way) -> None:
    for name in set(history.files) - set(history.read_segments):
        if name.endswith("jsonl"):
            for damaged in [*way(name, history.files[name], 2 * STRIDE), Damaged(name, None, 0)]:
                assert not assert_same(history, history.outcome(damaged)).damage


@ways
@histories
def test_damage_behind_the_snapshot_costs_the_end_at_most_or_is_refused(
    history: History, way: Way
) -> None:
    outcomes = set()
    for name in history.read_segments:
        data = history.files[name]
        for damaged in way(name, data, STRIDE if len(data) > 2_000 else 3):
            found = history.outcome(damaged)
            if isinstance(found, JournalCorruptError):
                outcomes.add("refused")
                if between_lines(history, damaged):
                    assert found.offset is None
                else:
                    assert base(found.path) == base(name)
                continue
            assert damaged_files(found) <= {base(name)}
            if found.state == history.whole.state:
                outcomes.add("same")
                continue
            outcomes.add("older")
            assert name == history.last_segment
            assert history is BEHIND
            whole_before = history.files[name][: damaged.place].count(b"\n")
            assert found.state.seq >= history.first_in(name) - 1 + whole_before
            assert found.damage or between_lines(history, damaged)
    assert "refused" in outcomes
    assert "older" in outcomes or history is SNAPSHOT_OF_ALL


def between_lines(history: History, damaged: Damaged) -> bool:
    """Whether it is a cut that leaves whole lines alone, so that nothing looks damaged."""
    whole, rest = history.files[damaged.file], damaged.data or b""
    return whole.startswith(rest) and b"\n" in {rest[-1:] or b"\n", whole[len(rest) :][:1]}


@ways
def test_damage_in_the_last_line_costs_that_event_alone(way: Way) -> None:
    data = BEHIND.files[BEHIND.last_segment]
    begin = data.rindex(b"\n", 0, len(data) - 1) + 1
    for damaged in way(BEHIND.last_segment, data, 1):
        # Its newline is another matter.
        if begin <= damaged.place < len(data) - 6:
            found = BEHIND.outcome(damaged)
            assert isinstance(found, Recovered)
            assert found.state.seq == len(BEHIND.records) - 1
            named = damaged_files(found) == {base(BEHIND.last_segment)}
            assert named or between_lines(BEHIND, damaged)


def test_a_last_newline_that_is_another_byte_is_no_torn_end() -> None:
    data = BEHIND.files[BEHIND.last_segment]
    found = BEHIND.outcome(Damaged(BEHIND.last_segment, data[:-1] + b"x", len(data) - 1))
    assert isinstance(found, JournalCorruptError)
    assert base(found.path) == base(BEHIND.last_segment)


@pytest.mark.parametrize("end", [b"", b"\0" * 9, b"\n", b"\0" * 9 + b"\n", b"x", b"\n{"])
def test_what_comes_behind_the_last_line_loses_nothing(end: bytes) -> None:
    data = BEHIND.files[BEHIND.last_segment]
    found = BEHIND.outcome(Damaged(BEHIND.last_segment, data + end, len(data)))
    assert bool(assert_same(BEHIND, found).damage) is bool(end)


@pytest.mark.parametrize("data", [None, b""], ids=["gone", "empty"])
def test_a_file_that_is_gone_or_empty(data: bytes | None) -> None:
    *earlier, last = BEHIND.read_segments
    found = BEHIND.outcome(Damaged(last, data, 0))
    assert isinstance(found, Recovered)
    assert found.state.seq == BEHIND.first_in(last) - 1
    for name in earlier:
        assert isinstance(BEHIND.outcome(Damaged(name, data, 0)), JournalCorruptError)
    last = SNAPSHOT_OF_ALL.last_segment
    found = SNAPSHOT_OF_ALL.outcome(Damaged(last, data, 0))
    assert isinstance(found, JournalCorruptError)


@settings(deadline=None, max_examples=200)
@given(st.sampled_from([BEHIND, SNAPSHOT_OF_ALL]), st.data())
def test_damage_in_several_files_gives_a_state_that_was_or_is_refused(
    history: History, data: st.DataObject
) -> None:
    names = data.draw(st.lists(st.sampled_from(sorted(history.files)), unique=True, max_size=5))
    damaged = []
    for name in names:
        content = history.files[name]
        place = data.draw(st.integers(0, len(content) - 1))
        end = data.draw(st.integers(place, len(content)))
        between = data.draw(st.binary(max_size=9))
        changed = content[:place] + between + content[end:]
        damaged.append(Damaged(name, data.draw(st.sampled_from([changed, None])), place))
    history.outcome(*damaged)


@ways
def test_a_damaged_lease_is_nobodys_and_expires(way: Way) -> None:
    machine = Machine(FakeObjectStore())
    machine.start(ELSEWHERE)
    _, held = newest(machine.disk, LEASES)
    assert held is not None
    path = f"{LEASES}/{held.name}"
    luck = random.Random(0)
    for damaged in way(held.name, held.data, 1):
        assert damaged.data is not None
        machine.disk.write(path, damaged.data)
        epoch, found = newest(machine.disk, LEASES)
        assert epoch == held.epoch
        assert found is not None
        assert found.record == (held.record if damaged.data == held.data else None)
        if luck.random() < 0.02:
            other = Machine(FakeObjectStore())
            other.disk.write(path, damaged.data)
            assert other.start(HERE).epoch > held.epoch
