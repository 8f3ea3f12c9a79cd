"""Times torch's fused AdamW of fp32 parameters by the cores of the host.

usage: cpu_adamw.py PARAMETERS SECONDS        prints {"rate": parameters a second}
"""
import json
import sys
import time

import torch

count, least = int(sys.argv[1]), float(sys.argv[2])
each = 1 << 22
weights = [torch.nn.Parameter(torch.ones(min(each, count - at))) for at in range(0, count, each)]
for weight in weights:
    weight.grad = torch.full_like(weight, 1e-3)
optimizer = torch.optim.AdamW(weights, lr=1e-9, fused=True)
optimizer.step()  # makes the moments
steps, began = 0, time.perf_counter()
while steps == 0 or time.perf_counter() - began < least:
    optimizer.step()
    steps += 1
print(json.dumps({"rate": count * steps / (time.perf_counter() - began)}))
