"""A node's memory on its disk."""

import os
from pathlib import Path

import numpy as np

from client_app.memory import DiskStore, Moment

NOW, BEFORE = Moment(0, 1), Moment(0, 0)


def test_what_a_run_left_is_gone_after_30_days_unless_it_goes_on(tmp_path: Path) -> None:
    stores = [DiskStore.of(tmp_path, run, "site-1") for run in ("held", "other")]
    for store in stores:
        store.save(NOW, {"control": {"w": np.ones(2, np.float32)}}, keep=BEFORE)
        os.utime(store.folder, (0, 0))
    assert DiskStore.of(tmp_path, "held", "site-1").load(NOW) is not None
    assert DiskStore.of(tmp_path, "other", "site-1").load(NOW) is None
