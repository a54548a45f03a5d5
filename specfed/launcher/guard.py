"""Only apps that a site has listed: checked before an app's code is even unpacked.

A run brings its code along, and whoever may start runs may run code on every node. A site that lists the
SHA-256 of apps in its policy (``common.policy``) starts app processes with that list in their environment;
another app is answered with an error that names it, and nothing of it is loaded.
"""

import importlib
import os
import sys
from hashlib import sha256
from typing import Any

APPS = "SPECFED_ALLOWED_APPS"  # comma separated; not set: any app

APP_PACKAGES = {"client_app", "common", "server_app", "strategies"}  # what an app brings along


class NotListed(Exception):
    """An app that the site has not listed; Flower sends the text to the coordinator."""


def guard() -> None:
    """Let this process unpack listed apps alone, if there is a list."""
    listed = os.environ.get(APPS)
    if listed is None:
        return
    run_clientapp: Any = importlib.import_module("flwr.supernode.runtime.run_clientapp")
    unpack = run_clientapp.install_from_fab

    def only_listed(content: bytes, *args: Any, **kwargs: Any) -> Any:
        digest = sha256(content).hexdigest()
        if digest not in listed.split(","):
            raise NotListed(f"this site's policy lists no app with the SHA-256 {digest}")
        return unpack(content, *args, **kwargs)

    run_clientapp.install_from_fab = only_listed


def forget_our_own() -> None:
    """Let the app find its own ``common`` and the like, not the installed ones that are loaded already.

    Python looks into ``sys.modules`` before it looks into the folder of the app: a run's ``client_app`` would
    go on with the ``common`` of the site, whatever version that is.
    """
    for name in [name for name in sys.modules if name.partition(".")[0] in APP_PACKAGES]:
        del sys.modules[name]


def main() -> None:
    """``python -m specfed.launcher.guard PROGRAM ARGUMENTS``: Flower's program of that name, guarded."""
    from specfed.launcher.warm import flower_function

    sys.argv = sys.argv[1:]
    guard()
    forget_our_own()
    flower_function(sys.argv[0])()


if __name__ == "__main__":
    main()
