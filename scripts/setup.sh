#!/usr/bin/env bash
# Make a virtual environment and install the package into it: scripts/setup.sh VENV [EXTRA ...]
# With an NVIDIA GPU the cuda extra comes along, and torch is the registry's CUDA build. The extras cuda, cu12 and cu13 bring
# that build, too, for images that are built without a GPU. Otherwise torch is the CPU build, which is hundreds of megabytes
# instead of gigabytes; TORCH_INDEX says where to get it when pip's own sources lack it.
set -euo pipefail
venv=${1:?usage: scripts/setup.sh VENV [EXTRA ...]}
shift
extras=("$@")
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
"$venv/bin/python" -m pip --version >/dev/null 2>&1 || "$python" -m venv "$venv"  # also one that was left half made
echo "installing into $venv: two minutes or so, and 2 GiB without a GPU"
pip=("$venv/bin/python" -m pip install --quiet --disable-pip-version-check --retries 8)
if [[ " $* " == *" cu"[1d]* ]]; then
  : # the CUDA build comes with the package
elif nvidia-smi -L >/dev/null 2>&1; then
  extras+=(cuda)
elif ! "$venv/bin/python" -c 'import torch' 2>/dev/null; then
  extras+=(triton cpp)
  version=$(sed -n 's/^torch==//p' requirements-cpu.txt)
  if [ "$(uname -s)" = Linux ]; then
    "${pip[@]}" "torch==$version+cpu" 2>/dev/null ||
      "${pip[@]}" "torch==$version" --index-url "${TORCH_INDEX:-https://download.pytorch.org/whl/cpu}"
  else
    "${pip[@]}" "torch==$version"
  fi
else
  extras+=(triton cpp)
fi
joined=$(IFS=,; echo "${extras[*]}")
"${pip[@]}" --editable ".[$joined]"
