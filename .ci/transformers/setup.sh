#!/usr/bin/env bash
# Makes .venv with what check.py and `lockstep bench cpu --peer` need: some gigabytes of wheels, so .ci/run leaves it
# alone.
set -euo pipefail
cd "$(dirname "$0")/../.."
python3 -m venv .venv
.venv/bin/pip install --quiet torch==2.11.0 transformers==5.17.0 peft==0.21.0 accelerate==1.15.0 safetensors==0.8.0 \
  numpy==2.4.6 jinja2==3.1.6 compressed-tensors==0.20.0 bitsandbytes==0.50.2
