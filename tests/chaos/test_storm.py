"""A client trains while its service is killed; it sees what it would have seen undisturbed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos.storm import calm, differences, storm


@pytest.mark.timeout(600)
def test_ten_kills_in_thirty_steps_change_nothing(tmp_path: Path) -> None:
    quiet = calm(tmp_path / "calm", steps=30)
    seen = storm(tmp_path / "storm", steps=30, kills=10, seed=1)
    assert differences(quiet, seen) == []
    assert len(seen.losses) == 60
    assert quiet.losses[0] != quiet.losses[-1]
