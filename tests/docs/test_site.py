"""`make docs` builds a site from the pages, and a dead link makes it fail."""

import re
import shutil
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
INDEX: Final = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")


def build(source: Path, target: Path) -> subprocess.CompletedProcess[str]:
    """Build the site as the Makefile does."""
    [line] = [line for line in (ROOT / "Makefile").read_text(encoding="utf-8").splitlines() if "-m sphinx" in line]
    _, _, options = line.partition("-m sphinx ")
    words = [sys.executable, "-m", "sphinx", *options.split()[:-2], str(source), str(target)]
    return subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)


def test_the_pages_are_a_site_with_search(tmp_path: Path) -> None:
    done = build(ROOT / "docs", tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "search" / "index.html").is_file()
    assert (tmp_path / "searchindex.js").is_file()
    front = (tmp_path / "index.html").read_text(encoding="utf-8")
    assert f"<title>Leasehold {version('leasehold')}</title>" in front
    assert "_static/copybutton.js" in front
    assert "<img" in front
    assert "_images/console-fleet.png" in front


def test_the_front_page_has_an_install_line_and_six_lines_of_code() -> None:
    """tests/docs/test_examples.py runs the code."""
    blocks = dict(re.findall(r"^```(sh|python)\n(.*?)^```", INDEX, re.MULTILINE | re.DOTALL))
    assert blocks["sh"].startswith("pip install ")
    assert len(blocks["python"].splitlines()) == 6


def test_a_page_of_the_reference_is_listed_once_under_its_reader() -> None:
    trees = re.findall(r"^:caption: ([^\n]*)\n:hidden:\n\n(.*?)\n```", INDEX, re.MULTILINE | re.DOTALL)
    groups = {caption: lines.split() for caption, lines in trees if caption.startswith("Reference: ")}
    readers = ["users of leases", "operators", "developers and internals"]
    assert list(groups) == [f"Reference: {each}" for each in readers]
    listed = sorted(name for names in groups.values() for name in names)
    assert listed == sorted(f"reference/{page.stem}" for page in (ROOT / "docs" / "reference").glob("*.md"))


def test_a_dead_link_and_a_dead_anchor_make_it_fail(tmp_path: Path) -> None:
    source = tmp_path / "docs"
    source.mkdir()
    shutil.copy(ROOT / "docs" / "conf.py", source)
    (source / "index.md").write_text("# Title\n\n[a](no-such-page.md) and [b](#no-such-heading)\n", encoding="utf-8")
    done = build(source, tmp_path / "site")
    assert done.returncode != 0
    assert "no-such-page" in done.stderr
    assert "no-such-heading" in done.stderr


def test_every_page_is_of_one_kind_and_the_index_leads_to_it() -> None:
    kinds = {"tutorial", "how-to", "reference", "explanation", "adr"}
    pages = {page.relative_to(ROOT / "docs") for page in (ROOT / "docs").rglob("*.md")}
    assert {str(page) for page in pages if page.parts[0] not in kinds} == {"index.md"}
    assert all(f"{kind}/*" in INDEX or kind in {"adr", "reference"} for kind in kinds)
