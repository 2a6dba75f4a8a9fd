"""What the service tells the SDK about how to speak to it."""

from __future__ import annotations

# One request per forward_backward call, in order; one poll loop per sampling client.
CLIENT_CONFIG: dict[str, bool | int] = {
    "proto_write_fwdbwd": True,  # SDKs 0.19 to 0.24 send protobuf only if told to
    "fwd_via_fwdbwd": True,
    "parallel_fwdbwd_chunks": False,
    "fwdbwd_max_chunk_len": 100_000,
    "fwdbwd_max_chunk_bytes_count": 200_000_000,
    "fwdbwd_dispatch_bytes_semaphore_size": 400_000_000,
    "sample_use_retrieve_futures": True,
    "sample_join_sampling_session": True,
}


def client_settings(body_bytes: int) -> dict[str, bool | int]:
    """The settings for a service that takes requests up to this size; the SDK's estimate of one leaves
    out what is between the data."""
    most = min(CLIENT_CONFIG["fwdbwd_max_chunk_bytes_count"], body_bytes * 3 // 4)
    return {**CLIENT_CONFIG, "fwdbwd_max_chunk_bytes_count": most}


DYNAMIC_CONFIG: dict[str, bool | int] = {
    "refresh_interval_sec": 300,
    "sample_cancel_enabled": True,
    "sample_cancel_max_batch_size": 64,
}

# The n-th clone of a sampling client numbers its samples from n times this.
CLONE_STRIDE = 1_000_000_000
