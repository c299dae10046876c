"""Samples of a run, read from its folder."""

import json
import re

import numpy as np
import pytest
from loop import run
from toys import LetterTask

from sgrpo_lightning.callbacks import SampleFiles
from sgrpo_lightning.metrics import pass_rates
from sgrpo_lightning.report import by_group, read_samples


def sample(prompt, reward=0.0, **more):
    return {"prompt": prompt, "completion": "", "reward": reward, "advantage": 0.0, **more}


def write(folder, iteration, rank, samples, cut=0):
    """A file of samples, without its last `cut` characters."""
    path = folder / "samples" / f"iteration-{iteration:06d}-rank-{rank}.jsonl"
    path.parent.mkdir(exist_ok=True)
    text = "".join(json.dumps(each) + "\n" for each in samples)
    path.write_text(text[: len(text) - cut])


def prompts(samples):
    return [each["prompt"] for each in samples]


@pytest.fixture(scope="module")
def trained(make_policy, tmp_path_factory):
    """The folder of five iterations whose callback wrote the first, second and fourth, and the rows of all five."""
    folder = tmp_path_factory.mktemp("run")
    callback = SampleFiles(str(folder), every_n_iterations=2)
    _, rows = run(make_policy(), LetterTask(), iterations=5, callbacks=[callback])
    return folder, rows


def test_what_the_callback_wrote_is_read(trained):
    """8 groups of 8; the means are those that the loop itself logged."""
    folder, rows = trained
    for iteration in (1, 2, 4):
        samples = read_samples(folder, iteration=iteration)
        rewards = by_group(samples, samples_per_group=8)
        assert rewards.shape == (8, 8)
        assert rewards.mean() == pytest.approx(rows[iteration - 1]["reward/mean"])
        assert pass_rates(rewards).mean() == pytest.approx(rows[iteration - 1]["pass_rate/mean"])
        advantages = by_group(samples, "advantage", samples_per_group=8)
        assert advantages.max() == pytest.approx(rows[iteration - 1]["advantage/max"])
        assert advantages.sum(1) == pytest.approx(np.zeros(8), abs=1e-5)
    assert read_samples(str(folder)) == read_samples(folder, iteration=4) != read_samples(folder, iteration=2)


def test_an_iteration_that_was_not_written_is_an_error_that_names_those_that_were(trained):
    folder, _ = trained
    for missing in (3, 0):
        with pytest.raises(ValueError, match=rf"iteration={missing}: .*there are 1, 2, 4$"):
            read_samples(folder, iteration=missing)


def test_a_run_without_samples_is_an_error_that_says_how_they_come(tmp_path):
    with pytest.raises(ValueError, match=rf"{re.escape(str(tmp_path))}.*no samples.*sample_files\.every_n_iterations"):
        read_samples(tmp_path)


def test_ranks_stand_one_after_the_other_by_their_numbers(tmp_path):
    """In the order of the names rank 10 would come before rank 2."""
    for rank in (10, 2, 0):
        write(tmp_path, 5, rank, [sample(f"{rank}a"), sample(f"{rank}b")])
    assert prompts(read_samples(tmp_path, iteration=5)) == ["0a", "0b", "2a", "2b", "10a", "10b"]


def test_the_last_iteration_is_that_of_the_largest_number(tmp_path):
    """Past a million the names no longer sort as the numbers do; other files are no samples."""
    for iteration in (999_990, 1_000_000):
        write(tmp_path, iteration, 0, [sample(str(iteration))])
    for stray in ("zzz.txt", "iteration-2000000-rank-0.jsonl.tmp", "old-iteration-2000000-rank-0.jsonl"):
        (tmp_path / "samples" / stray).write_text("no sample\n")
    assert prompts(read_samples(tmp_path)) == ["1000000"]


@pytest.mark.parametrize("cut", [1, 2, 30])
def test_a_last_line_that_a_kill_cut_short_is_left_out(tmp_path, cut):
    """Of each rank. Without its newline a line may be cut, even if it ends in a bracket."""
    for rank in (0, 1):
        write(tmp_path, 1, rank, [sample(f"{rank}a", parts={}), sample(f"{rank}b", parts={})], cut=cut)
    assert prompts(read_samples(tmp_path)) == ["0a", "1a"]


def test_texts_may_hold_anything(tmp_path):
    """Line ends of all kinds, as the writer leaves them, and as they are without its escapes."""
    text = "a\nb\rc\u2028d\u0085e\U0001f600"
    write(tmp_path, 1, 0, [sample(text)])
    assert prompts(read_samples(tmp_path)) == [text]
    path = next((tmp_path / "samples").iterdir())
    path.write_text(json.dumps(sample(text), ensure_ascii=False) + "\n", encoding="utf-8")
    assert prompts(read_samples(tmp_path)) == [text]


def test_samples_by_group():
    """Two groups of one prompt stand side by side, as when a prompt is drawn twice."""
    samples = [sample(prompt, reward, advantage=-reward) for prompt, reward in zip("aabbbb", range(6), strict=True)]
    assert by_group(samples, samples_per_group=2).tolist() == [[0, 1], [2, 3], [4, 5]]
    assert by_group(samples, "advantage", samples_per_group=2).tolist() == [[0, -1], [-2, -3], [-4, -5]]
    assert by_group([], samples_per_group=2).shape == (0, 2)


def test_groups_that_are_not_whole_are_an_error():
    """In sum the samples would fill two groups, but the middle two are of different prompts."""
    with pytest.raises(ValueError, match="samples_per_group=2 does not divide the 3 samples of 'b'"):
        by_group([sample(prompt) for prompt in "aabbba"], samples_per_group=2)
    with pytest.raises(ValueError, match="samples_per_group=4 does not divide the 2 samples of 'a'"):
        by_group([sample(prompt) for prompt in "aabb"], samples_per_group=4)
