"""A run as one of its sites may see it.

Scores and alignments tell what a site's data are like, so a report on all sites is the coordinator's. A site
is told of itself.
"""

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import PurePath

from common.errors import ConfigError, nearest
from common.ledger import ClientRecord
from server_app.report.run_view import RunView

ANOTHER = "another node"

Told = Callable[[str], str]


def for_site(run: RunView, site: str) -> RunView:
    """What ``site`` sent and got, and what all share: accuracy and loss, rounds, configuration, versions.

    Of the others their number is left: no row, score, weight, flag or fingerprint of theirs, and no name,
    also not in sentences. Drift, which compares nodes with each other, is left out, and so is where the
    server keeps the run. In a federation of two the other's weight is what is missing to one. Raises
    ConfigError for a site that the run does not know.
    """
    if site not in run.names:
        known = nearest(site, run.names) or f"They are {', '.join(run.names)}."
        raise ConfigError(f'no client "{site}" in run {run.header.run_id}. {known}')
    refused = {joined.node.name for joined in run.refused if joined.node is not None}
    told = _only(site, {*run.names, *refused})
    nodes = tuple(node for node in run.nodes if node.name == site)
    end = run.end and run.end.model_copy(
        update={
            "reason": told(run.end.reason),
            "suspects": tuple(suspect for suspect in run.end.suspects if suspect.client == site),
        }
    )
    return replace(
        run,
        site=site,
        others=len(run.names) - 1,
        header=run.header.model_copy(update={"nodes": nodes, "folder": PurePath(run.header.folder).name}),
        nodes=nodes,
        refused=(),
        rounds=tuple(record.model_copy(update={"reason": told(record.reason)}) for record in run.rounds),
        clients=tuple(_own(record, told) for record in run.clients if record.client == site),
        end=end,
        drift=(),
    )


def _own(record: ClientRecord, told: Told) -> ClientRecord:
    flags = tuple(flag.model_copy(update={"text": told(flag.text)}) for flag in record.flags)
    return record.model_copy(update={"flags": flags, "reason": told(record.reason)})


def _only(site: str, names: set[str]) -> Told:
    """Puts each of these names, where it stands as a word, as another node, but for that of ``site``."""
    longest_first = sorted({*names, site}, key=len, reverse=True)
    word = re.compile(rf"(?<![\w-])(?:{'|'.join(map(re.escape, longest_first))})(?![\w-])")
    return lambda text: word.sub(lambda found: site if found[0] == site else ANOTHER, text)
