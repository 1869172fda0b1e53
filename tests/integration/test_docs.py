"""The code in the README and the docs runs as it stands there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from support.fits import finish, start

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)
CODE = {page: "\n".join(BLOCK.findall(page.read_text())) for page in PAGES}
WITH_CODE = [page for page in PAGES if CODE[page] and page.parent.name != "howto"]
"""Not the how-to pages: test_howto.py runs, stops and kills what they show."""

RUN = """
import os
import sys
from pathlib import Path
from support.session import local_ray

code = Path(sys.argv[1])
os.chdir(code.parent)
with local_ray():
    exec(compile(code.read_text(), code.name, "exec"), {"__name__": "__main__"})
"""


@pytest.mark.parametrize("page", WITH_CODE, ids=lambda page: page.name)
def test_the_code_of_a_page_runs(page: Path, workspace: Path) -> None:
    code = workspace / f"{page.stem}.py"
    code.write_text(CODE[page])
    finish(start(RUN, str(code), HOME=str(workspace)))


def test_a_link_to_a_file_leads_to_one() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
            assert "://" in target or (page.parent / target).exists(), f"{page.name}: {target}"
