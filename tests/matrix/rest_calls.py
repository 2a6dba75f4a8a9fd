"""Calls about what is stored: runs, checkpoints, sessions, and the account's figures."""

from __future__ import annotations

import asyncio
import io
import json
import tarfile
import urllib.request
from typing import Any

import tinker
from harness import World, call, check, method, wait


def rest(world: World, name: str, *parameters: str) -> Any:
    if "rest" not in world.made:
        world["rest"] = world.service.create_rest_client()
    return method(world["rest"], name, *parameters)


def run_of(path: str) -> str:
    return path.removeprefix("tinker://").split("/")[0]


def checkpoint(world: World, path: str) -> Any:
    """The listed checkpoint at this path, None if it is not listed."""
    found = wait(rest(world, "list_checkpoints")(run_of(path))).checkpoints
    return next((one for one in found if one.tinker_path == path), None)


@call("list_training_runs")
def list_training_runs(world: World) -> None:
    found = wait(rest(world, "list_training_runs")(limit=100))
    runs = [one.training_run_id for one in found.training_runs]
    check(run_of(world["state"]) in runs, "the run is not listed")
    check(found.cursor.total_count >= len(runs), "the cursor counts fewer than are listed")


@call("get_training_run")
def get_training_run(world: World) -> None:
    found = wait(rest(world, "get_training_run")(world["run"]))
    check((found.base_model, found.lora_rank) == (world.model, 8), str(found))


@call("get_training_run_by_tinker_path")
def get_training_run_by_path(world: World) -> None:
    found = wait(rest(world, "get_training_run_by_tinker_path")(world["state"]))
    check(found.training_run_id == run_of(world["state"]), str(found))
    check(found.last_checkpoint.tinker_path == world["state"], str(found.last_checkpoint))


@call("list_checkpoints")
def list_checkpoints(world: World) -> None:
    found = checkpoint(world, world["state"])
    check(found is not None, "the checkpoint is not listed")
    check((found.checkpoint_type, found.checkpoint_id) == ("training", "weights/one"), str(found))
    check(checkpoint(world, world["weights"]).checkpoint_type == "sampler", "not a sampler's")


@call("list_user_checkpoints")
def list_user_checkpoints(world: World) -> None:
    found = wait(rest(world, "list_user_checkpoints")(limit=1000)).checkpoints
    check(world["state"] in [one.tinker_path for one in found], "the checkpoint is not listed")


@call("get_weights_info_by_tinker_path")
def weights_info(world: World) -> None:
    found = wait(rest(world, "get_weights_info_by_tinker_path")(world["state"]))
    check((found.base_model, found.lora_rank, found.is_lora) == (world.model, 8, True), str(found))


@call("set_checkpoint_ttl_from_tinker_path")
def set_ttl(world: World) -> None:
    wait(rest(world, "set_checkpoint_ttl_from_tinker_path")(world["state"], 7200))
    check(checkpoint(world, world["state"]).expires_at is not None, "it does not expire")
    wait(rest(world, "set_checkpoint_ttl_from_tinker_path")(world["state"], None))
    check(checkpoint(world, world["state"]).expires_at is None, "it still expires")


@call("publish and unpublish")
def publish(world: World) -> None:
    wait(rest(world, "publish_checkpoint_from_tinker_path")(world["state"]))
    check(checkpoint(world, world["state"]).public, "it is not public")
    wait(rest(world, "unpublish_checkpoint_from_tinker_path")(world["state"]))
    check(not checkpoint(world, world["state"]).public, "it is still public")


@call("get_checkpoint_archive_url")
def archive(world: World) -> None:
    ask = rest(world, "get_checkpoint_archive_url_from_tinker_path")
    with urllib.request.urlopen(wait(ask(world["weights"])).url, timeout=30) as response:
        content = response.read()
    with tarfile.open(fileobj=io.BytesIO(content)) as files:
        names = [name.rsplit("/", 1)[-1] for name in files.getnames()]
    check("adapter_config.json" in names and "adapter_model.safetensors" in names, str(names))


@call("get_external_weights_urls")
def external_urls(world: World) -> None:
    ask = rest(world, "get_external_weights_urls")
    urls = wait(ask(world["external"])).urls
    check({"adapter_config.json", "adapter_model.safetensors"} <= set(urls), str(list(urls)))
    with urllib.request.urlopen(urls["adapter_config.json"], timeout=30) as response:
        check(json.load(response)["r"] == 8, "not the adapter's configuration")


@call("copy_weights")
def copy_weights(world: World) -> None:
    path = wait(method(world.service, "copy_weights")(world["state"]))
    check(path != world["state"] and checkpoint(world, path) is not None, path)


@call("list_sessions and get_session")
def sessions(world: World) -> None:
    session = run_of(world["state"]).split(":")[0]
    found = wait(rest(world, "list_sessions")(limit=100))
    check(session in found.sessions, f"{session} is not listed")
    one = wait(rest(world, "get_session")(session))
    check(run_of(world["state"]) in one.training_run_ids, "the run is not in its session")
    world["session"], world["samplers"] = session, list(one.sampler_ids)


@call("get_sampler")
def get_sampler(world: World) -> None:
    check(bool(world["samplers"]), "the session has no samplers")
    found = wait(rest(world, "get_sampler")(world["samplers"][0]))
    check(found.sampler_id == world["samplers"][0] and bool(found.base_model), str(found))


@call("assign_session_project")
def assign_project(world: World) -> None:
    wait(rest(world, "assign_session_project")(world["session"], "matrix"))


@call("search_sessions")
def search(world: World) -> None:
    ask = rest(world, "search_sessions")
    found = wait(ask(tinker.types.SessionSearchRequest(session_id=world["session"])))
    check([one.session_id for one in found.sessions] == [world["session"]], str(found))


@call("export_session_trace")
def trace(world: World) -> None:
    check(bool(wait(rest(world, "export_session_trace")(world["session"]))), "no address")


@call("get_audit_log")
def audit(world: World) -> None:
    wait(rest(world, "get_audit_log")())


@call("get_billing_usage")
def billing(world: World) -> None:
    wait(rest(world, "get_billing_usage")("2026-01-01", "2026-01-02"))


@call("get_current_checkpoint_storage_usage")
def storage(world: World) -> None:
    wait(rest(world, "get_current_checkpoint_storage_usage")())


@call("rest, async")
def rest_async(world: World) -> None:
    async def go() -> None:
        found = await rest(world, "list_checkpoints_async")(run_of(world["state"]))
        check(len(found.checkpoints) > 0, "no checkpoints")

    asyncio.run(go())


@call("delete_checkpoint")
def delete(world: World) -> None:
    wait(rest(world, "delete_checkpoint_from_tinker_path")(world["weights"]))
    check(checkpoint(world, world["weights"]) is None, "it is still listed")
    wait(rest(world, "delete_checkpoint")(run_of(world["state"]), "weights/one"))
    check(checkpoint(world, world["state"]) is None, "it is still listed")


@call("ServiceClient.close")
def close(world: World) -> None:
    wait(method(world.service, "close")("success"))
