"""The pictures of the README show the present output of the commands."""

import pytest

from examples.make_pictures import FOLDER, PICTURES, make_picture
from tests.docs.test_pages import ROOT


@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_is_what_its_command_makes(name: str) -> None:
    assert (FOLDER / f"{name}.svg").read_text() == make_picture(name)


@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_loads_nothing(name: str) -> None:
    text = (FOLDER / f"{name}.svg").read_text().replace('xmlns="http://www.w3.org/2000/svg"', "")
    assert "://" not in text
    assert "@import" not in text


@pytest.mark.parametrize("name", PICTURES)
def test_the_readme_shows_each_picture(name: str) -> None:
    assert f"docs/pictures/{name}.svg" in (ROOT / "README.md").read_text()
