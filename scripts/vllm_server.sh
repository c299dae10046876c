#!/usr/bin/env bash
# Starts vLLM servers for sampler=vllm_server, and prints their addresses for sampler.urls.
#
#   scripts/vllm_server.sh MODEL [options of vllm serve]
#
# MODEL is the one that is trained, a folder or a hub id; its weights are replaced before the first sample. There is a
# server for every GPU of CUDA_VISIBLE_DEVICES (for every one of the machine where that is not set), a single one
# without a GPU. All end when one of them does, and with Ctrl-C.
#
#   GPUS_PER_SERVER=4    tensor parallelism: a server over so many GPUs
#   GPU_MEMORY=0.9       share of a GPU's memory that a server takes
#   PORT=8000            of the first server; the others count on
#   HOST=127.0.0.1       0.0.0.0 where the trainer runs on other machines
#   PYTHON=python        of the environment with vLLM
#
# The servers run in vLLM's development mode, in which whoever reaches the port can change the weights, and more:
# keep HOST=0.0.0.0 to a private network.
#
# In a SLURM job, with the first node for rollouts and the others for training:
#   HOST=0.0.0.0 srun --nodes=1 --ntasks=1 --nodelist="$FIRST_NODE" scripts/vllm_server.sh MODEL &
set -euo pipefail

if [[ $# -lt 1 || $1 == -* ]]; then
  sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//;p}' "$0" >&2
  exit 2
fi
model=$1
shift

if [[ -n ${CUDA_VISIBLE_DEVICES+set} ]]; then
  IFS=, read -ra gpus <<<"$CUDA_VISIBLE_DEVICES"
else
  mapfile -t gpus < <(nvidia-smi --query-gpu=index --format=csv,noheader 2>/dev/null || true)
fi
size=${GPUS_PER_SERVER:-1}
if ((${#gpus[@]} % size)); then
  echo "GPUS_PER_SERVER must divide the number of GPUs = ${#gpus[@]}, got $size" >&2
  exit 2
fi
host=${HOST:-127.0.0.1}
name=$([[ $host == 0.0.0.0 ]] && hostname -f || echo "$host")

serve=("${PYTHON:-python}" -m)
if "${serve[0]}" -c 'from importlib.metadata import version; version("vllm")' 2>/dev/null; then
  serve+=(vllm.entrypoints.cli.main serve "$model")
else # vLLM's build for the CPU, which has another name, and therefore no working `vllm serve`
  serve+=(vllm.entrypoints.openai.api_server --model "$model")
fi
options=(
  --host "$host"
  --logprobs-mode processed_logprobs  # of softmax(logits / temperature), as the trainer computes them
  --skip-tokenizer-init               # tokens in, tokens out
  --enable-scale-out                  # the endpoint that tells which weights drew a token
)
export VLLM_SERVER_DEV_MODE=1 # the endpoints that take weights

port=${PORT:-8000}
urls=()
trap 'kill $(jobs -p) 2>/dev/null; wait' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
if ((${#gpus[@]} == 0)); then
  "${serve[@]}" --port "$port" "${options[@]}" "$@" &
  urls=("http://$name:$port")
fi
for ((first = 0; first < ${#gpus[@]}; first += size)); do
  mine=("${gpus[@]:first:size}")
  CUDA_VISIBLE_DEVICES=$(IFS=,; echo "${mine[*]}") "${serve[@]}" --port "$port" \
    --tensor-parallel-size "$size" --gpu-memory-utilization "${GPU_MEMORY:-0.9}" \
    --weight-transfer-config '{"backend": "nccl"}' "${options[@]}" "$@" &
  urls+=("http://$name:$port")
  port=$((port + 1))
done
echo "sampler=vllm_server 'sampler.urls=[$(IFS=,; echo "${urls[*]}")]'"
wait -n
