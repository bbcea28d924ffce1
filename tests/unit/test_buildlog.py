"""What a compiler's output says."""

from __future__ import annotations

import io

import pytest
from ansible_collections.modelarts.engine.plugins.module_utils import buildlog

from modelarts_engine.progress import Progress

NINJA = "[1/9] Building CXX a.o\n[2/9] Building CXX b.o\nwarning: x\n"
MAKE = "-- Configuring done\n[ 50%] Building CXX object a.o\n[100%] Linking CXX shared library\n"


@pytest.mark.parametrize(
    ("text", "line", "share"),
    [
        (NINJA, "[2/9] Building CXX b.o", 2 / 9),
        (MAKE, "[100%] Linking CXX shared library", 1.0),
        ("no progress here\n", "", None),
        ("array[3] = {1/2}\n", "", None),
    ],
)
def test_progress_is_the_compilers_own(text: str, line: str, share: float | None) -> None:
    assert buildlog.progress(text) == line
    assert buildlog.share(line) == share


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (f"{NINJA}a.cu:3:1: error: expected ';'\n1 error generated.\n", "a.cu:3:1: error: expected ';'"),
        ("c++: fatal error: Killed signal terminated program cc1plus\n", "fewer jobs"),
        ("FAILED: a.o \nsh -c 'x'\nKilled\nninja: build stopped\n", "fewer jobs"),
        ("nvcc error   : 'cicc' died due to signal 9 (Kill signal)\n", "fewer jobs"),
        ("dd: error writing '/x': No space left on device\n", "the disk is full"),
        ("ld: a.o: undefined reference to `foo[abi:cxx11]'\n", "C++ ABIs"),
        ("fatal: unable to access: SSL certificate problem: unable to get local issuer\n", "image_build_ca_bundle"),
        ("fatal: unable to access 'https://x/': Could not resolve host: x\n", "could not be reached"),
        ("noise\nrefused: the tag was moved\nTraceback\nerror: exit 1\n", "the tag was moved"),
        ("only this\n", "only this"),
    ],
)
def test_a_failure_is_explained(text: str, said: str) -> None:
    assert said in buildlog.explain(text)


def test_a_refusal_stands_alone() -> None:
    assert buildlog.explain("error: x\nrefused: no\nerror: y\n") == "no"


def test_flags_are_no_errors() -> None:
    log = "c++ -Werror -c a.cc\nc++ -Wno-error b.cc\na.cc:1: error: real\n"
    assert buildlog.explain(log) == "a.cc:1: error: real"


def test_the_runner_shows_a_line_for_each_tenth_where_there_is_no_terminal() -> None:
    stream = io.StringIO()
    shown = Progress("triton", stream)
    for number in range(1, 31):
        shown.said(f"[{number}/30] Building CXX {number}.o")
    shown.said("[100%] Built target")
    shown.said("TASK [something else]")
    lines = stream.getvalue().splitlines()
    assert lines[:2] == ["triton     [1/30] Building CXX 1.o", "triton     [3/30] Building CXX 3.o"]
    assert lines[-1] == "triton     [30/30] Building CXX 30.o"
    assert len(lines) == 11
