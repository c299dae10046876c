"""Trains a policy: `python train.py domain=llm task=countdown objective=softmax_grpo seed=0`."""

if __name__ == "__main__":  # the import too: processes that grade answers read this file, and need none of it
    from sgrpo_lightning.run import command, train

    command(train, __file__, config_name="train")
