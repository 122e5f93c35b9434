"""docs/reference/states.md tells what the tables say, and the tables hang together."""

from pathlib import Path

import pytest

from scheduler.model.states_page import write_page
from scheduler.model.transitions import (
    ENDED,
    PHASES,
    RESERVATION_MOVES,
    SLOT_MOVES,
    SLOT_STATES,
    IllegalMoveError,
    check_move,
)

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "states.md"


def test_the_page_is_made_from_the_tables() -> None:
    assert PAGE.read_text(encoding="utf-8") == write_page()


def test_every_state_of_a_slot_can_be_reached_and_left() -> None:
    assert {source for source, _ in SLOT_MOVES} == set(SLOT_STATES)
    assert {target for _, target in SLOT_MOVES} == set(SLOT_STATES)


def test_a_slot_that_has_a_machine_never_forgets_it_without_word_from_the_cloud() -> None:
    """Only a static host, which no one terminates, may be let go by a tick."""
    with_machine = {"booting", "binding", "ready", "draining", "terminating"}
    to_empty = {source: set(causes) for (source, target), causes in SLOT_MOVES.items() if target == "empty"}
    assert {
        source: causes for source, causes in to_empty.items() if source in with_machine and "cloud" not in causes
    } == {}
    assert {source for source in with_machine if "tick" in to_empty[source]} == {"draining"}


def test_what_has_ended_stays_ended_but_for_a_restart() -> None:
    assert {edge for edge in RESERVATION_MOVES if edge[0] in ENDED} == {("failed", "pending"), ("failed", "cancelled")}
    assert {phase for edge in RESERVATION_MOVES for phase in edge} == set(PHASES)


def test_a_move_that_no_table_has_is_an_error_that_names_it() -> None:
    with pytest.raises(IllegalMoveError, match="slot a-1: empty -> ready is no legal move for the cause tick"):
        check_move(SLOT_MOVES, "slot", "a-1", ("empty", "ready"), "tick")
