"""The drawings of docs/explanation/architecture.md are those of the code."""

import ast
from pathlib import Path

from examples.draw_architecture import FOLDER, PACKAGES, ROOMS, ROOTS, WAY, find_arrows, find_function, list_drawings

ROOT = Path(__file__).parents[2]


def test_the_drawings_show_the_imports_of_today() -> None:
    """When this fails: run `python -m examples.draw_architecture`, and read whether the page is still true."""
    for name, drawing in list_drawings().items():
        assert (FOLDER / name).read_text(encoding="utf-8") == drawing, name


def test_every_package_of_the_scheduler_and_of_the_rules_is_drawn() -> None:
    def list_packages(folder: str) -> set[str]:
        return {f"{folder.replace('/', '.')}.{each.parent.name}" for each in (ROOT / folder).glob("*/__init__.py")}

    assert {name for name in PACKAGES if name.startswith("scheduler.")} == list_packages("scheduler")
    assert ROOMS.keys() - {"scheduler.policy.plan", "scheduler.policy.steps"} == list_packages("scheduler/policy")
    assert set(ROOTS) - {"scheduler"} <= PACKAGES.keys()


def test_an_arrow_is_an_import() -> None:
    arrows = find_arrows(PACKAGES)
    assert ("scheduler.operations", "scheduler.policy") in arrows
    assert ("scheduler.policy", "scheduler.operations") not in arrows


def test_the_stations_of_a_reservation_are_in_the_code_and_lead_to_each_other() -> None:
    """Each station of the same process is called by the module of an earlier one of this process, or of the tick."""
    modules: list[str] = []
    for process, place, _ in WAY:
        assert find_function(place) is not None
        module = place.partition(":")[0]
        if not process:
            assert any(module == earlier or _imports(earlier, module) for earlier in modules), place
        modules = [module] if process else [*modules, module]


def _imports(module: str, imported: str) -> bool:
    tree = ast.parse((ROOT / f"{module.replace('.', '/')}.py").read_text(encoding="utf-8"))
    return any(isinstance(node, ast.ImportFrom) and node.module == imported for node in ast.walk(tree))
