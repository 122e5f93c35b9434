"""The fence of a command: it ends before the scheduler may give its slot to another one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leasehold.work.fence import Term, find_fence, find_renewal, move_fence

SECONDS = st.floats(0.5, 1e6)
TERMS = st.builds(Term, st.none() | SECONDS, st.none() | SECONDS)
TIMES = st.floats(0, 1e7)


@given(sent=TIMES, delay=st.floats(0, 1e4), term=TERMS)
def test_a_command_ends_before_its_lease_and_before_its_host_is_offline(sent: float, delay: float, term: Term) -> None:
    """The scheduler carries out a request after it was sent, and counts from there."""
    fence = find_fence(sent, term)
    carried_out = sent + delay
    for seconds in term:
        if seconds is not None:
            assert fence is not None
            assert fence < carried_out + seconds
    assert (fence is None) is (term == (None, None))


@given(sent=TIMES, term=TERMS)
def test_two_renewals_may_get_no_answer_before_the_fence(sent: float, term: Term) -> None:
    fence, renewal = find_fence(sent, term), find_renewal(sent, term)
    assert (fence is None) is (renewal is None)
    if fence is not None and renewal is not None and term.seconds >= 1.5:
        assert sent + 2 * (renewal - sent) < fence


@given(answers=st.lists(st.tuples(TIMES, TERMS), min_size=1, max_size=6))
def test_no_answer_moves_the_fence_back(answers: list[tuple[float, Term]]) -> None:
    present = find_fence(*answers[0])
    for sent, term in answers[1:]:
        later = move_fence(present, sent, term)
        assert later is None or (present is not None and later >= present)
        present = later


@pytest.mark.parametrize(
    ("term", "fence"),
    [
        (Term(60, 30), 128),  # the shorter of both, less two seconds
        (Term(60, None), 158),
        (Term(None, 30), 128),
        (Term(None, None), None),
        (Term(5, None), 104),  # a fifth at most
        (Term(-5, 30), 95),  # the lease has expired
    ],
)
def test_the_fence_is_the_shorter_term_less_a_margin(term: Term, fence: float | None) -> None:
    assert find_fence(100, term) == fence
