"""Public test kit: what breaks on plan, what storage has to pass, and the oracle of a run.

No Ray here, and nothing that product code may import. `conformance` is written for pytest, and does
not need it to be imported.
"""

from raytrials.chaos.clock import FakeClock
from raytrials.chaos.cluster import FakeCluster
from raytrials.store.location import disk_of

__all__ = ["FakeClock", "FakeCluster", "disk_of"]
