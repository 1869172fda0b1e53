"""The types that users see."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_users_code_passes_mypy_strict() -> None:
    subprocess.run(
        [
            sys.executable,
            "-m",
            "mypy",
            f"--config-file={ROOT / 'pyproject.toml'}",
            str(Path(__file__).with_name("api.py")),
        ],
        check=True,
        cwd=ROOT,
    )
