"""Files for Docker Compose: a server and any number of nodes on one machine, TLS and enrolled keys included.

They keep to what both ``docker compose`` and the older ``docker-compose`` 1.29 know.
"""

from textwrap import indent

from common.errors import ConfigError

_HEAD = """\
# A federation of a server and {nodes} nodes on this machine, as 'specfed compose --nodes {nodes}' writes it.
# 'docker compose up --detach --wait' starts it, 'docker compose run --rm run rounds=3' trains in it.

x-specfed: &specfed
  image: ${{SPECFED_IMAGE:-specfed}}
  init: true
  read_only: true
  tmpfs: ["/tmp:exec"]  # scratch, and small programs that Flower starts
  cap_drop: [ALL]
  security_opt: ["no-new-privileges:true"]
  logging:
    driver: json-file
    options: {{max-size: 10m, max-file: "3"}}

x-job: &job
  <<: *specfed
  restart: "no"
  healthcheck: {{disable: true}}

services:
"""

_CERTS = """\
certs:  # makes what is not there yet: a CA, the server's certificate, a key for each site
  <<: *job
  user: root
  cap_add: [CHOWN, DAC_OVERRIDE]
  network_mode: none
  entrypoint: [sh, -euc]
  command:
    - |
      test -e /certs/server/server.toml || specfed certs init --out /certs --host server
      new=
      for site in {sites}; do
        test -e /certs/$$site/$$site.pub || new="$$new $$site"
      done
      test -z "$$new" || specfed certs issue --out /certs $$new
      cp /certs/site-*/*.pub /certs/server/
      chown -R specfed: /certs/server /certs/site-*
  volumes:
    - ca:/certs/ca
    - server-certs:/certs/server
{mounts}
"""

_SERVER = """\
server:
  <<: *specfed
  command: [server, --config, /certs/server.toml, --state, /state, --runs, /runs]
  restart: unless-stopped
  depends_on:
    certs: {condition: service_completed_successfully}
  healthcheck: {test: [CMD, python, -m, specfed.health], interval: 3s, timeout: 10s, start_period: 60s}
  volumes:
    - server-certs:/certs:ro
    - state:/state
    - ${SPECFED_RUNS:-runs}:/runs
  networks: [federation]
"""

_ENROLL = """\
enroll:  # lets the sites take part that the server has never known
  <<: *job
  depends_on:
    server: {condition: service_healthy}
  network_mode: service:server
  entrypoint: [sh, -euc]
  command:
    - |
      known=$$(specfed nodes --config /certs/server.toml)
      for key in /certs/*.pub; do
        echo "$$known" | grep -q "^$$(basename $$key .pub) " ||
          specfed enroll --config /certs/server.toml $$key
      done
  volumes: ["server-certs:/certs:ro"]
"""

_RUN = """\
run:  # a run; words after 'docker compose run --rm run' are keys of 'specfed config'
  <<: *job
  profiles: [run]
  depends_on:
    server: {{condition: service_healthy}}
  network_mode: service:server
  entrypoint: [specfed, run, --config, /certs/server.toml, min-nodes={nodes}]
  command: []
  volumes: ["server-certs:/certs:ro"]
"""

_NODE = """\
site-{number}:
  <<: *specfed
  command:
    - node
    - --config=/certs/node.toml
    - --state=/state
    - --data=${{SPECFED_DATA:-digits}}
    - --part={number}/{nodes}
    - --threads=1
  restart: unless-stopped
  depends_on:
    enroll: {{condition: service_completed_successfully}}
  volumes: ["site-{number}-certs:/certs:ro", "site-{number}-state:/state"]
  networks: [federation]
"""

_GPU_HEAD = """\
# Beside compose.yaml on a machine with the NVIDIA Container Toolkit and an image built with VARIANT=cuda:
# docker compose --file compose.yaml --file compose.gpu.yaml up --detach --wait
#
# Each node has a GPU of its own. Where there are fewer, say in .env which ones to share: SPECFED_GPU_2=0

services:
"""

_GPU_NODE = """\
site-{number}:
  deploy:
    resources:
      reservations:
        devices: [{{driver: nvidia, device_ids: ["${{SPECFED_GPU_{number}:-{gpu}}}"], capabilities: [gpu]}}]
"""


def compose(nodes: int) -> str:
    """A compose file of a server and the nodes ``site-1`` to ``site-N``; each has a part of the same data.

    The CA's key is where only the job that makes certificates sees it, and a site's key where only that
    site does. Runs are started within the server's own network, which nodes do not reach. Raises
    ConfigError for fewer than two nodes.
    """
    sites = _sites(nodes)
    mounts = "\n".join(f"    - {site}-certs:/certs/{site}" for site in sites)
    services = [
        _CERTS.format(sites=" ".join(sites), mounts=mounts),
        _SERVER,
        _ENROLL,
        *(_NODE.format(number=number, nodes=nodes) for number in range(1, nodes + 1)),
        _RUN.format(nodes=nodes),
    ]
    volumes = [
        "ca",
        "server-certs",
        "state",
        "runs",
        *(f"{site}-{what}" for site in sites for what in ("certs", "state")),
    ]
    return (
        _HEAD.format(nodes=nodes)
        + "\n".join(indent(service, "  ") for service in services)
        + "\nnetworks:\n  federation: {internal: true}  # no way out of this machine\n\nvolumes:\n"
        + "".join(f"  {volume}:\n" for volume in volumes)
    )


def gpu_overlay(nodes: int) -> str:
    """What goes beside the compose file of so many nodes: ``site-1`` has GPU 0, ``site-2`` GPU 1, and so on.

    Variables such as SPECFED_GPU_2 name others, and several nodes may share one.
    """
    return _GPU_HEAD + "".join(
        indent(_GPU_NODE.format(number=number, gpu=number - 1), "  ")
        for number in range(1, len(_sites(nodes)) + 1)
    )


def _sites(nodes: int) -> list[str]:
    if nodes < 2:
        raise ConfigError(f"--nodes takes at least 2; got {nodes}")
    return [f"site-{number}" for number in range(1, nodes + 1)]
