"""Flower's processes: what they run, how they are started, watched and stopped.

Flower's flags, ports and environment variables stand in this package and nowhere else.

    start       servers, nodes and the warm start: their command lines, and what their logs tell
    children    any of these as a child process: spawned, drained, stopped
    supervisor  the process around each of them, which buries all that Flower's leaves behind
    warm        app processes forked from one that has imported everything
    naps        how long Flower's processes sleep between two questions for work
    guard       app processes that unpack only the apps which a site has listed
    runs        runs on a server: submitted, watched, stopped
    registry    which node keys a server accepts: enrolled, listed, revoked
    probe       what a server would say to a node's key
    app_files   the app that travels to the nodes, and its hash

Nothing is imported here: ``python -m specfed.launcher.supervisor`` runs for every process that starts.
"""
