"""`make test-all` must notice a browser test that did not run, whatever skipped it."""

import subprocess
import sys
from pathlib import Path

from tests import no_skipped_browser

SKIPS = """
import pytest

@pytest.fixture
def browser():
    pytest.skip("no browser here")

@pytest.mark.browser
def test_inside():
    pytest.skip("no browser here")

@pytest.mark.browser
def test_by_a_fixture(browser):
    pass

@pytest.mark.browser
@pytest.mark.skipif(True, reason="no browser here")
def test_by_a_mark():
    pass

def test_something_else():
    pytest.skip("this one may")
"""
SKIPS_AS_A_WHOLE = """
import pytest
pytest.importorskip("apclab_no_such_module")
pytestmark = pytest.mark.browser
"""


def test_every_kind_of_skip_fails(tmp_path: Path) -> None:
    plugin = Path(no_skipped_browser.__file__).read_text(encoding="utf-8")
    (tmp_path / "no_skipped_browser.py").write_text(plugin, encoding="utf-8")
    (tmp_path / "test_skips.py").write_text(SKIPS, encoding="utf-8")
    (tmp_path / "test_whole.py").write_text(SKIPS_AS_A_WHOLE, encoding="utf-8")
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = browser: x\n", encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-p", "no_skipped_browser", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*command, "--continue-on-collection-errors"], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.stdout.splitlines()[-1].strip("= ").startswith("1 failed, 1 skipped, 3 errors")
