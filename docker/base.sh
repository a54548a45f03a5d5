#!/usr/bin/env bash
# Makes a base image of Debian 12 and its Python, for places that reach no image registry:
#
#   docker/base.sh && docker build -f docker/Dockerfile --build-arg BASE=specfed-base -t specfed .
#
# Needs root, mmdebstrap and a Docker engine.
set -euo pipefail
image=specfed-base
log=$(mktemp)
trap 'rm -f "$log"' EXIT

# usr-is-merged stands in for usrmerge, which would bring all of Perl.
mmdebstrap --variant=minbase --include=python3,usr-is-merged \
  --hook-dir=/usr/share/mmdebstrap/hooks/merged-usr \
  --dpkgopt='path-exclude=/usr/share/doc/*' \
  --dpkgopt='path-exclude=/usr/share/man/*' \
  --dpkgopt='path-exclude=/usr/share/locale/*' \
  bookworm - 2>"$log" | docker import --change 'CMD ["python3"]' - "$image" >/dev/null ||
  { cat "$log" >&2; exit 1; }
