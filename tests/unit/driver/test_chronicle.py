"""What the chronicle of a driver does with its lease, and in which order things go on."""

from __future__ import annotations

import contextlib
import errno
import os

import pytest
from support.leases import ELSEWHERE, HERE, Machine

from raytrials import settings
from raytrials.chaos.disk import FakeLocal
from raytrials.chaos.fault import Faulty, Operation
from raytrials.core.event import DriverAttached, ExperimentCreated
from raytrials.driver.chronicle import Chronicle
from raytrials.errors import LeaseLostError, StorageError
from raytrials.store.disk import Disk
from raytrials.store.lease import Lease
from raytrials.store.tenure import EXPIRY_S

CREATED = ExperimentCreated("id", "experiment", 1, {})
ATTACHED = DriverAttached("host", 1, 4, None, None, None, {}, ())


@pytest.fixture
def machine() -> Machine:
    return Machine(FakeLocal())


def opened(machine: Machine) -> tuple[Chronicle, Lease]:
    lease = machine.start(HERE)
    chronicle = Chronicle(
        machine.disk, "/experiment", lease, clock=machine.clock, in_background=False
    )
    chronicle.open()
    chronicle.record(CREATED)
    return chronicle, lease


def files(disk: Disk) -> dict[str, bytes]:
    return {name: disk.read(f"/experiment/{name}") for name in disk.list_files("/experiment")}


def test_all_who_ask_between_two_ticks_get_the_same_answer(machine: Machine) -> None:
    chronicle, _ = opened(machine)
    first = chronicle.record(ATTACHED)
    assert not chronicle.is_durable(first)
    assert chronicle.settle()
    # Durable by now; but one who asked before, and waits, was there first.
    assert not chronicle.is_durable(first)
    chronicle.tick(dict)
    assert chronicle.is_durable(first)


def test_events_carry_the_epoch_of_the_lease(machine: Machine) -> None:
    machine.start(HERE).release()
    chronicle, lease = opened(machine)
    assert lease.epoch == chronicle.state.epoch == 2


def test_a_lease_that_expired_holds_up_what_waits_until_it_is_renewed(machine: Machine) -> None:
    chronicle, lease = opened(machine)
    chronicle.tick(dict)
    seq = chronicle.record(ATTACHED)
    machine.clock.now_s += EXPIRY_S
    before = files(machine.disk)
    chronicle.await_durable(seq)
    chronicle.tick(dict)
    assert not chronicle.is_durable(seq)
    assert files(machine.disk) == before
    lease.renew()
    chronicle.tick(dict)
    assert chronicle.is_durable(seq)


def test_a_lease_that_is_lost_ends_the_driver_with_nothing_written(machine: Machine) -> None:
    chronicle, lease = opened(machine)
    chronicle.record(ATTACHED)
    chronicle.settle()
    assert isinstance(machine.disk, FakeLocal)
    machine.clock.now_s += EXPIRY_S
    machine.start(ELSEWHERE)
    with pytest.raises(LeaseLostError):
        lease.renew()
    before = files(machine.disk)
    with pytest.raises(LeaseLostError):
        chronicle.tick(dict)
    chronicle.tick(dict)  # the clean-up comes here again
    assert not chronicle.settle()
    assert not chronicle.close("too late")
    assert files(machine.disk) == before


@pytest.mark.parametrize("renewed", ["never", "from time to time", "at last"])
def test_a_storage_that_refuses_for_good_ends_the_driver_also_when_its_lease_expired(
    renewed: str,
) -> None:
    refuses = False

    def refuse(operation: Operation) -> None:
        if refuses and (renewed != "from time to time" or "/lease" not in operation.path):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), operation.path)

    machine = Machine(Faulty(FakeLocal(), before=[refuse]))
    chronicle, lease = opened(machine)
    refuses = True
    chronicle.await_durable(chronicle.record(ATTACHED))
    for _ in range(int(settings.STORAGE_RETRY_S.get())):
        machine.clock.now_s += 1
        with contextlib.suppress(StorageError):
            lease.renew()
        chronicle.tick(dict)
    machine.clock.now_s += 1
    if renewed == "at last":
        refuses = False
        lease.renew()
        chronicle.tick(dict)
        assert chronicle.settle()
        return
    with pytest.raises(StorageError) as raised:
        chronicle.tick(dict)
    assert raised.value.kind == "forbidden"
    chronicle.tick(dict)  # the clean-up comes here again
    assert not chronicle.settle()


def test_a_storage_that_refused_and_does_not_answer_now_is_waited_for() -> None:
    errors: list[OSError] = []

    def fail(operation: Operation) -> None:
        if errors:
            raise errors[-1]

    machine = Machine(Faulty(FakeLocal(), before=[fail]))
    chronicle, lease = opened(machine)
    errors.append(PermissionError(errno.EACCES, os.strerror(errno.EACCES)))
    chronicle.await_durable(chronicle.record(ATTACHED))
    chronicle.tick(dict)
    errors.append(TimeoutError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT)))
    machine.clock.now_s += EXPIRY_S
    with pytest.raises(StorageError):
        lease.renew()
    for _ in range(100):
        machine.clock.now_s += 1
        chronicle.tick(dict)
    errors.clear()
    lease.renew()
    chronicle.tick(dict)
    assert chronicle.settle()
