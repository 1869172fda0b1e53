"""Public test kit: a clock, a cluster and storage that break on plan, and what storage has to pass.

No Ray here, and nothing that product code may import. `conformance` is written for pytest, and does
not need it to be imported.
"""

from raytrials.chaos.clock import FakeClock
from raytrials.chaos.cluster import FakeCluster
from raytrials.store.location import disk_of

__all__ = ["FakeClock", "FakeCluster", "disk_of"]
