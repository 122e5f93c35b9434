"""Documents that were accepted or refused before get the same answer."""

import json
from typing import Final

import pytest

from tests.unit.recorded_answers import answer, list_documents, list_kinds, read_record

RECORDED: Final = read_record()
KINDS: Final = list_kinds()


@pytest.mark.parametrize("kind", KINDS)
def test_a_document_gets_the_answer_that_was_recorded(kind: str) -> None:
    reader, good = KINDS[kind]
    recorded = RECORDED[kind]
    documents = list(list_documents(kind, good))
    assert len(documents) == len(recorded)
    for number, document in enumerate(documents):
        shown = repr(document)
        got = json.loads(json.dumps(answer(reader, document)))
        assert got == recorded[number], f"document {number} of {kind}: {shown}"


def test_the_record_has_good_and_bad_documents_of_every_kind() -> None:
    assert set(RECORDED) == set(KINDS)
    for kind, answers in RECORDED.items():
        assert any(isinstance(each, str) for each in answers), kind
        assert sum(isinstance(each, list) for each in answers) > 100, kind
