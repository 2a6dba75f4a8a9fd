"""Keys as the SDK's command line sees them: whose is this one, hand it back, a token for it."""

from __future__ import annotations

from collections.abc import Callable

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tinsmith.errors import RequestError
from tinsmith.service.routes.http import answer, delete, get, post, read_body
from tinsmith.service.store.keys import Key, KeyRing

KEY = "tinsmith.key"  # where a request's scope keeps the Key it came with
LOCAL = "local"  # the owner of everything where no keys are asked for


def routes(keys: KeyRing | None, issue: Callable[[Key | None], str]) -> list[Route]:
    def mine(request: Request) -> Key | None:
        return request.scope.get(KEY)

    async def token(request: Request) -> Response:
        await read_body(request)
        return answer({"jwt": issue(mine(request))})

    async def describe(request: Request) -> Response:
        key = mine(request)
        owner = key.owner if key else LOCAL
        details = {"org_details": {"name": LOCAL}, "user_details": {"email": owner}}
        note = "" if key else "this service asks for no key"
        name = key.name if key else LOCAL
        return answer(
            {"key_id": key.id if key else 0, "name": name, "note": note, "details": details}
        )

    async def hand_back(request: Request) -> Response:
        key = mine(request)
        if key is None or keys is None:
            raise RequestError("this service asks for no key, so there is none to delete.")
        keys.revoke(key.id)
        return answer({})

    async def make(request: Request) -> Response:
        await read_body(request)
        raise RequestError("keys are made by `tinsmith keys create` where the service runs.", 403)

    return [
        post("auth/token", token, does="A short-lived token that stands for the key."),
        get("auth/apikey/me", describe, does="Whose key this is."),
        delete("auth/apikey/me", hand_back, does="Revokes the key that the request carries."),
        post("auth/apikey", make, does="Refused: keys are made on the service's machine."),
    ]
