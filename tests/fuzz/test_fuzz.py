"""A small share of `make fuzz`, for every run of the tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fuzz.campaign import campaign, check


@pytest.mark.timeout(600)
def test_malformed_requests_do_no_harm(tmp_path: Path) -> None:
    result = campaign(tmp_path, each=6, every=6, mutations=450, seed=1)
    print("\n".join(result.lines()))
    assert result.report.sent > 500
    check(result)
