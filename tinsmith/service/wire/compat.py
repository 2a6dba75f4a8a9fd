"""What the service tells the SDK about how to speak to it."""

from __future__ import annotations

# One request per forward_backward call, in order; one poll loop per sampling client.
CLIENT_CONFIG: dict[str, bool | int] = {
    "parallel_fwdbwd_chunks": False,
    "fwdbwd_max_chunk_len": 100_000,
    "fwdbwd_max_chunk_bytes_count": 200_000_000,
    "fwdbwd_dispatch_bytes_semaphore_size": 400_000_000,
    "sample_use_retrieve_futures": True,
    "sample_join_sampling_session": True,
}

DYNAMIC_CONFIG: dict[str, bool | int] = {
    "refresh_interval_sec": 300,
    "sample_cancel_enabled": True,
    "sample_cancel_max_batch_size": 64,
}

# The n-th clone of a sampling client numbers its samples from n times this.
CLONE_STRIDE = 1_000_000_000
