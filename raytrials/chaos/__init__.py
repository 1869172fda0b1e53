"""Public test kit: storage that breaks on plan, what it has to pass, and the oracle of a run.

No Ray here, and nothing that product code may import. `conformance` is written for pytest, and does
not need it to be imported.
"""

from raytrials.store.location import disk_of

__all__ = ["disk_of"]
