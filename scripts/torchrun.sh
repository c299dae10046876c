#!/usr/bin/env bash
# One run on all GPUs of a machine, or of several, without a scheduler.
#
#   scripts/torchrun.sh domain=llm task=countdown strategy=fsdp2
#
# On each of two machines that share a disk, NODE_RANK=0 on the one that HOST names and NODE_RANK=1 on the other:
#   HOST=node0 NODES=2 NODE_RANK=0 scripts/torchrun.sh experiment=paper/deepmath_1.5b run_dir=/shared/run resume=auto
#
#   GPUS=8          processes on each machine, one to a GPU; as many as there are GPUs where it is not set
#   NODES=1         machines
#   NODE_RANK=0     which of them this is
#   HOST=localhost  address of the machine with NODE_RANK=0
#   PORT=29500      a free port of it
#   RESTARTS=0      start all processes again so many times when one dies; together with resume=auto nothing is lost
#   PYTHON=python
#
# Ctrl-C and SIGTERM end the run after the iteration at hand; torchrun waits for it as long as
# TORCH_ELASTIC_SHUTDOWN_TIMEOUT says, an hour here and 30 seconds by itself. A signal on one machine ends the run on
# all; a torchrun that got none then waits five minutes for the others, so send it to each.
set -euo pipefail

python=${PYTHON:-python}
nodes=${NODES:-1}
gpus=${GPUS:-$("$python" -c 'import torch; print(torch.cuda.device_count() or 1)')}
export TORCH_ELASTIC_SHUTDOWN_TIMEOUT=${TORCH_ELASTIC_SHUTDOWN_TIMEOUT:-3600}
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-4}

exec "$python" -m torch.distributed.run \
  --nnodes="$nodes" --node-rank="${NODE_RANK:-0}" --nproc-per-node="$gpus" \
  --master-addr="${HOST:-localhost}" --master-port="${PORT:-29500}" --max-restarts="${RESTARTS:-0}" \
  "$(dirname "$0")/../train.py" "trainer.devices=$gpus" "trainer.num_nodes=$nodes" "$@"
