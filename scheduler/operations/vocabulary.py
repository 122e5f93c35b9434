"""All words that a request or a scenario may say, but `submit`: the rows that each is about, and what is done."""

from collections.abc import Callable, Iterable
from typing import Any, Final

from scheduler.model.accounts import Account
from scheduler.model.reservations import Reservation
from scheduler.model.rules import Rules
from scheduler.model.slots import Slot
from scheduler.model.validation import Document
from scheduler.operations.account_words import ACCOUNT_WORDS
from scheduler.operations.authoritative import NOTICE_WORDS, Nobody
from scheduler.operations.ledger import Ledger
from scheduler.operations.register import HOST_WORDS
from scheduler.operations.words import WORDS

Subject = Reservation | Slot | Account | Nobody
"""What a word is about, as it is once the word was heeded."""
VERBS: Final[dict[str, Callable[[Ledger, Rules, Any], Subject]]] = {
    **WORDS,
    **NOTICE_WORDS,
    **HOST_WORDS,
    **ACCOUNT_WORDS,
}


def load_rows(ledger: Ledger, rules: Rules, verb: str, words: Iterable[Document]) -> None:
    """Load the rows that these words of one verb are about; once a transaction."""
    said = list(words)
    if verb == "forget_account":
        ledger.count_submitted()
    ledger.load(
        reservations=_list_named(said, "reservation"),
        slots=_list_named(said, "slot"),
        accounts=_list_named(said, "account"),
        holders=verb in NOTICE_WORDS,
        payers=rules.has_quota and verb in NOTICE_WORDS,
    )


def _list_named(words: Iterable[Document], field: str) -> list[str]:
    return [name for word in words if (name := getattr(word, field, None))]


def say(ledger: Ledger, rules: Rules, verb: str, word: Document) -> Subject:
    """Carry out one word whose rows are loaded; raises Refusal, having changed nothing."""
    return VERBS[verb](ledger, rules, word)
