"""The OpenAPI document of the API, made from the declaration of its routes."""

from __future__ import annotations

from functools import cache
from typing import Any

from scalerl.files import to_json
from scalerl.serve.api.declare import ApiRoute
from scalerl.serve.api.routes import ROUTES, components
from scalerl.serve.api.schema import Schema, ref

#: Version of the contract: the first number is in the path, the second rises with additions.
VERSION = "1.0"
DESCRIPTION = (
    "Runs, forecasts, metrics, episodes and studies of the directories that `scalerl serve` was "
    "given. Read-only. Responses have exactly the documented fields, so a client may ignore what "
    'it does not know. Errors are `{"error": "one line"}`.'
)
#: HTTP statuses of refused requests.
REFUSALS = {
    "400": "a parameter is unknown, missing or wrong, or the run cannot be fitted",
    "401": "the token is missing or wrong",
    "403": "the request comes from a page that the server does not allow",
    "404": "there is no such run, study or file",
    "503": "the files of the run do not answer, or the result is not ready: ask again later",
}


def document() -> dict[str, Any]:
    """The document as a JSON value."""
    return {
        "openapi": "3.1.0",
        "info": {"title": "scalerl serve", "version": VERSION, "description": DESCRIPTION},
        "servers": [{"url": "/"}],
        "security": [{}, {"token": []}, {"cookie": []}],
        "paths": {route.whole_path: {"get": _operation(route)} for route in ROUTES},
        "components": {
            "schemas": components(),
            "securitySchemes": {
                "token": {"type": "http", "scheme": "bearer",
                          "description": "the token in the file given to `--token-file`"},
                "cookie": {"type": "apiKey", "in": "cookie", "name": "scalerl_token",
                           "description": "set by the page's login"},
            },
        },
    }  # fmt: skip


@cache
def text() -> str:
    """The document as it is committed in docs/reference/openapi.json."""
    return to_json(document(), indent=1, ascii_only=False) + "\n"


def _operation(route: ApiRoute) -> dict[str, Any]:
    responses = {"200": _response("the result", route.response)}
    responses |= {status: _response(why, ref("Error")) for status, why in REFUSALS.items()}
    return {
        "operationId": route.handler,
        "summary": route.summary,
        "parameters": [p.to_dict() for p in route.parameters],
        "responses": responses,
    }


def _response(meaning: str, schema: Schema) -> dict[str, Any]:
    return {"description": meaning, "content": {"application/json": {"schema": schema}}}
