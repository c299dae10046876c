"""Demonstrations as padded batches."""

import pytest
import torch
from toys import LetterTask

from datamodules.demonstrations import DemonstrationDataModule, DemonstrationDataset, collate


def test_padding_and_masks_by_hand():
    batch = collate([([5, 6], [7]), ([5], [8, 9, 4])], pad_token_id=4)
    assert batch["input_ids"].tolist() == [[5, 6, 7, 4], [5, 8, 9, 4]]
    assert batch["attention_mask"].tolist() == [[True, True, True, False], [True] * 4]
    assert batch["loss_mask"].tolist() == [[False, False, True, False], [False, True, True, True]]


def test_items_are_a_function_of_seed_and_index(make_policy):
    tokenizer = make_policy().tokenizer
    one, again, other = (DemonstrationDataset(LetterTask(), tokenizer, size=9, seed=seed) for seed in (0, 0, 1))
    assert [one[i] for i in range(9)] == [again[8 - i] for i in range(9)][::-1]
    assert [one[i] for i in range(9)] != [other[i] for i in range(9)]


def test_an_item_is_the_prompt_and_an_ended_demonstration(make_policy):
    tokenizer = make_policy().tokenizer
    prompt, completion = DemonstrationDataset(LetterTask(), tokenizer, size=1, seed=0)[0]
    assert tokenizer.decode(prompt).startswith("<|user|>Make ")
    assert tokenizer.decode(prompt).endswith(".<|assistant|>")
    assert completion[-1] == tokenizer.eos_token_id
    assert tokenizer.decode(completion[:-1]).isdigit()


def test_batches_of_an_epoch(make_policy):
    data = DemonstrationDataModule(make_policy(), LetterTask(), steps=3, batch_size=4, micro_batch_size=2, seed=0)
    batches = list(data.train_dataloader())
    assert [len(batch["input_ids"]) for batch in batches] == [2] * 6
    state = torch.get_rng_state()
    list(data.train_dataloader())
    assert torch.equal(state, torch.get_rng_state())  # a checkpoint's random state does not depend on the loader


def test_a_micro_batch_that_does_not_divide(make_policy):
    with pytest.raises(ValueError, match="micro_batch_size must divide batch_size = 8, got 3"):
        DemonstrationDataModule(make_policy(), LetterTask(), steps=1, batch_size=8, micro_batch_size=3, seed=0)
