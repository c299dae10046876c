"""Runs of `train.py` in children of one process that has imported everything, so that none of them has to.

Reads a job per line: `arguments`, the `environments` of the ranks, their `folder`, the file for their `output`.
Answers with their exit codes.
"""

import json
import os
import sys

import torch
from places import ROOT
from transformers.models.qwen2 import modeling_qwen2  # noqa: F401

import datamodules.images
import datamodules.prompts  # noqa: F401
import sgrpo_lightning.callbacks
import sgrpo_lightning.modules
import sgrpo_lightning.samplers.hf  # noqa: F401
from sgrpo_lightning.run import command, train

torch.set_num_threads(1)


def child(job, environment):
    output = os.open(job["output"], os.O_CREAT | os.O_APPEND | os.O_WRONLY)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.environ |= environment
    os.chdir(job["folder"])
    sys.argv = [str(ROOT / "train.py"), *job["arguments"]]
    command(train, sys.argv[0], config_name="train")


for line in sys.stdin:
    job, children = json.loads(line), []
    for environment in job["environments"]:
        if not (number := os.fork()):
            child(job, environment)
            sys.exit()
        children.append(number)
    codes = [os.waitstatus_to_exitcode(os.waitpid(number, 0)[1]) for number in children]
    print(json.dumps(codes), flush=True)
