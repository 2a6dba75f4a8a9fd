"""The service's own sentence reaches people without the SDK's wrapping."""

from __future__ import annotations

import pytest
import tinker

from tests.contract.conftest import serving
from tinsmith.rl.failures import explain
from tinsmith.service.engine.fake import FakeBackend


def test_a_refusal_and_a_failure_are_told_in_the_services_words(tmp_path):
    class Broken(FakeBackend):
        def create(self, model, spec):
            raise RuntimeError("no memory")

    with serving(Broken(), tmp_path) as running:
        client = running.client()
        with pytest.raises(tinker.TinkerError) as failed:
            client.create_lora_training_client("tinsmith/tiny", rank=8)
        with pytest.raises(tinker.TinkerError) as refused:
            client.create_lora_training_client("tinsmith/tiny", rank=100_000)
        client.close("success").result()
    assert explain(failed.value).endswith("RuntimeError: no memory")
    assert explain(refused.value).startswith("lora rank 100000 is outside 1..")


def test_anything_else_is_told_by_its_type():
    assert explain(ValueError("odd")) == "ValueError: odd"
    assert explain(KeyError()) == "KeyError"
