"""Trains a policy: `python train.py domain=llm task=countdown objective=softmax_grpo seed=0`."""

from sgrpo_lightning.run import command, train

if __name__ == "__main__":
    command(train, __file__, config_name="train")
