"""Whether Weights & Biases lets us in, asked in a process of its own.

wandb starts a helper process, sets environment variables and may ask for a key in whoever calls it.
None of that belongs into the process that only wants to know whether a run could start.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys

from tinsmith.errors import ConfigError

LOGIN_SECONDS = 60.0
REMEDY = (
    "Log in with `wandb login`, check the network, or write files only and send them later: "
    "wandb.mode=offline"
)


def check_login() -> None:
    """A ConfigError when wandb has no login or the server does not answer."""
    command = [sys.executable, "-m", "tinsmith.rl.monitors.login"]
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=LOGIN_SECONDS,
            env={**os.environ, "WANDB_SILENT": "true"},
        )
        reason = _reason(done.stdout)
    except subprocess.TimeoutExpired:
        reason = f"no answer within {LOGIN_SECONDS:.0f} s"
    if reason:
        raise ConfigError(f"Weights & Biases cannot be used: {reason}. {REMEDY}")


def _reason(output: str) -> str:
    """What the other process found wrong; empty when nothing is."""
    lines = output.splitlines()
    with contextlib.suppress(ValueError, LookupError, TypeError):
        return str(json.loads(lines[-1])["reason"]).strip().rstrip(".")
    return "the package wandb does not work here; try `python -c 'import wandb'`"


def main() -> None:
    """Print one line of JSON and end at once, without waiting for wandb's helper."""
    import wandb

    reason = ""
    server = wandb.setup().settings
    # WANDB_MODE may ask for less than the configuration does; then no login is needed.
    if server.mode == "online":
        try:
            wandb.login(verify=True)
        except wandb.Error as error:
            reason = str(error)
    print(json.dumps({"reason": reason}), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
