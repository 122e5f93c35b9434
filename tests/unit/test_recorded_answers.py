"""Documents that were accepted or refused before get the same answer."""

import json
from typing import Final

import pytest

from scheduler.model.command_schemas import SCHEMAS
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


@pytest.mark.parametrize("verb", SCHEMAS)
def test_each_field_of_a_request_is_in_a_good_document(verb: str) -> None:
    """When this fails: the field is missing in RESERVATION or FIELDS."""
    _, good = KINDS[verb]
    assert {name for document in good for name in document} == set(SCHEMAS[verb].model_fields)


def test_the_record_has_good_and_bad_documents_of_every_kind() -> None:
    assert set(RECORDED) == set(KINDS)
    for kind, answers in RECORDED.items():
        assert any(isinstance(each, str) for each in answers), kind
        assert sum(isinstance(each, list) for each in answers) > 100, kind
