"""Which program was audited."""

from dprecipe import __version__
from dprecipe.privacy.audit import program
from dprecipe.privacy.audit.program import digest_program, digest_sources, make_audit

PLAN = "sha256:" + "1" * 64


def test_the_digest_is_of_the_plan_the_version_and_the_sources():
    audit = make_audit(PLAN)
    assert audit.program == digest_program(PLAN, __version__, audit.sources)
    others = {
        digest_program("sha256:" + "2" * 64, __version__, audit.sources),
        digest_program(PLAN, "0.0.0", audit.sources),
        digest_program(PLAN, __version__, PLAN),
    }
    assert len(others) == 3
    assert audit.program not in others


def test_any_changed_moved_or_new_module_changes_the_digest_of_sources(tmp_path, monkeypatch):
    def digest(files):
        for old in tmp_path.rglob("*.py"):
            old.unlink()
        for name, content in files.items():
            (tmp_path / name).parent.mkdir(exist_ok=True)
            (tmp_path / name).write_text(content)
        digest_sources.cache_clear()
        return digest_sources()

    monkeypatch.setattr(program, "PACKAGE", tmp_path)
    try:
        cases = [{"a.py": "x"}, {"a.py": "y"}, {"b.py": "x"}, {"c/a.py": "x"}, {"a.py": "x", "b.py": ""}]
        digests = [digest(files) for files in cases]
        assert len({*digests}) == len(cases)
        (tmp_path / "note.txt").write_text("no module")
        digest_sources.cache_clear()
        assert digest_sources() == digests[-1]
    finally:
        digest_sources.cache_clear()
