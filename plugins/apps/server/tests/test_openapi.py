"""/openapi.json says the truth: every field that it has is taken in the type it says, and refused by its name in any other."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import jsonschema
import pytest

from tensorsharp_app_server.app import create_app
from tensorsharp_app_server.catalog import OneModel
from tensorsharp_app_server.endpoint import Endpoint
from tensorsharp_app_server.host import ModelHost

if TYPE_CHECKING:
    from conftest import Serve
    from harness import Served

WRONG = (True, -7.5, "no such thing", [], [[]], {}, {"a": {}}, 10**30)
"""Values of every type; those that a field's schema does not allow have to be refused."""
HALLO = [{"role": "user", "content": "Hallo?"}]
ASKED: dict[str, Any] = {
    "/api/generate": {"prompt": "Hallo?"},
    "/api/chat": {"messages": HALLO},
    "/tokenize": {"messages": HALLO, "content": "Hallo?"},
}
"""What makes a request complete where no field is needed by itself."""
GONE = ("/api/pull", "/api/delete")
"""Endpoints that change what there is: their names are tested elsewhere."""
UNNAMED = ("/v1/embeddings", "/api/embed", "/api/embeddings")
"""Endpoints for which the model of these tests is not made, which it says in place of an answer."""


def described() -> dict[str, Any]:
    """The document, from an application without any model in memory."""
    app = create_app(ModelHost(OneModel.__new__(OneModel), lambda path: pytest.fail("nothing is loaded")))
    routes: Any = [one for one in app.routes if isinstance(getattr(one, "endpoint", None), Endpoint)]
    from tensorsharp_app_server.api.openapi import described as document

    return document(routes)


DOCUMENT = described()


def bodies() -> Iterator[tuple[str, str, dict[str, Any]]]:
    """(path, method, schema of the body) of every operation that has a body."""
    for path, methods in DOCUMENT["paths"].items():
        for method, operation in methods.items():
            if "requestBody" in operation:
                yield path, method, operation["requestBody"]["content"]["application/json"]["schema"]


def leaves(schema: dict[str, Any], before: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], dict[str, Any]]]:
    """(names that lead to it, schema) of every field, also of those inside objects."""
    for name, one in schema.get("properties", {}).items():
        yield (*before, name), one
        yield from leaves(one, (*before, name))


FIELDS = [(path, method, schema, names, one) for path, method, schema in bodies() for names, one in leaves(schema)]
each_field = pytest.mark.parametrize(
    ("path", "method", "schema", "names", "one"), FIELDS, ids=[f"{path}-{'.'.join(names)}" for path, _, _, names, _ in FIELDS]
)


@pytest.fixture(scope="session")
def _able(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    from harness import serving
    from stage import THINKING, Director, write_model

    folder = tmp_path_factory.mktemp("able")
    fills = {f"tokenizer.ggml.fim_{role}_token_id": 290 + i for i, role in enumerate(("pre", "suf", "mid"))}
    write_model(folder / "model.gguf", template=THINKING, **fills)
    with serving(folder, Director()) as start:
        yield start()


@pytest.fixture
def able(_able: Served) -> Served:
    """A server whose model can do everything but vectors; its replies are `ja`."""
    _able.director.reset()
    _able.director.script = "ja"
    return _able


def base(path: str, schema: dict[str, Any]) -> dict[str, Any]:
    """A request that is complete."""
    made = {name: one["examples"][0] for name, one in schema["properties"].items() if name in schema.get("required", ())}
    limit = {"max_output_tokens": 20} if "max_output_tokens" in schema["properties"] else {}
    return made | limit | ASKED.get(path, {})


def placed(body: dict[str, Any], schema: dict[str, Any], names: tuple[str, ...], value: Any) -> dict[str, Any]:
    """The body with a value in one field; objects on the way there are their examples."""
    made: dict[str, Any] = json.loads(json.dumps(body))
    place = made
    for name in names[:-1]:
        schema = schema["properties"][name]
        place[name] = dict(schema["examples"][0])
        place = place[name]
    place[names[-1]] = value
    return made


def names_it(error: Any, names: tuple[str, ...]) -> bool:
    """Whether an error tells of this field, or of something in it."""
    told = error["param"] or "" if isinstance(error, dict) and "param" in error else ""
    name = ".".join(names)
    text = error if isinstance(error, str) else error["message"]
    return told.startswith(name) or text.startswith((f"{name} ", f"{name}[", f"{name}."))


def test_the_document_is_valid(server: Served) -> None:
    served = server.http.get("/openapi.json").json()
    assert served == DOCUMENT
    for _, _, schema in bodies():
        jsonschema.Draft202012Validator.check_schema(schema)
        example = {name: one["examples"][0] for name, one in schema["properties"].items()}
        jsonschema.validate(example, schema)
    ids = [one["operationId"] for methods in DOCUMENT["paths"].values() for one in methods.values()]
    assert len(ids) == len(set(ids)) > 20


def test_every_address_is_described_or_stands_for_one_that_is() -> None:
    app = create_app(ModelHost(OneModel.__new__(OneModel), lambda path: pytest.fail("nothing is loaded")))
    paths = [getattr(one, "path", "").replace(":path", "") for one in app.routes]
    pages = {"/", "/dashboard", "/web/{name}"}
    unknown = [
        path for path in paths if path not in DOCUMENT["paths"] and f"/v1{path}" not in DOCUMENT["paths"] and path not in pages
    ]
    assert unknown == ["/v1/health", "/v1/responses/{id}", "/responses/{id}"]


@each_field
def test_a_field_is_taken_as_it_is_described(
    able: Served, path: str, method: str, schema: dict[str, Any], names: tuple[str, ...], one: dict[str, Any]
) -> None:
    if path in GONE:
        pytest.skip("it changes what there is")
    absent = [None] if len(names) == 1 and names[0] not in schema.get("required", ()) else []
    for value in (one["examples"][0], *absent):
        beside = {} if value is None else BESIDE.get(names[0], {})
        body = placed(base(path, schema) | beside, schema, names, value)
        answer = able.http.request(method, path, json=body)
        if path in UNNAMED:
            assert "not made for embeddings" in answer.text or names == ("dimensions",), answer.text
        else:
            assert answer.status_code == 200, (body, answer.text)


@each_field
def test_a_field_of_another_type_is_refused_by_its_name(
    able: Served, path: str, method: str, schema: dict[str, Any], names: tuple[str, ...], one: dict[str, Any]
) -> None:
    beside = BESIDE.get(names[0], {}) if len(names) > 1 else {}
    validator = jsonschema.Draft202012Validator(one)
    wrong = [value for value in WRONG if not validator.is_valid(value)]
    assert wrong, "every schema leaves something out"
    for value in wrong:
        answer = able.http.request(method, path, json=placed(base(path, schema) | beside, schema, names, value))
        data = answer.json()
        assert answer.status_code == 400, (value, data)
        assert names_it(data["error"], names), (value, data)


def besides() -> dict[str, dict[str, Any]]:
    """Field -> what it makes sense with, from the descriptions themselves."""
    app = create_app(ModelHost(OneModel.__new__(OneModel), lambda path: pytest.fail("nothing is loaded")))
    endpoints = [one.endpoint for one in app.routes if isinstance(getattr(one, "endpoint", None), Endpoint)]  # type: ignore[attr-defined]
    fields = [field for one in endpoints if one.operation for field in one.operation.fields]
    return {field.name: dict(field.beside) for field in fields if field.beside}


BESIDE = besides()


def test_a_document_needs_the_key_that_everything_needs(serve: Serve) -> None:
    assert serve(api_keys=("geheim",)).http.get("/openapi.json").status_code == 401
