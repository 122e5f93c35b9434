"""The libraries of other authors are the files whose hashes their page lists, and the assets of a page are small."""

import gzip
import hashlib
import re
from pathlib import Path

from leasehold.console.app import STATIC

VENDOR = STATIC / "vendor"
MOST_BYTES = 250_000


def test_the_vendored_files_are_those_of_the_list() -> None:
    listed = dict(
        re.findall(r"^\| `([^`]+)` \|.*`([0-9a-f]{64})` \|$", (VENDOR / "README.md").read_text(), re.MULTILINE)
    )
    found = {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in VENDOR.iterdir() if path.suffix != ".md"
    }
    assert found == listed
    assert {"htmx.LICENSE", "uplot.LICENSE"} < found.keys()


def test_all_assets_together_are_small() -> None:
    files = [path for path in STATIC.rglob("*") if path.suffix in {".js", ".css", ".svg"}]
    assert len(files) > 4
    assert sum(len(gzip.compress(path.read_bytes())) for path in files) < MOST_BYTES


def test_own_scripts_write_texts_only_as_texts() -> None:
    banned = re.compile(r"innerHTML\s*=|outerHTML\s*=|insertAdjacentHTML|document\.write|\beval\(|new Function")
    own = [path for path in STATIC.glob("*.js") if banned.search(path.read_text())]
    assert own == []


def test_the_wheel_contains_templates_and_assets() -> None:
    """Everything below the package is shipped; this names what must be there."""
    folder = Path(STATIC).parent
    assert {"layout.html", "login.html"} <= {path.name for path in (folder / "templates").iterdir()}
