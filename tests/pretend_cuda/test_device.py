"""The pretended device keeps CUDA's rules: the cases of `cases/`, each in a process of its kind."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.pretend_cuda import child, guard
from tests.pretend_cuda.child import needs_device, run_tests
from tests.pretend_cuda.roads import Settings

CASES = Path(__file__).parent / "cases"


@pytest.mark.slow
@needs_device
def test_the_device_keeps_the_rules(tmp_path: Path) -> None:
    """By the plugin alone, as a developer has it; the processes that a test starts have the device too."""
    cases = [str(CASES / f"{name}.py") for name in ("device", "two_devices")]
    run_tests(tmp_path, *cases, settings=Settings(devices=2, current=1), plugin=True, least=48)


@pytest.mark.slow
@needs_device
def test_shapes_alone(tmp_path: Path) -> None:
    settings = Settings(backing="meta", mib=80 << 10)
    run_tests(tmp_path, str(CASES / "shapes.py"), settings=settings, least=2)


def test_what_fails_or_is_skipped_did_not_pass(tmp_path: Path) -> None:
    report = tmp_path / "report.xml"
    report.write_text(
        "<testsuites><testsuite><testcase name='a'/><testcase name='b'><skipped message='no device'/></testcase>"
        "<testcase name='c'><failure message='wrong'>trace</failure></testcase></testsuite></testsuites>"
    )
    assert child.find_failures(report) == {"b": "skipped: no device\n", "c": "failure: wrong\ntrace"}


def test_where_it_can_t_be_it_says_why(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(guard, "find_torch", lambda: tmp_path)
    monkeypatch.setattr(sys, "platform", "linux")
    (tmp_path / "version.py").write_text("cuda: str | None = None\n")
    monkeypatch.setattr(guard, "COMPILER", "no-such-compiler")
    assert "there is no no-such-compiler" in str(guard.explain_absence())
    (tmp_path / "version.py").write_text("cuda: str | None = '13.0'\n")
    assert "built for CUDA" in str(guard.explain_absence())
    monkeypatch.setattr(guard, "find_torch", lambda: None)
    assert "not installed" in str(guard.explain_absence())
    monkeypatch.setattr(sys, "platform", "darwin")
    assert "Linux alone" in str(guard.explain_absence())
    with pytest.raises(ImportError, match="Linux alone"):
        guard.load(1, 0)
