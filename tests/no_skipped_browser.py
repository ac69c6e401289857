"""Plugin of `make test-all`: a browser test that is skipped fails, so that CI cannot lose one."""

from collections.abc import Generator
from pathlib import Path

import pytest


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Turn the skip of a test that is marked `browser` into a failure."""
    report = yield
    if report.skipped and item.get_closest_marker("browser"):
        report.outcome = "failed"
        report.longrepr = f"a browser test may not be skipped here: {report.longrepr}"
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """The same for a module of browser tests that skips itself as a whole."""
    report = yield
    if report.skipped and "mark.browser" in Path(collector.path).read_text(encoding="utf-8"):
        report.outcome = "failed"
        report.longrepr = f"browser tests may not be skipped here: {report.longrepr}"
    return report
