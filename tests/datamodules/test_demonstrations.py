"""Demonstrations as padded batches."""

import pytest
import torch
from toys import LetterTask

from datamodules.demonstrations import DemonstrationDataModule, DemonstrationDataset, Share, collate
from sgrpo_lightning.tasks.survey import DataChanged


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


def test_ranks_share_each_step_and_a_resumed_run_sees_the_steps_to_come():
    """Three steps of four items, from the second on, on two ranks."""
    shares = [Share(3, first=1, batch_size=4, rank=rank, world_size=2) for rank in range(2)]
    assert [list(share) for share in shares] == [[4, 5, 8, 9], [6, 7, 10, 11]]
    assert [len(share) for share in shares] == [6, 6]


def test_a_micro_batch_that_does_not_divide(make_policy):
    with pytest.raises(ValueError, match="micro_batch_size must divide batch_size = 8, got 3"):
        DemonstrationDataModule(make_policy(), LetterTask(), steps=1, batch_size=8, micro_batch_size=3, seed=0)


class SomeLetters(LetterTask):
    """Of which the questions below `known` have a demonstration."""

    def __init__(self, known):
        super().__init__()
        self.known = known

    def demonstrate(self, example, rng):
        if example.answer >= self.known:
            raise ValueError(f"no demonstration of {example.prompt}")
        return str(example.answer)


def test_examples_without_a_demonstration_are_passed_over(make_policy):
    tokenizer = make_policy().tokenizer
    items = DemonstrationDataset(SomeLetters(known=3), tokenizer, size=30, seed=0)
    written = {
        (tokenizer.decode(prompt[1:-1]), tokenizer.decode(done[:-1]))
        for prompt, done in map(items.__getitem__, range(30))
    }
    assert written == {(f"Make {n}.", str(n)) for n in range(3)}
    with pytest.raises(ValueError, match=r"none of 100 random examples has a demonstration; the last: no demonstr"):
        DemonstrationDataset(SomeLetters(known=0), tokenizer, size=1, seed=0)[0]


def test_the_fingerprint_of_the_data_is_in_the_checkpoint(make_policy):
    def data(**knobs):
        return DemonstrationDataModule(
            make_policy(), LetterTask(**knobs), steps=1, batch_size=2, micro_batch_size=2, seed=0
        )

    data().load_state_dict(data().state_dict())
    with pytest.raises(DataChanged, match="the data is not what the run began with"):
        data(questions=9).load_state_dict(data().state_dict())
