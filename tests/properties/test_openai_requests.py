"""Any JSON sent to the OpenAI routes is a request or a refusal that says what is wrong."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tinsmith.service.routes.openai_types import (
    IGNORED,
    ONLY,
    ApiError,
    ChatRequest,
    CompletionRequest,
    parse_request,
)

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=6,
)
KINDS = (ChatRequest, CompletionRequest)
NAMES = sorted({*ChatRequest.model_fields, *CompletionRequest.model_fields, *IGNORED, *ONLY})
GOOD: dict[type, dict[str, Any]] = {
    ChatRequest: {"model": "m", "messages": [{"role": "user", "content": "hi"}]},
    CompletionRequest: {"model": "m", "prompt": "hi"},
}


@pytest.mark.parametrize("kind", KINDS)
@given(changes=st.dictionaries(st.sampled_from(NAMES) | st.text(max_size=5), JSON, max_size=4))
def test_any_object_is_a_request_or_a_refusal(
    kind: type[ChatRequest] | type[CompletionRequest], changes: dict[str, Any]
) -> None:
    asked = refusal = None
    try:
        asked = parse_request(kind, orjson.dumps({**GOOD[kind], **changes}))
    except ApiError as error:
        refusal = error
    if asked is not None:
        assert asked.choices >= 1
        assert all(asked.stops)
    elif refusal is not None:
        assert str(refusal)
        assert refusal.status == 400
        assert refusal.param in {*changes, "messages", "prompt", "n"}


@pytest.mark.parametrize("kind", KINDS)
@given(name=st.text(min_size=1, max_size=8), value=JSON.filter(lambda v: v is not None))
def test_a_setting_that_nobody_knows_is_named(
    kind: type[ChatRequest] | type[CompletionRequest], name: str, value: Any
) -> None:
    if name in NAMES or orjson.loads(orjson.dumps(value)) is None:
        return
    with pytest.raises(ApiError) as caught:
        parse_request(kind, orjson.dumps({**GOOD[kind], name: value}))
    assert caught.value.param == name
