"""What `tinsmith serve --help` says beyond its options: access, memory, disk, limits, logs."""

from __future__ import annotations

import click

EPILOG = """\
Who may ask
  On a loopback address no key is needed and any key is taken; everything belongs to one owner, and
  requests that a browser sends for a page of another site are refused. On any other address, or
  with --require-keys, every request needs a key made by `tinsmith keys create` (only GET
  /api/v1/healthz does not), and each owner sees only their own sessions, runs, checkpoints and
  samplers, and what others published. Keys travel as they are: over networks you do not trust, put a
  proxy with TLS in front, or use an SSH tunnel.

Memory
  Base models are loaded when first asked for and shared by everyone, each with a cache for sampling.
  They may take --memory: half of the machine's, or 70 % of what is free on a GPU, if you do not say;
  the longest unused goes first. Models in training (adapter, gradient, optimizer) and weights to sample
  from get --adapter-memory, a fourth as much; what does not fit is parked on disk and comes back when
  it is needed. A pass also needs room for its activations: about 1 GiB on a CPU. Up to
  20,000 samples or 2 GiB of requests wait; then clients are asked to come back (HTTP 429), which the
  SDK does by itself. Results are kept up to 256 MiB or 50,000, older ones on disk only.
  GET /metrics shows what is used.

Disk
  In --directory, for you alone to read: service.sqlite (sessions, requests not yet done, results for
  two hours, keys as hashes), snapshots of models in training, from which they go on after a crash, and
  checkpoints, yours until deleted or expired. Copies for samplers without a name take up to a quarter
  of what was free at the start.

Limits
  One request: --max-body MiB, decompressed (JSON: 32 MiB with data, else 4); headers: 64 KiB. All being
  read at one time: an eighth of the machine's memory; more are answered with HTTP 429. Headers must
  be complete after 30 s, and a body must come at 16 KiB/s or more after its first 30 s.

Logs
  On standard error, one line an event; --log-level info adds one line for each request. Each has
  the request's id, which is also in the answer (X-Request-Id; yours, if you send one). Keys, prompts
  and completions are never logged. GET /metrics is for Prometheus, GET /openapi.json for tools.
"""


class Command(click.Command):
    """A command whose epilog is printed as it is written."""

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        if self.epilog:
            formatter.write(f"\n{self.epilog}")
