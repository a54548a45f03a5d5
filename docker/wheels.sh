#!/usr/bin/env bash
# Collects in FOLDER the wheels that an image needs, in the versions of constraints.txt, and requirements.txt.
#
#   docker/wheels.sh FOLDER
#
# VARIANT=cpu (default) takes PyTorch's CPU build, which needs none of CUDA's packages; VARIANT=cuda the other.
# TORCH_VERSION is another version of PyTorch than the pinned one.
# TORCH_INDEX is the address of PyTorch's own package index for the variant, as its installation page shows it.
# PYTHON is the interpreter whose pip is used; it must be of the image's Python version.
#
# The Dockerfile runs this where docker/wheels is empty. Run it before to build an image without network.
set -euo pipefail
folder=$1
root=$(cd "$(dirname "$0")/.." && pwd)
python=${PYTHON:-python3}

version=${TORCH_VERSION:-$(sed -n 's/^torch==//p' "$root/constraints.txt")}
case ${VARIANT:-cpu} in
  cpu) torch="torch==$version+cpu" ;;
  cuda) torch="torch==$version" ;;
  *) echo "error: VARIANT takes cpu or cuda; got $VARIANT" >&2; exit 2 ;;
esac

mkdir -p "$folder"
pins=$(mktemp)
trap 'rm -f "$pins"' EXIT
grep -v '^torch' "$root/constraints.txt" >"$pins"
"$python" - "$root/pyproject.toml" "$torch" >"$folder/requirements.txt" <<'EOF_PYTHON'
import sys, tomllib
with open(sys.argv[1], "rb") as file:
    needs = tomllib.load(file)["project"]["dependencies"]
print(*(need for need in needs if not need.startswith("torch>")), sys.argv[2], sep="\n")
EOF_PYTHON

index=()
[ -z "${TORCH_INDEX:-}" ] || index=(--extra-index-url "$TORCH_INDEX")
"$python" -m pip download --quiet --disable-pip-version-check --only-binary :all: --dest "$folder" \
  --constraint "$pins" "${index[@]}" --requirement "$folder/requirements.txt" pip hatchling || {
  echo "error: no wheels of $torch and what goes with it; TORCH_INDEX names PyTorch's own index" >&2
  exit 1
}
