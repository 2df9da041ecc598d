"""Blocks, sequences and training of the DNA models against recurrences, direct sums and hand counts."""

import gzip

import numpy as np
import pytest
import torch

from assay.errors import InputError
from assay.scaling.genomic_scaling.blocks import ARCHITECTURES, DNAModel, chunked_scan, fft_convolution
from assay.scaling.genomic_scaling.sequences import SEPARATOR, corrupt, encode, read_fasta, regions, reverse_complement
from assay.scaling.genomic_scaling.training import bits_per_base, even_windows, train_dna


@pytest.mark.parametrize("time", [1, 31, 32, 70])
def test_oracle_chunked_scan_is_the_recurrence(time):
    draw = torch.Generator().manual_seed(time)
    x = torch.randn(2, time, 3, 5, generator=draw, dtype=torch.float64)
    decay = -3 * torch.rand(2, time, 3, generator=draw, dtype=torch.float64)
    write, read = torch.randn(2, 2, time, 4, generator=draw, dtype=torch.float64)
    state, steps = torch.zeros(2, 3, 5, 4, dtype=torch.float64), []
    for t in range(time):
        state = decay[:, t].exp()[..., None, None] * state + x[:, t][..., None] * write[:, t][:, None, None]
        steps.append((state * read[:, t][:, None, None]).sum(-1))
    torch.testing.assert_close(chunked_scan(x, decay, write, read), torch.stack(steps, 1), atol=1e-10, rtol=0)


def test_chunked_scan_survives_strong_forgetting():
    decay = torch.full((1, 64, 1), -400.0)
    x, key = torch.ones(1, 64, 1, 1), torch.ones(1, 64, 1)
    torch.testing.assert_close(chunked_scan(x, decay, key, key), x)


def test_oracle_fft_convolution_is_the_direct_sum():
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(2, 50, 3, generator=draw, dtype=torch.float64)
    taps = torch.randn(50, 3, generator=draw, dtype=torch.float64)
    direct = torch.stack([sum(taps[s] * x[:, t - s] for s in range(t + 1)) for t in range(50)], 1)
    torch.testing.assert_close(fft_convolution(x, taps), direct, atol=1e-10, rtol=0)


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_no_block_sees_the_future(arch):
    model = DNAModel(arch, 32, context=64).double()
    tokens = torch.randint(0, 5, (2, 64), generator=torch.Generator().manual_seed(1))
    changed = tokens.clone()
    changed[:, 40] = (changed[:, 40] + 1) % 5
    with torch.no_grad():
        apart = (model(tokens) - model(changed)).abs()
    assert apart[:, :40].max() < 1e-10
    assert apart[:, 40:].max() > 1e-3


@pytest.mark.parametrize(
    ("arch", "count"),
    [
        ("llama", 2 * (4 * 16**2 + 3 * 16 * 40 + 2 * 16)),
        ("llama-conv", 2 * (4 * 16**2 + 3 * 16 * 40 + 2 * 16 + 48 * 3 + 48)),
        ("hyena", 2 * (4 * 16**2 + 3 * 16 * 40 + 2 * 16 + 48 * 3 + 48 + (9 + 1) * 16 + 17 * 16 + 17 * 16 + 16)),
        ("ssm", 4 * (16 * 64 + 32 * 4 + 32 + 32 * 33 + 32 * 16 + 1 + 1 + 32 + 16)),
    ],
)
def test_oracle_parameters_of_width_16(arch, count):
    assert DNAModel(arch, 16).n_params == count


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_an_untrained_model_is_near_uniform_and_training_learns(arch):
    model = DNAModel(arch, 16, n_layers=1, context=32)
    repeat = np.tile(np.array([0, 1, 2, 3, 3, 1], dtype=np.uint8), 200)
    windows = even_windows([repeat], 8, 32)
    before = bits_per_base(model, windows).mean()
    history = train_dna(model, [repeat], 60 * 8 * 32, 0.02, 8, length=32, reverse_complement=False)
    assert len(history) == 60
    assert before > 1.9
    assert bits_per_base(model, windows).mean() < 0.5


def test_training_repeats_itself():
    sequence = np.random.default_rng(0).integers(0, 4, 400).astype(np.uint8)
    kept = sequence.copy()

    def history(arch):
        model = DNAModel(arch, 16, 1, context=16, seed=3)
        return train_dna(model, [sequence], 640, batch=4, length=16, corrupt=0.1, seed=3)

    for arch in ARCHITECTURES:
        assert history(arch) == history(arch)
    np.testing.assert_array_equal(sequence, kept)


def test_reading_fasta(tmp_path):
    plain = b">one first\r\nACGT\r\nnnRY\r\n>two\nac-gt\n"
    (tmp_path / "a.fa").write_bytes(plain)
    (tmp_path / "a.fa.gz").write_bytes(gzip.compress(plain))
    for name in ("a.fa", "a.fa.gz"):
        records = read_fasta(tmp_path / name)
        assert {key: codes.tolist() for key, codes in records.items()} == {
            "one": [0, 1, 2, 3, 4, 4, 4, 4], "two": [0, 1, 2, 3],
        }


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not a FASTA file"),
        (b"ACGT\n", "not a FASTA file"),
        (b">a\n\n>b\nACGT\n", "a: the record is empty"),
        (b">a\nACGT\n>a\nACGT\n", "two records are named 'a'"),
        (b">p\nMKLVEFGHIPQWMKLV\n", "not DNA"),
        (b"\x1f\x8bxxxx", "the gzip file is damaged"),
    ],
)
def test_bad_fasta_gets_one_line(tmp_path, content, message):
    path = tmp_path / "bad.fa"
    path.write_bytes(content)
    with pytest.raises(InputError, match=message) as error:
        read_fasta(path)
    assert "\n" not in str(error.value)


def test_a_missing_file_gets_one_line(tmp_path):
    with pytest.raises(InputError, match="no such file"):
        read_fasta(tmp_path / "none.fa")


def test_rare_foreign_letters_become_unknown():
    with pytest.warns(UserWarning, match="1 letters outside"):
        codes = encode("ACGT" * 50 + "!")
    assert codes[-1] == 4


def test_both_strands():
    codes = encode("AACGTN")
    assert reverse_complement(codes).tolist() == encode("NACGTT").tolist()
    np.testing.assert_array_equal(reverse_complement(reverse_complement(codes)), codes)


def test_errors_hit_the_stated_share_and_never_keep_the_base():
    codes = np.zeros(100_000, dtype=np.uint8)
    codes[:100] = SEPARATOR
    wrong = corrupt(codes, 0.2, seed=1)
    assert (wrong[:100] == SEPARATOR).all()
    assert abs((wrong[100:] != 0).mean() - 0.2) < 4 * np.sqrt(0.16 / 99_900)
    np.testing.assert_array_equal(corrupt(codes, 0.0), codes)
    with pytest.raises(InputError, match="rate must lie in"):
        corrupt(codes, 1.5)


def test_regions_share_no_base_with_what_is_kept():
    codes = np.arange(200).astype(np.uint8)
    kept, held_out = regions(codes, 4, 10)
    assert [part[0] for part in held_out] == [20, 70, 120, 170]
    assert sorted(np.concatenate([*kept, *held_out]).tolist()) == list(range(200))
    with pytest.raises(InputError, match="over half"):
        regions(codes, 4, 30)


def trained(bases, tokens, *, length=8, **options):
    return train_dna(DNAModel("llama", 16, context=8), [np.zeros(bases, np.uint8)], tokens, length=length, **options)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: DNAModel("lama", 16), r"did you mean llama\?"),
        (lambda: DNAModel("llama", 20), "multiple of 16"),
        (lambda: DNAModel("llama", 16, 0), "n_layers must be"),
        (lambda: DNAModel("llama", 16, context=8)(torch.zeros(1, 9, dtype=torch.long)), "time up to 8"),
        (lambda: trained(5, 100), "has 5 bases"),
        (lambda: trained(50, 3), "less than one step"),
        (lambda: trained(50, 900, lr=-1), "lr > 0"),
        (lambda: trained(50, 900, length=9), "length <= 8"),
        (lambda: even_windows([np.zeros(5, np.uint8)], 2, 8), "too short"),
    ],
)
def test_bad_arguments_get_one_line(call, message):
    with pytest.raises(InputError, match=message) as error:
        call()
    assert "\n" not in str(error.value)
