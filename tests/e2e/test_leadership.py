"""Two schedulers: whoever dies at its work is followed by the other, and terms only grow."""

import pytest

from tests.e2e.processes import wait_for
from tests.e2e.stack import Stack
from tests.e2e.takeover import kill_holder, second_scheduler

pytestmark = pytest.mark.timeout(240)


def test_a_leader_that_dies_with_the_lock_in_its_hand_is_followed_by_another(stack: Stack) -> None:
    with second_scheduler(stack) as second:
        before = stack.services.engine.store.load_tenure()
        kill_holder(stack, second)
        assert stack.submit("after-the-king", pool="warm")["ok"]
        (row,) = stack.await_phase(["after-the-king"], "leased")
        after = stack.services.engine.store.load_tenure()
        assert after.term > before.term
        assert after.holder != before.holder
        stack.processes["ticks"].start()
        stack.await_canary("ticks")
    assert stack.ask("release", {"reservation": row.id, "token": row.token})["ok"]


def test_two_schedulers_share_the_work_and_serve_everything(stack: Stack) -> None:
    names = [f"shared-{number}" for number in range(20)]
    terms = [stack.services.engine.store.load_tenure().term]
    with second_scheduler(stack):
        for name in names:
            assert stack.submit(name, pool="warm")["ok"]
            terms.append(stack.services.engine.store.load_tenure().term)
        rows = stack.await_phase(names, "leased")
        # Each of them is a new holder whenever the other one ticked last.
        wait_for(lambda: stack.services.engine.store.load_tenure().term > terms[0], "a change of leaders")
        answer = stack.ask("release", {"items": [{"reservation": row.id, "token": row.token} for row in rows]})
    assert answer["ok"]
    assert terms == sorted(terms)
