"""A site's policy at work: how much of a node a run has had, and what leaves the node.

The node counts by itself. Which run a message belongs to is the server's word. Counts are kept like the
algorithms' memory: on the site's disk if the node has a state folder, else by Flower for as long as the
SuperNode runs.
"""

import hashlib
import json
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from math import inf
from pathlib import Path
from typing import Any, Literal

import numpy as np

from common.errors import DataError, PolicyError
from common.files import write_whole
from common.messages import ConfigRecord, Context
from common.params import Arrays, norm
from common.policy import NEEDED_METRICS, Policy

USAGE = "usage"


@dataclass(frozen=True)
class Usage:
    """What a run has had of this node."""

    rounds: int = 0
    started: float = 0.0  # seconds since 1970, of the first that it had here; 0 before it
    tests: int = 0  # of a model alone, without training

    def minutes(self, now: float) -> float:
        """Since the first that it had."""
        return (now - self.started) / 60 if self.started else 0.0


def count_round(policy: Policy, context: Context, state: str, run: str) -> float:
    """Count one more round of ``run``, if the policy limits them; when the run's minutes are over here, in
    seconds since 1970.

    Raises PolicyError, and counts nothing, if that is one too many.
    """
    return _count(policy, context, state, run, "rounds")


def count_test(policy: Policy, context: Context, state: str, run: str) -> None:
    """Count one more model of ``run`` that is tested and not trained: there may be as many as rounds.

    Raises PolicyError, and counts nothing, if that is one too many.
    """
    _count(policy, context, state, run, "tests")


def _count(policy: Policy, context: Context, state: str, run: str, what: Literal["rounds", "tests"]) -> float:
    if not (policy.max_rounds or policy.max_minutes):
        return inf
    now = time.time()
    file = Path(state) / USAGE / f"{hashlib.sha256(run.encode()).hexdigest()[:24]}.json" if state else None
    usage = _from_disk(file) if file else _from_flower(context)
    had: int = getattr(usage, what)
    policy.check_usage(had, usage.minutes(now), what)
    started = usage.started or now
    after = asdict(replace(usage, started=started, **{what: had + 1}))
    if file is None:
        context.state.config_records[USAGE] = ConfigRecord(after)
    else:
        try:
            file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            write_whole(file, json.dumps(after).encode())
        except OSError as error:
            raise DataError(f"the rounds of a run cannot be counted in {file.parent}: {error}") from None
    return started + 60 * policy.max_minutes if policy.max_minutes else inf


def clipped(policy: Policy, update: Arrays, noise: np.random.Generator | None = None) -> Arrays:
    """The update as it may leave: no longer than the policy's norm, with its noise.

    The noise is fresh from the operating system unless a generator is given: nobody but the site may know
    it. This is the Gaussian mechanism for one round's update; ``privacy.epsilon`` adds up rounds.
    """
    if not policy.clip_norm:
        return update
    length = norm(update)
    factor = 1.0 if length <= policy.clip_norm else policy.clip_norm / length
    draw, spread = noise or np.random.default_rng(), policy.noise * policy.clip_norm
    return {
        name: (factor * x.astype(np.float64) + spread * draw.standard_normal(x.shape)).astype(x.dtype)
        for name, x in update.items()
    }


def allowed(policy: Policy, metrics: Mapping[str, object]) -> set[str]:
    """The names of the metrics that may leave; beside noise, which they do not bear, only those named."""
    if not policy.metrics and not policy.noise:
        return set(metrics)
    return set(metrics) & (NEEDED_METRICS | set(policy.metrics))


def refuse_statistics(buffers: Mapping[str, object]) -> None:
    """Raise PolicyError if there are any, at a site that adds noise: they would leave without."""
    if buffers:
        raise PolicyError(
            f'this site adds noise to what it sends, but "{next(iter(buffers))}" holds statistics of its '
            "data that would leave without; take a model without BatchNorm"
        )


def _from_disk(file: Path) -> Usage:
    try:
        return _usage(json.loads(file.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return Usage()
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"the count of a run's rounds in {file} cannot be read: {error}") from None


def _from_flower(context: Context) -> Usage:
    saved = context.state.config_records.get(USAGE)
    return Usage() if saved is None else _usage(saved)


def _usage(saved: Mapping[str, Any]) -> Usage:
    return Usage(int(saved["rounds"]), float(saved["started"]), int(saved["tests"]))
