"""The page about the HTTP API shows the whole OpenAPI document to each caller that may read the document."""

import re

import pytest

from leasehold.api.openapi import make_document
from leasehold.web.entrance import POLICY
from scheduler.protocol.http_routes import DOCS
from scheduler.protocol.verbs import Role
from tests.console.conftest import MakeConsole
from tests.console.served import Console
from tests.console.test_gate import a_principal, basic

DOCUMENT = make_document("/api/v1")


@pytest.fixture
def page(console: Console) -> str:
    answer = console.entered().get(DOCS)
    assert (answer.status, answer.headers["content-security-policy"]) == (200, POLICY)
    return answer.text


def test_the_page_has_every_operation_with_its_parameters_and_every_schema_with_its_fields(page: str) -> None:
    parts = dict(re.findall(r'<div class="operation" id="([^"]+)">(.*?)\n    </div>', page, re.DOTALL))
    shown = {name: set(re.findall(r"<dt><code>([^<]+)</code>", text)) for name, text in parts.items()}
    for path, methods in DOCUMENT["paths"].items():
        for method, operation in methods.items():
            assert f"{method.upper()}</span> <code>{path}</code>" in page
            wanted = {each["name"] for each in operation["parameters"]}
            assert wanted <= shown.pop(operation["operationId"])
    for name, schema in DOCUMENT["components"]["schemas"].items():
        assert schema.get("properties", {}).keys() == shown.pop(f"schema-{name}")
    assert shown == {}


def test_every_link_leads_to_a_part_of_the_page_and_nothing_comes_from_another_site(page: str) -> None:
    main = page.partition("<main")[2]
    links, ids = set(re.findall(r'href="#([^"]+)"', main)), re.findall(r'id="([^"]+)"', main)
    assert len(links) > 20
    assert links <= set(ids)
    assert len(ids) == len(set(ids))
    assert re.findall(r'(?:src|href)="(?!/|#)([^"]+)', page) == []
    assert not re.search(r"<style|style=|<script(?![^>]*src=)", page)


@pytest.mark.parametrize("role", ["operator", "producer", "reader", "host"])
def test_each_caller_that_may_read_the_document_may_read_the_page(console: Console, role: Role) -> None:
    row, browser = a_principal(role=role), console.browser()
    console.add(row)
    browser.headers["Authorization"] = basic(row.name, row.key)
    assert [browser.get(path).status for path in (DOCS, "/api/v1/openapi.json")] == [200, 200]


def test_an_unknown_person_is_asked_to_log_in_and_an_unknown_program_is_refused(make_console: MakeConsole) -> None:
    console = make_console(console={"prefix": "/lease"})
    browser = console.browser()
    assert browser.get(f"/lease{DOCS}").location == "/lease/login?next=%2Flease%2Fapi%2Fv1%2Fdocs"
    assert browser.send("GET", f"/lease{DOCS}").status == 401
    assert browser.get("/lease/api/v1/openapi.json").status == 401
    assert browser.get(f"/lease{DOCS}?token={console.token}").location == f"/lease{DOCS}"
    page = browser.get(f"/lease{DOCS}").text
    assert 'href="/lease/api/v1/openapi.json"' in page
    assert f"http://{browser.host}:{browser.port}/lease/api/v1/status" in page
