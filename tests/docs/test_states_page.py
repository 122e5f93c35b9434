"""docs/reference/states.md is generated from the tables, and every state can be reached and left."""

from pathlib import Path

import pytest

from scheduler.model.transitions import (
    ENDED,
    PHASES,
    RESERVATION_MOVES,
    SLOT_MOVES,
    SLOT_STATES,
    IllegalMoveError,
    check_move,
    write_page,
)

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "states.md"


def test_the_page_is_generated_from_the_tables() -> None:
    assert PAGE.read_text(encoding="utf-8") == write_page()


def test_every_state_of_a_slot_can_be_reached_and_left() -> None:
    assert {source for source, _ in SLOT_MOVES} == set(SLOT_STATES)
    assert {target for _, target in SLOT_MOVES} == set(SLOT_STATES)


def test_a_slot_with_a_machine_becomes_empty_only_after_a_report_of_the_cloud() -> None:
    """A static host, which is never terminated, is the exception."""
    with_machine = {"booting", "binding", "ready", "draining", "terminating"}
    to_empty = {source: set(causes) for (source, target), causes in SLOT_MOVES.items() if target == "empty"}
    assert {
        source: causes for source, causes in to_empty.items() if source in with_machine and "cloud" not in causes
    } == {}
    assert {source for source in with_machine if "tick" in to_empty[source]} == {"draining"}


def test_a_reservation_that_has_ended_stays_ended_except_for_a_failed_one_that_waits_for_its_restart() -> None:
    to = {target for source, target in RESERVATION_MOVES if source == "failed"}
    assert to == {"pending", "cancelled", "released"}
    assert {source for source, _ in RESERVATION_MOVES if source in ENDED} == {"failed"}
    assert {phase for edge in RESERVATION_MOVES for phase in edge} == set(PHASES)


def test_a_move_that_no_table_has_is_an_error_that_names_it() -> None:
    with pytest.raises(IllegalMoveError, match="slot a-1: empty -> ready is no legal move for the cause tick"):
        check_move(SLOT_MOVES, "slot", "a-1", ("empty", "ready"), "tick")
