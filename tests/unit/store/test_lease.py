"""One driver at a time has the lease: it is taken over from the dead at once, else in time."""

from __future__ import annotations

import contextlib
import errno
import logging
import threading
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import xxhash
from support.leases import ELSEWHERE, HERE, LEASES, SIBLING, Clock, Machine

from raytrials.chaos.disk import FakeLocal, FakeObjectStore
from raytrials.chaos.fault import Faulty, Operation, fail_when
from raytrials.errors import (
    ExperimentLockedError,
    LeaseExpiredError,
    LeaseLostError,
    NewerFormatError,
    StorageError,
)
from raytrials.store import lease as lease_module
from raytrials.store import retrying, tenure
from raytrials.store.disk import Disk
from raytrials.store.lease import EXPIRY_S, RENEW_S, SETTLE_S, Lease, LeaseKeeper
from raytrials.store.leasefile import Record, decode, digest_of, newest
from raytrials.store.local import LocalDisk

GOLDEN = Path(__file__).parents[2] / "golden" / "lease-v1"


@pytest.fixture(params=[FakeLocal, FakeObjectStore])
def machine(request: pytest.FixtureRequest) -> Machine:
    return Machine(request.param())


@pytest.fixture
def local() -> Machine:
    return Machine(FakeLocal())


def settled(machine: Machine) -> float:
    """How long even a start that finds nobody takes."""
    return 0.0 if machine.disk.has_rename else SETTLE_S


def record_of(machine: Machine) -> Record:
    found = newest(machine.disk, LEASES)[1]
    assert found is not None
    assert found.record is not None
    return found.record


def files(machine: Machine) -> dict[str, bytes]:
    names = machine.disk.list_names(LEASES)
    return {name: machine.disk.read(f"{LEASES}/{name}") for name in names}


# Taking it


def test_the_first_driver_gets_the_first_epoch_at_once(machine: Machine) -> None:
    lease = machine.start(HERE)
    assert lease.epoch == 1
    assert lease.is_valid()
    lease.check()
    assert machine.waited_s == settled(machine)
    assert record_of(machine).process == HERE


def test_an_epoch_is_higher_than_all_before_and_than_the_one_given(machine: Machine) -> None:
    for above, expected in ((0, 1), (0, 2), (7, 8), (3, 9)):
        lease = machine.start(epoch_above=above)
        assert lease.epoch == expected
        lease.release()


def test_what_older_leases_left_is_cleared_and_the_newest_stays(machine: Machine) -> None:
    for _ in range(3):
        machine.start().release()
    lease = machine.start()
    lease.renew()
    kinds = sorted(name.partition(".")[2] for name in files(machine))
    assert kinds == (["json", "lock"] if machine.disk.has_rename else ["json"])
    assert all(name.startswith("000004") for name in files(machine))


def test_a_released_lease_is_taken_over_at_once(machine: Machine) -> None:
    machine.start(ELSEWHERE).release()
    assert machine.start().epoch == 2
    assert machine.waited_s == settled(machine)


def test_a_lease_of_a_live_driver_is_waited_for_and_its_holder_is_named(machine: Machine) -> None:
    holder = machine.start(ELSEWHERE)
    machine.clock.meanwhile = holder.renew
    with pytest.raises(ExperimentLockedError, match="process 100 on other") as caught:
        machine.start(wait_s=60)
    assert caught.value.args == ("/experiment", "other", 100, 0, 60)
    assert machine.waited_s == 60
    assert holder.is_valid()
    with pytest.raises(ExperimentLockedError) as caught:
        machine.start(wait_s=0)
    assert caught.value.waited_s == 0


def test_a_lease_that_is_released_during_the_wait_is_taken_then(machine: Machine) -> None:
    holder = machine.start(ELSEWHERE)
    until_s = machine.clock.now_s + 12

    def meanwhile() -> None:
        (holder.renew if machine.clock.now_s < until_s else holder.release)()

    machine.clock.meanwhile = meanwhile
    assert machine.start().epoch == 2
    assert 12 <= machine.waited_s <= 13 + settled(machine)


def test_the_error_says_since_when_the_holder_did_nothing(machine: Machine) -> None:
    machine.start(ELSEWHERE)
    with pytest.raises(ExperimentLockedError, match="20 s ago"):
        machine.start(wait_s=20)


# Who is dead


def test_a_process_that_is_gone_is_taken_over_from_at_once(machine: Machine) -> None:
    machine.start(HERE)
    machine.dead.add(HERE)  # a child of it may still have the lock
    assert machine.start().epoch == 2
    assert machine.waited_s == settled(machine)


def test_a_container_that_restarts_with_the_same_pid_is_at_once_another(local: Machine) -> None:
    local.start(HERE)
    assert isinstance(local.disk, FakeLocal)
    local.disk.end_process()
    again = replace(HERE, pid_namespace="pid:[2] time:[1]", started=9000)
    assert local.start(again).epoch == 2
    assert local.waited_s == 0


def test_a_process_in_another_namespace_that_has_its_lock_is_alive(local: Machine) -> None:
    holder = local.start(replace(HERE, pid_namespace="pid:[2] time:[1]"))
    local.clock.meanwhile = holder.renew
    with pytest.raises(ExperimentLockedError):
        local.start()


@pytest.mark.parametrize(
    "process", [ELSEWHERE, replace(HERE, boot_id=None), replace(HERE, boot_id="another boot")]
)
def test_a_lock_says_nothing_of_another_machine_or_boot(local: Machine, process: Any) -> None:
    local.start(process)
    assert isinstance(local.disk, FakeLocal)
    local.disk.end_process()
    assert local.start().epoch == 2
    assert EXPIRY_S <= local.waited_s <= EXPIRY_S + 1


def test_a_lock_on_another_file_than_the_lease_says_is_no_sign_of_death(local: Machine) -> None:
    holder = local.start(HERE)
    local.disk.delete_file(f"{LEASES}/000001.lock")
    local.disk.write(f"{LEASES}/000001.lock", b"")
    local.clock.meanwhile = holder.renew
    with pytest.raises(ExperimentLockedError):
        local.start()


def test_without_locks_the_processes_decide(local: Machine, monkeypatch: Any) -> None:
    monkeypatch.setattr(FakeLocal, "hold", lambda *_: None)
    monkeypatch.setattr(FakeLocal, "is_held", lambda *_: None)
    local.start(HERE)
    assert record_of(local).lock is None
    with pytest.raises(ExperimentLockedError):
        local.start(wait_s=10)
    local.dead.add(HERE)
    assert local.start().epoch == 2


def test_a_lease_that_does_not_move_is_dead_by_the_readers_clock(machine: Machine) -> None:
    machine.start(ELSEWHERE)
    machine.clock.now_s += 1000  # not seen by anybody

    def jump() -> None:
        machine.clock.wall_s *= -2

    machine.clock.meanwhile = jump
    assert machine.start().epoch == 2
    assert EXPIRY_S <= machine.waited_s <= EXPIRY_S + 1 + settled(machine)


def test_each_renewal_that_is_seen_begins_the_wait_anew(machine: Machine) -> None:
    holder = machine.start(ELSEWHERE)
    renewals = iter([20.0, 40.0])
    due_s = [machine.clock.now_s + next(renewals)]
    began_s = machine.clock.now_s

    def meanwhile() -> None:
        if machine.clock.now_s >= due_s[0]:
            holder.renew()
            due_s[0] = began_s + next(renewals, 1e9)

    machine.clock.meanwhile = meanwhile
    assert machine.start(wait_s=100).epoch == 2
    assert 40 + EXPIRY_S <= machine.waited_s <= 42 + EXPIRY_S + settled(machine)


def test_one_who_froze_before_its_lease_was_written_is_not_waited_for_for_ever(
    local: Machine,
) -> None:
    local.start(ELSEWHERE).release()
    assert local.disk.hold(f"{LEASES}/000002.lock") is not None
    with pytest.raises(ExperimentLockedError, match="just started"):
        local.start(wait_s=20)
    assert local.start().epoch == 3
    assert local.waited_s <= EXPIRY_S + 1


def test_a_reader_that_freezes_with_what_it_has_read_does_not_judge_by_it(machine: Machine) -> None:
    holder = machine.start(ELSEWHERE)
    looks = []

    def freeze(operation: Operation) -> None:
        looks.append(operation)
        if len(looks) == 4:
            for _ in range(7):
                machine.clock.now_s += 5
                holder.renew()

    freezes = [lambda operation: operation.name == "read" and freeze(operation)]
    disk = Faulty(machine.disk, after=freezes)
    with pytest.raises(ExperimentLockedError):
        machine.start(HERE, disk=disk, wait_s=40)
    assert len(looks) > 4
    assert not {"create", "create_exclusive"} & {operation.name for operation in disk.operations}
    holder.check()


# Losing it


def test_a_holder_trusts_its_lease_only_as_long_as_it_renews(machine: Machine) -> None:
    lease = machine.start()
    for _ in range(10):
        machine.clock.now_s += EXPIRY_S - 3
        assert lease.is_valid()
        lease.renew()
    machine.clock.now_s += EXPIRY_S
    assert not lease.is_valid()
    with pytest.raises(LeaseExpiredError) as caught:
        lease.check()
    assert caught.value.args == ("/experiment", 1, 30)
    lease.renew()  # nobody took it over
    assert lease.is_valid()
    lease.check()


def test_a_renewal_counts_from_when_it_began(machine: Machine) -> None:
    def slow(operation: Operation) -> None:
        machine.clock.now_s += 5.0

    disk = Faulty(machine.disk)
    lease = machine.start(disk=disk)
    disk._after = [slow]
    began_s = machine.clock.now_s
    lease.renew()
    disk._after = []
    machine.clock.now_s = began_s + EXPIRY_S - 0.1
    assert lease.is_valid()
    machine.clock.now_s = began_s + EXPIRY_S
    assert not lease.is_valid()


def test_a_frozen_holder_that_thaws_after_a_takeover_writes_nothing(machine: Machine) -> None:
    frozen = machine.start(ELSEWHERE)
    new = machine.start(HERE)
    assert not frozen.is_valid()
    before = files(machine)
    for _ in range(2):
        with pytest.raises(LeaseLostError, match="process 100 on host") as caught:
            frozen.renew()
        assert caught.value.args == ("/experiment", 1, 2, "host", 100)
        with pytest.raises(LeaseLostError):
            frozen.check()
    frozen.release()
    assert files(machine) == before
    assert new.is_valid()
    new.renew()


def test_a_driver_that_lost_its_lease_lets_a_later_one_start_at_once(machine: Machine) -> None:
    frozen = machine.start(ELSEWHERE)
    machine.start(HERE).release()
    frozen.release()
    assert machine.start().epoch == 3
    assert machine.waited_s == settled(machine)


def test_a_lease_that_was_deleted_is_lost(machine: Machine) -> None:
    lease = machine.start()
    machine.disk.delete_tree(LEASES)
    machine.disk.make_directory(LEASES)
    with pytest.raises(LeaseLostError, match="nobody"):
        lease.renew()
    assert not lease.is_valid()
    assert files(machine) == {}


def test_a_lease_that_was_replaced_by_one_of_the_same_epoch_is_lost(local: Machine) -> None:
    lease = local.start(HERE)
    local.disk.delete_tree(LEASES)
    other = local.start(SIBLING)
    assert other.epoch == lease.epoch
    with pytest.raises(LeaseLostError, match="process 101 on host"):
        lease.renew()
    other.renew()


def test_a_newer_release_can_take_over(machine: Machine) -> None:
    lease = machine.start(ELSEWHERE)
    new = machine.start(HERE)
    name = next(name for name in files(machine) if name.endswith(".json"))
    machine.disk.write(f"{LEASES}/{name}", newer(files(machine)[name]))
    with pytest.raises(LeaseLostError, match="another driver"):
        lease.renew()
    assert new.epoch == 2


def test_a_released_lease_is_not_renewed_any_more(machine: Machine) -> None:
    lease = machine.start()
    lease.release()
    before = files(machine)
    lease.renew()
    lease.release()
    assert files(machine) == before
    assert not lease.is_valid()
    with pytest.raises(LeaseLostError, match="released"):
        lease.check()


# Files that are not whole


@pytest.mark.parametrize("data", [b"", b"{", b"\xff" * 50, b"[1]", b"null", b'{"digest":1}'])
def test_a_lease_that_is_torn_is_alive_until_it_has_not_changed_for_long(
    machine: Machine, data: bytes
) -> None:
    machine.start(ELSEWHERE)
    name = next(name for name in files(machine) if name.endswith(".json"))
    machine.disk.write(f"{LEASES}/{name}", data)
    with pytest.raises(ExperimentLockedError, match="just started"):
        machine.start(wait_s=20)
    assert machine.start().epoch == 2
    assert EXPIRY_S <= machine.waited_s <= EXPIRY_S + 1 + settled(machine)


RECORD = Record(3, "0123456789abcdef", HERE, "2049:131", counter=7)


def newer(data: bytes) -> bytes:
    body = data.replace(b'"v":1', b'"v":2').rpartition(b',"digest":')[0] + b"}"
    return body[:-1] + f',"digest":"{digest_of(body)}"}}\n'.encode()


def test_a_lease_reads_back() -> None:
    for record in (RECORD, replace(RECORD, lock=None, released=True, held=False)):
        assert decode(record.encode()) == record
    unknown = replace(HERE, boot_id=None, pid_namespace=None, started=None, host="Ünïcödé\ud800")
    assert decode(replace(RECORD, process=unknown).encode()) == replace(RECORD, process=unknown)


def test_a_lease_with_any_byte_changed_is_not_whole() -> None:
    data = RECORD.encode()
    for position in range(len(data)):
        for mask in (1, 2, 4, 8, 16, 32, 64, 128, 255):
            changed = bytearray(data)
            changed[position] ^= mask
            assert decode(bytes(changed)) is None, (position, mask)


def test_a_lease_that_is_cut_or_longer_is_not_whole() -> None:
    data = RECORD.encode()
    for length in range(len(data)):
        assert decode(data[:length]) is None
        assert decode(data[length + 1 :]) is None
    for more in (b"\n", b" ", data, b"\0"):
        assert decode(data + more) is None


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"epoch":3', b'"epoch":"3"'),
        (b'"pid":100', b'"pid":true'),
        (b'"counter":7', b'"counter":7.0'),
        (b'"v":1', b'"v":true'),
        (b'"released":false', b'"more":false'),
    ],
)
def test_a_lease_with_other_fields_is_not_whole(old: bytes, new: bytes) -> None:
    body = RECORD.encode().replace(old, new).rpartition(b',"digest":')[0] + b"}"
    assert decode(body[:-1] + f',"digest":"{digest_of(body)}"}}\n'.encode()) is None


def test_a_lease_under_the_name_of_another_is_not_whole(local: Machine) -> None:
    local.start(ELSEWHERE)
    local.disk.write(f"{LEASES}/000002.json", local.disk.read(f"{LEASES}/000001.json"))
    found = newest(local.disk, LEASES)[1]
    assert found is not None
    assert found.record is None


def test_a_newer_version_is_refused_and_left_alone(machine: Machine) -> None:
    machine.start(ELSEWHERE)
    name = next(name for name in files(machine) if name.endswith(".json"))
    machine.disk.write(f"{LEASES}/{name}", newer(files(machine)[name]))
    before = files(machine)
    with pytest.raises(NewerFormatError, match="lease has version 2"):
        machine.start()
    assert files(machine) == before


def test_files_of_others_are_left_alone(machine: Machine) -> None:
    machine.disk.make_directory(LEASES)
    machine.disk.write(f"{LEASES}/notes.txt", b"x")
    machine.start().release()
    machine.start()
    assert files(machine)["notes.txt"] == b"x"


def test_the_golden_lease_reads_back_and_is_written_the_same() -> None:
    data = (GOLDEN / "000003.json").read_bytes()
    assert decode(data) == RECORD
    assert RECORD.encode() == data
    head, _, tail = data.rpartition(b',"digest":"')
    assert tail == xxhash.xxh64_hexdigest(head + b"}").encode() + b'"}\n'
    found = newest(LocalDisk(), str(GOLDEN))[1]
    assert found is not None
    assert found.record == RECORD


# Storage that fails


@pytest.fixture
def no_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trying again takes no time."""
    clock = Clock()
    monkeypatch.setattr(retrying, "time", clock)


@pytest.mark.usefixtures("no_waits")
def test_a_renewal_outlasts_a_moment_and_gives_up_soon(machine: Machine) -> None:
    disk = Faulty(machine.disk)
    lease = machine.start(disk=disk)
    disk._before = [fail_when(lambda _: True, OSError(errno.EIO, "down"), times=2)]
    lease.renew()
    disk._before = [fail_when(lambda _: True, OSError(errno.EIO, "down"))]
    began_s = retrying.time.monotonic()
    with pytest.raises(StorageError, match="down"):
        lease.renew()
    assert retrying.time.monotonic() - began_s <= tenure.RENEW_LIMIT_S
    assert lease.is_valid()
    lease.release()  # no error
    disk._before = []
    assert not lease.is_valid()


@pytest.mark.usefixtures("no_waits")
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("name", ["create_exclusive", "write", "close", "sync", "list_names"])
def test_a_lease_is_taken_through_moments_of_failure(
    machine: Machine, name: str, when: str
) -> None:
    fault = fail_when(lambda operation: operation.name == name, OSError(errno.EIO, "x"), times=2)
    # What it may leave half written is waited for, as it could be of another.
    lease = machine.start(HERE, disk=Faulty(machine.disk, **{when: [fault]}), wait_s=100)
    assert lease.is_valid()
    assert lease.epoch == newest(machine.disk, LEASES)[0]


# Two at a time


@pytest.mark.parametrize(
    ("nonce", "held", "wins"),
    [("a", False, False), ("c", False, True), ("c", True, False)],
)
def test_of_two_that_write_on_a_store_one_wins(
    nonce: str, held: bool, wins: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease_module.secrets, "token_hex", lambda _: "b" * 16)
    machine = Machine(FakeObjectStore())
    other = Record(1, nonce * 16, ELSEWHERE, None, held=held)

    def write(operation: Operation) -> None:
        if operation.name == "create":  # it has listed, and saw nobody
            machine.disk.write(f"{LEASES}/000001-{other.nonce}.json", other.encode())

    disk = Faulty(machine.disk, before=[write])
    if wins:
        lease = machine.start(HERE, disk=disk, wait_s=0)
        assert lease.is_valid()
        assert record_of(machine).process == HERE
        return
    with pytest.raises(ExperimentLockedError, match="process 100 on other"):
        machine.start(HERE, disk=disk, wait_s=10)
    assert set(files(machine)) == {f"000001-{other.nonce}.json"}


def test_one_who_is_held_on_a_store_keeps_it_whatever_the_nonce(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    nonces = iter(["b" * 16, "a" * 16])
    monkeypatch.setattr(lease_module.secrets, "token_hex", lambda _: next(nonces))
    machine = Machine(FakeObjectStore())
    holder = machine.start(HERE)
    # It listed before the holder wrote, and writes only now.
    late = replace(RECORD, epoch=1, nonce="a" * 16, held=False)
    machine.disk.write(f"{LEASES}/000001-{late.nonce}.json", late.encode())
    assert record_of(machine).process == HERE
    holder.renew()
    assert holder.is_valid()


@pytest.mark.parametrize("kind", [FakeLocal, FakeObjectStore])
@pytest.mark.parametrize("frozen_s", [0.0, EXPIRY_S + 1])
def test_whatever_another_does_in_between_at_most_one_trusts_its_lease(
    kind: Callable[[], Disk], frozen_s: float
) -> None:
    """One driver halts before each of its operations, and another starts to its end meanwhile."""
    number, interrupted, taken = 0, True, 0
    while interrupted:
        number += 1
        interrupted = False
        machine = Machine(kind())
        others: list[Lease] = []

        def interrupt(operation: Operation, number: int, machine: Machine, others: Any) -> None:
            nonlocal interrupted
            if operation.number == number:
                interrupted = True
                machine.clock.now_s += frozen_s
                with contextlib.suppress(ExperimentLockedError):
                    others.append(machine.start(ELSEWHERE, wait_s=frozen_s))

        hook = partial(interrupt, number=number, machine=machine, others=others)
        disk = Faulty(machine.disk, before=[hook])
        first: Lease | None = None
        for step in ("acquire", "renew", "renew", "release"):
            try:
                if step == "acquire":
                    first = machine.start(HERE, disk=disk, wait_s=0)
                elif first is not None:
                    getattr(first, step)()
            except (ExperimentLockedError, LeaseLostError):
                pass
            valid = [lease for lease in (first, *others) if lease is not None and lease.is_valid()]
            assert len(valid) <= 1, (number, step)
        for lease in others:
            taken += 1
            assert first is None or lease.epoch > first.epoch or not lease.is_valid()
    assert number > 15
    assert taken > 3


# Keeping it


def wait_for(condition: Callable[[], object]) -> None:
    for _ in range(2000):
        if condition():
            return
        threading.Event().wait(0.005)
    raise AssertionError("it did not happen")


def test_a_keeper_renews_until_it_is_closed(machine: Machine) -> None:
    lease = machine.start()
    keeper = LeaseKeeper(lease, renew_s=0.001)
    wait_for(lambda: record_of(machine).counter > 5)
    keeper.close()
    counter = record_of(machine).counter
    assert not keeper._thread.is_alive()
    assert record_of(machine).counter == counter
    assert not lease.is_lost
    assert keeper._thread.daemon
    keeper.close()


def test_who_is_waited_for_is_told_once(machine: Machine, caplog: pytest.LogCaptureFixture) -> None:
    machine.start(ELSEWHERE)
    with caplog.at_level(logging.WARNING):
        machine.start(HERE)
    (told,) = [one.getMessage() for one in caplog.records if "Waiting" in one.getMessage()]
    assert told == (
        "Waiting up to 60 s for the lease of /experiment, which process 100 on other has."
    )


def test_a_keeper_remembers_that_the_lease_was_lost(machine: Machine) -> None:
    lease = machine.start(ELSEWHERE)
    machine.start(HERE)
    keeper = LeaseKeeper(lease, renew_s=0.001)
    wait_for(lambda: lease.is_lost)
    with pytest.raises(LeaseLostError) as lost:
        lease.check()
    assert lost.value.holder_epoch == 2
    keeper.close()


@pytest.mark.usefixtures("no_waits")
def test_a_keeper_outlasts_a_storage_that_fails(
    machine: Machine, caplog: pytest.LogCaptureFixture
) -> None:
    disk = Faulty(machine.disk)
    lease = machine.start(disk=disk)
    disk._before = [fail_when(lambda _: True, OSError(errno.EIO, "down"), times=30)]
    with caplog.at_level(logging.WARNING):
        keeper = LeaseKeeper(lease, renew_s=0.001)
        wait_for(lambda: record_of(machine).counter > 5)
        keeper.close()
    assert "Lease not renewed" in caplog.text
    assert not lease.is_lost


def test_a_keeper_is_quick_enough_for_its_lease() -> None:
    assert 3 * (RENEW_S + 2 * tenure.RENEW_LIMIT_S) < EXPIRY_S


def test_a_full_disk_does_not_keep_a_lease_from_being_renewed(local: Machine) -> None:
    full = OSError(errno.ENOSPC, "No space left on device")
    beside = fail_when(lambda one: one.name == "write" and one.path.endswith(".partial"), full)
    lease = local.start(disk=Faulty(local.disk, before=[beside]))
    counter = record_of(local).counter
    lease.renew()
    assert record_of(local).counter == counter + 1
    assert not [one for one in local.disk.list_names(LEASES) if one.endswith(".partial")]
