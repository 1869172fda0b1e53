"""Drivers stop at every operation on the lease, and the next one gets it with a higher epoch."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
from support.leases import ELSEWHERE, HERE, LEASES, Machine

from raytrials.chaos.disk import FakeLocal, FakeObjectStore
from raytrials.chaos.fault import Faulty, Operation, Stopped, stop_at
from raytrials.errors import ExperimentLockedError, LeaseLostError
from raytrials.store.lease import EXPIRY_S, SETTLE_S, Lease
from raytrials.store.leasefile import newest

Fake = FakeLocal | FakeObjectStore


def keep_running(disk: Fake) -> None:
    """Nothing: it is frozen, or out of reach for good."""


def end_process(disk: Fake) -> None:
    if isinstance(disk, FakeLocal):
        disk.end_process()


def lose_power(disk: Fake) -> None:
    assert isinstance(disk, FakeLocal)
    disk.crash()


def lose_power_with_luck(seed: int) -> Callable[[Fake], None]:
    def lose(disk: Fake) -> None:
        assert isinstance(disk, FakeLocal)
        disk.crash(random.Random(seed))

    return lose


WAYS: dict[str, tuple[Callable[[], Fake], Callable[[Fake], None]]] = {
    "local, frozen": (FakeLocal, keep_running),
    "local, process": (FakeLocal, end_process),
    "local, power": (FakeLocal, lose_power),
    **{f"local, luck {n}": (FakeLocal, lose_power_with_luck(n)) for n in range(4)},
    "store, frozen": (FakeObjectStore, keep_running),
    "store, process": (FakeObjectStore, end_process),
}


def drive(machine: Machine, disk: Faulty, leases: list[Lease]) -> None:
    """A driver that takes the lease over from one that released it, renews it and lets it go."""
    leases.append(machine.start(HERE, disk=disk))
    for _ in range(2):
        machine.clock.now_s += 5
        leases[-1].renew()
    leases[-1].release()


def stops(make: Callable[[], Fake]) -> Iterator[tuple[Machine, list[Lease]]]:
    number = 0
    stopped = True
    while stopped:
        number += 1
        machine = Machine(make())
        leases = [machine.start(HERE)]
        leases[0].release()
        try:
            drive(machine, Faulty(machine.disk, before=[stop_at(number)]), leases)
            stopped = False
        except Stopped:
            pass
        yield machine, leases
    assert number > 20


@pytest.mark.parametrize(("make", "end"), WAYS.values(), ids=WAYS)
def test_a_stop_anywhere_keeps_the_next_driver_out_for_no_longer_than_the_expiry(
    make: Callable[[], Fake], end: Callable[[Fake], None]
) -> None:
    for machine, leases in stops(make):
        end(machine.disk)
        for process in (ELSEWHERE, replace(HERE, pid=102)):
            following = machine.start(process, wait_s=EXPIRY_S + 5)
            assert following.epoch > max(lease.epoch for lease in leases)
            assert following.is_valid()
            if end is keep_running:
                assert not any(lease.is_valid() for lease in leases)
            following.renew()
            leases.append(following)
            end(machine.disk)
        with contextlib.suppress(LeaseLostError):
            leases[-1].renew()


@pytest.mark.parametrize("make", [FakeLocal, FakeObjectStore])
def test_a_dead_driver_of_this_machine_is_not_waited_for(make: Callable[[], Fake]) -> None:
    for machine, _ in stops(make):
        end_process(machine.disk)
        machine.dead.add(HERE)
        found = newest(machine.disk, LEASES)[1]
        assert found is not None
        machine.start(replace(HERE, pid=102))
        if found.record is not None:  # else it does not say whose it is
            assert machine.waited_s == (0.0 if machine.disk.has_rename else SETTLE_S)


@pytest.mark.parametrize("make", [FakeLocal, FakeObjectStore])
@pytest.mark.parametrize("times", [1, 2])
def test_a_holder_that_comes_back_while_another_takes_over_leaves_one_at_most(
    make: Callable[[], Fake], times: int
) -> None:
    """The one that takes over halts before each operation, and the holder renews meanwhile."""
    number, met = 0, True
    while met:
        number += 1
        met = False
        machine = Machine(make())
        holder = machine.start(ELSEWHERE)

        def meet(operation: Operation, number: int = number, holder: Lease = holder) -> None:
            nonlocal met
            if operation.number == number:
                met = True
                for _ in range(times):
                    with contextlib.suppress(LeaseLostError):
                        holder.renew()

        disk = Faulty(machine.disk, before=[meet])
        taker: Lease | None = None
        with contextlib.suppress(ExperimentLockedError):
            taker = machine.start(HERE, disk=disk, wait_s=EXPIRY_S + 2)
        assert not (holder.is_valid() and taker is not None and taker.is_valid()), number
        if taker is not None:
            with pytest.raises(LeaseLostError):
                holder.renew()
    assert number > 30


@pytest.mark.parametrize("watched", [False, True], ids=["starts then", "has watched it"])
@pytest.mark.parametrize("make", [FakeLocal, FakeObjectStore])
def test_a_holder_that_halts_within_a_renewal_does_not_trust_it_after_a_takeover(
    make: Callable[[], Fake], watched: bool
) -> None:
    number, met = 0, True
    while met:
        number += 1
        met = False
        machine = Machine(make())
        taken: list[Lease] = []

        def halt(operation: Operation, number: int = number) -> None:
            nonlocal met
            if operation.number == number:
                met = True
                # One that has watched a lease that is the same yet needs only a moment more.
                same = watched and newest(machine.disk, LEASES)[1] == before  # noqa: B023
                expiry_s = 0.5 if same else EXPIRY_S
                taken.append(machine.start(HERE, wait_s=expiry_s + 5, expiry_s=expiry_s))  # noqa: B023

        disk = Faulty(machine.disk)
        holder = machine.start(ELSEWHERE, disk=disk)
        disk.operations.clear()
        before = newest(machine.disk, LEASES)[1]
        machine.clock.now_s += EXPIRY_S + 5 if watched else 5
        disk._before = [halt]
        with contextlib.suppress(LeaseLostError):
            holder.renew()
        for lease in taken:
            assert not holder.is_valid(), number
            lease.renew()
            assert lease.is_valid()
        machine.clock.now_s += 1
        if taken:
            with pytest.raises(LeaseLostError):
                holder.renew()
        holder.release()
        for lease in taken:
            lease.renew()
            with pytest.raises(ExperimentLockedError):
                machine.start(ELSEWHERE, wait_s=0)
    assert number > 3
