"""How callers share places."""

from leasehold.web.server_sent import Places


def fill(places: Places, caller: str) -> int:
    """Take places for a caller until it gets none, and return how many it has."""
    while places.take(caller):
        pass
    return places.count(caller)


def test_one_caller_alone_gets_a_quarter_of_the_places() -> None:
    assert fill(Places(1024), "a") == 256


def test_callers_that_take_all_they_can_leave_places_for_others() -> None:
    places = Places(1024)
    for number in range(10):
        assert fill(places, f"greedy-{number}")
        assert places.take(f"modest-{number}")


def test_a_place_that_was_given_back_is_free() -> None:
    places = Places(4)
    with places.using("a") as has_place:
        assert has_place
        assert not places.take("a")
    assert places.take("a")
    assert places.count("b") == 0
