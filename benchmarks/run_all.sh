#!/usr/bin/env bash
# bash benchmarks/run_all.sh DIR: measures every figure of docs/gpu.md anew on a GPU, 30 minutes on an H200. Each line can be run alone.
# Copy the results to benchmarks/results and run tables.py to rebuild the tables, if vLLM was measured in the same sitting (peer_*.py).
set -euo pipefail
if [[ $# -ne 1 || $1 == -* ]]; then
  sed -n '2,3s/^# //p' "$0"
  exit 2
fi
mkdir -p "$1"
R=$(realpath "$1")
cd "$(dirname "$0")/.."
python benchmarks/decode_steps.py --out "$R"/decode_steps_native_h200.json
python benchmarks/decode_steps.py --policy h2o --shapes 1x1024,16x1024,64x1024,16x8192 --out "$R"/decode_steps_h2o_h200.json
P="python benchmarks/decode_steps.py --model mistral-7b --prefill-only"
$P --shapes 64x1024,16x16384 --out "$R"/prefill_native_h200.json
$P --shapes 16x16384 --policy h2o --budget 1.0 --out "$R"/prefill_h2o_h200.json
P="python benchmarks/pool_throughput.py --cases vtoken:random,vtoken:h2o,vtoken:streaming_llm,native"
$P --blocks 5427 --requests 16 --out "$R"/pool_5427_256_h200.json
$P --blocks 11519 --requests 22 --out "$R"/pool_11519_256_h200.json
python benchmarks/pool_throughput.py --cases vtoken:random,vtoken:h2o --blocks 11519 --requests 22 --output 2048 --out "$R"/pool_11519_2048_h200.json
C=native; for p in random h2o streaming_llm; do for r in naive refill vtoken page1; do C=$C,$r:$p; done; done
python benchmarks/pool_throughput.py --cases $C --model llama-3.1-8b --blocks 1400 --input 4096 --budgets 0.5,0.25 \
  --out "$R"/five_runtimes_h200.json
python benchmarks/kernel_times.py --out "$R"/kernel_times_h200.json
python benchmarks/sustained_reclaim.py --out "$R"/sustained_reclaim_h200.json
python benchmarks/host_time.py --out "$R"/host_time_h200.json
python benchmarks/offload.py --out "$R"/offload_h200.json
python benchmarks/paper_experiments.py --out "$R"  # of the README
