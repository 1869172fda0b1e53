"""Public test kit: a clock and storage that break on plan, and what storage has to pass.

No Ray here, and nothing that product code may import. `conformance` is written for pytest, and does
not need it to be imported.
"""

from raytrials.chaos.clock import FakeClock
from raytrials.store.location import disk_of

__all__ = ["FakeClock", "disk_of"]
