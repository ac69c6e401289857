"""What every test gets: a folder for temporary files that no other run of the tests looks into."""

import shutil
import tempfile
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session", autouse=True)
def _own_temporary_folder() -> Iterator[None]:
    """The lock of measurements lies there: tests that run side by side would refuse each other."""
    folder = tempfile.mkdtemp(prefix="apclab-")
    with pytest.MonkeyPatch.context() as changed:
        changed.setenv("TMPDIR", folder)
        changed.setattr(tempfile, "tempdir", folder)
        yield
    shutil.rmtree(folder, ignore_errors=True)
