"""What the chronicle of a driver does with its lease, and in which order things go on."""

from __future__ import annotations

import pytest
from support.leases import ELSEWHERE, HERE, Machine

from raytrials.chaos.disk import FakeLocal
from raytrials.core.event import DriverAttached, ExperimentCreated
from raytrials.driver.chronicle import Chronicle
from raytrials.errors import LeaseLostError
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
