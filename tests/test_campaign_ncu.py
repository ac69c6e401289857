"""ncu's CSV in both forms, and each reason why there is none. The text is made up in its forms."""

import shutil
import subprocess
from typing import Any

import pytest

from apclab.campaign import Settings, ncu

LONG = """==PROF== Connected to process 123 (/usr/bin/python3)
hello from the program
==PROF== Profiling "decode_kernel" - 0: 0%....50%....100% - 1 pass
==PROF== Disconnected from process 123
"ID","Process ID","Process Name","Host Name","Kernel Name","Context","Stream","Block Size",\
"Grid Size","Device","CC","Section Name","Metric Name","Metric Unit","Metric Value"
"0","123","python3","127.0.0.1","decode_kernel","1","7","(128, 1, 1)","(4000, 1, 1)","0","9.0",\
"Command line profiler metrics","dram__bytes_read.sum","byte","635,904,000"
"1","123","python3","127.0.0.1","decode_kernel","1","7","(128, 1, 1)","(4000, 1, 1)","0","9.0",\
"Command line profiler metrics","dram__bytes_read.sum","Mbyte","640.5"
"2","123","python3","127.0.0.1","decode_kernel","1","7","(128, 1, 1)","(4000, 1, 1)","0","9.0",\
"Command line profiler metrics","dram__bytes_read.sum","Kbyte","96,000.25"
"3","123","python3","127.0.0.1","decode_kernel","1","7","(128, 1, 1)","(4000, 1, 1)","0","9.0",\
"Command line profiler metrics","dram__bytes_read.sum","Gbyte","0.1"
"""
WIDE = """==PROF== Connected to process 9 (/usr/bin/python3)
"ID","Process ID","Process Name","Host Name","Kernel Name","Context","Stream","Block Size",\
"Grid Size","Device","CC","dram__bytes_read.sum","lts__t_sector_hit_rate.pct"
"","","","","","","","block","block","","","Mbyte","%"
"0","9","python3","127.0.0.1","decode_kernel","1","7","(128, 1, 1)","(4000, 1, 1)","0","8.0",\
"635.9","1.25"
"1","9","python3","127.0.0.1","decode_kernel","1","7","(128, 1, 1)","(4000, 1, 1)","0","8.0",\
"n/a","84.5"
==WARNING== something
"""


def test_a_row_a_metric() -> None:
    found = ncu.read_csv(LONG)
    assert [one.value for one in found] == [635_904_000, 640.5e6, 96_000_250, 1e8]
    assert {one.kernel for one in found} == {"decode_kernel"}
    assert {one.metric for one in found} == {"dram__bytes_read.sum"}


def test_a_column_a_metric() -> None:
    assert ncu.read_csv(WIDE) == [
        ("decode_kernel", "dram__bytes_read.sum", 635.9e6),
        ("decode_kernel", "lts__t_sector_hit_rate.pct", 1.25),
        ("decode_kernel", "lts__t_sector_hit_rate.pct", 84.5),
    ]


@pytest.mark.parametrize("text", ["", "==ERROR== nothing\n", '"ID"\n', '"ID","Kernel Name"\n'])
def test_nothing_to_read(text: str) -> None:
    assert ncu.read_csv(text) == []


def test_the_last_launch_of_each_case_counts() -> None:
    assert ncu.by_case(ncu.read_csv(LONG)) == [
        {"metric": "dram__bytes_read.sum", "case": "private", "value": 640.5e6},
        {"metric": "dram__bytes_read.sum", "case": "shared", "value": 1e8},
    ]
    with pytest.raises(ncu.NotCounted, match="ncu saw 3 launches"):
        ncu.by_case(ncu.read_csv(LONG)[:3])


def test_caches_and_clocks_are_left_alone_and_one_metric_is_asked() -> None:
    words = ncu.command("ncu", "dram__bytes_read.sum", Settings())
    for option, value in (
        ("--cache-control", "none"), ("--clock-control", "none"),
        ("--metrics", "dram__bytes_read.sum"),
    ):  # fmt: skip
        assert words[words.index(option) + 1] == value
    assert "apclab.campaign.profiled" in words


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ("==ERROR== ERR_NVGPUCTRPERM - The user does not have permission", "NVreg_Restrict"),
        ("==ERROR== No kernels were profiled.", "status 1.: ==ERROR== No kernels"),
        ("", "it said nothing"),
        ("Traceback\nRuntimeError: no GPU", "no GPU"),
    ],
)
def test_why_nothing_was_counted(monkeypatch: pytest.MonkeyPatch, said: str, words: str) -> None:
    def answer(argv: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess(argv, 1, said, "")

    monkeypatch.setattr(shutil, "which", lambda _name: "/usr/bin/ncu")
    monkeypatch.setattr(subprocess, "run", answer)
    with pytest.raises(ncu.NotCounted, match=words):
        ncu.count_bytes("dram__bytes_read.sum", Settings(), timeout_s=1.0)


def test_without_ncu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda _name: None)
    with pytest.raises(ncu.NotCounted, match="ncu is not on the PATH"):
        ncu.count_bytes("x", Settings(), timeout_s=1.0)


def test_a_run_that_takes_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    def late(argv: list[str], **_: Any) -> None:
        raise subprocess.TimeoutExpired(argv, 1.0)

    monkeypatch.setattr(shutil, "which", lambda _name: "/usr/bin/ncu")
    monkeypatch.setattr(subprocess, "run", late)
    with pytest.raises(ncu.NotCounted, match="ncu was not done after 1 s"):
        ncu.count_bytes("x", Settings(), timeout_s=1.0)
