"""The rule about skipped tests, tried on small suites."""

import pytest

from tests import ci_rules

SKIPPED = "import pytest\ndef test_it():\n    pytest.skip('no server')\n"
SKIPPED_MODULE = "import pytest\npytest.skip('no server', allow_module_level=True)\n"
PASSED = "def test_it():\n    pass\n"
XFAILED = "import pytest\n@pytest.mark.xfail\ndef test_it():\n    assert False\n"
FAILED = "def test_it():\n    assert False\n"
ALLOWED = [f"import pytest\ndef test_it():\n    pytest.skip({reason!r})\n" for reason in sorted(ci_rules.ALLOWED)]


@pytest.fixture(autouse=True)
def without_other_plugins(monkeypatch: pytest.MonkeyPatch) -> None:
    """Disable other plugins, whose loading for each small suite would take seconds."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")


def run(pytester: pytest.Pytester, source: str) -> pytest.RunResult:
    pytester.makepyfile(source)
    return pytester.runpytest_inprocess("-p", "tests.ci_rules")


@pytest.mark.parametrize("source", [SKIPPED, SKIPPED_MODULE])
def test_a_skip_fails_the_run_in_ci(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, source: str) -> None:
    monkeypatch.setenv("CI", "true")
    result = run(pytester, source)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["*1 skipped: with CI set every test must run*"])


@pytest.mark.parametrize("source", [PASSED, XFAILED, *ALLOWED])
def test_without_a_skip_that_is_not_allowed_ci_passes(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, source: str
) -> None:
    monkeypatch.setenv("CI", "true")
    assert run(pytester, source).ret == pytest.ExitCode.OK


def test_a_failure_stays_a_failure(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI", "true")
    assert run(pytester, FAILED).ret == pytest.ExitCode.TESTS_FAILED


def test_elsewhere_a_skip_is_fine(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CI", raising=False)
    assert run(pytester, SKIPPED).ret == pytest.ExitCode.OK
