"""The contract of Transaction about rules: each version is kept, and a stale version changes nothing."""

from scheduler.model.validation import InvalidInputError
from scheduler.ports import StaleWriteError, Store
from tests.builders import SYSTEM
from tests.store.test_contract import fail, losing


def test_rules_change_only_from_the_version_that_was_read(store: Store) -> None:
    assert (store.load_rules().version, store.load_rules().document) == (0, {})
    document = {"pools": {"linux": {"system": SYSTEM, "max_slots": 3}}}
    for version in (0, 1):
        with store.transaction() as transaction:
            assert transaction.save_rules(document, version) == version + 1
    for stale in (0, 1, 3):
        with losing(store, StaleWriteError) as transaction:
            transaction.save_rules({}, stale)
    stored = store.load_rules()
    assert (stored.version, stored.document, store.rules_version()) == (2, document, 2)
    assert stored.rules.pools["linux"].max_slots == 3


def test_every_version_of_the_rules_is_kept(store: Store) -> None:
    documents = [{"scheduler": {"queue": name}} for name in ("size", "priority", "size")]
    assert store.read_rules_history() == []
    begun = store.now()
    for version, document in enumerate(documents):
        with store.transaction() as transaction:
            transaction.save_rules(document, version)
    found = store.read_rules_history()
    assert [(each.version, each.document) for each in found] == list(enumerate(documents, 1))
    assert all(begun <= each.applied_at <= store.now() for each in found)
    assert store.read_rules_history(limit=2) == found[1:]
    assert store.read_rules_history(version=2) == [found[1]]
    assert store.read_rules_history(version=9) == []


def test_rules_keep_the_ids_of_images_beside_the_document(store: Store) -> None:
    source = "ssm:/images/linux"
    document = {"pools": {"linux": {"system": SYSTEM, "max_slots": 3, "ec2": {"image": source}}}}
    with store.transaction() as transaction:
        transaction.save_rules(document, 0)
    stored = store.load_rules()
    assert (stored.images, stored.rules.pools["linux"].ec2.image) == ({}, source)
    with store.transaction() as transaction:
        transaction.save_rules(document, 1, {source: "ami-1"})
        assert transaction.load_rules().rules.pools["linux"].ec2.image == "ami-1"
    stored = store.load_rules()
    assert (stored.document, stored.images) == (document, {source: "ami-1"})
    assert stored.rules.pools["linux"].ec2.image == "ami-1"
    assert [each.images for each in store.read_rules_history()] == [{}, {source: "ami-1"}]


def test_rules_that_are_none_are_refused(store: Store) -> None:
    with losing(store, InvalidInputError) as transaction:
        transaction.save_rules({"pools": 3}, 0)
    assert store.rules_version() == 0


def test_rules_that_were_rolled_back_are_forgotten(store: Store) -> None:
    with losing(store, KeyError) as transaction:
        transaction.save_rules({"scheduler": {"queue": "size"}}, 0)
        assert transaction.load_rules().rules.scheduler.queue == "size"
        fail()
    with store.transaction() as transaction:
        transaction.save_rules({"scheduler": {"queue": "priority"}}, 0)
    assert store.load_rules().rules.scheduler.queue == "priority"
