"""Positions: the stretch against hand values and the formula of Long-CLIP, the merge against its two-table forward."""

import pytest
import torch

from debias_sd.positions import merge_position_tables, stretch_positions


@pytest.fixture
def table() -> torch.Tensor:
    return torch.randn(77, 5, generator=torch.Generator().manual_seed(0))


def test_hand_values_and_the_input_is_not_changed(table: torch.Tensor) -> None:
    four = torch.tensor([[7.0], [10.0], [14.0], [22.0]])
    expected = [7, 10, 11, 12, 13, 14, 16, 18, 20, 22, 24, 26, 28]
    assert stretch_positions(four, keep=1).flatten().tolist() == expected
    before = table.clone()
    stretch_positions(table).add_(1)
    merge_position_tables(table, table + 1).add_(1)
    assert torch.equal(table, before)


@pytest.mark.parametrize(("old", "new"), [(77, 248), (64, 196), (32, 68)])
def test_lengths(old: int, new: int) -> None:
    assert stretch_positions(torch.zeros(old, 3)).shape == (new, 3)


def test_old_rows_are_found_again_and_half_precision_is_interpolated_in_single(table: torch.Tensor) -> None:
    assert torch.equal(stretch_positions(table)[:20], table[:20])
    assert torch.equal(stretch_positions(table)[20::4], table[20:])
    half = table.half()
    stretched = stretch_positions(half)
    assert stretched.dtype == torch.float16
    assert torch.equal(stretched, stretch_positions(half.float()).half())


@pytest.mark.parametrize("i", [0, 1, 27, 55])
@pytest.mark.parametrize("j", [0, 1, 2, 3])
def test_rows_between(table: torch.Tensor, i: int, j: int) -> None:
    expected = ((4 - j) * table[20 + i] + j * table[21 + i]) / 4
    torch.testing.assert_close(stretch_positions(table)[20 + 4 * i + j], expected)


@pytest.mark.parametrize("j", [0, 1, 2, 3])
def test_last_four_rows_continue_the_last_slope(table: torch.Tensor, j: int) -> None:
    expected = table[76] + j * (table[76] - table[75]) / 4
    torch.testing.assert_close(stretch_positions(table)[244 + j], expected)


def test_merge_equals_the_two_table_sum(table: torch.Tensor) -> None:
    """Long-CLIP adds both tables, each under a mask: rows < 20 of the first, the others of the second."""
    frozen = stretch_positions(table)
    trained = frozen + torch.randn(frozen.shape, generator=torch.Generator().manual_seed(1))
    mask = (torch.arange(248) < 20).float()[:, None]
    merged = merge_position_tables(frozen, trained)
    assert torch.equal(merged, frozen * mask + trained * (1 - mask))
    assert torch.equal(merged[19], frozen[19])
    assert torch.equal(merged[20], trained[20])


@pytest.mark.parametrize("keep", [-1, 76, 77])
def test_keep_out_of_range(table: torch.Tensor, keep: int) -> None:
    with pytest.raises(ValueError, match=f"keep is {keep} for a table of 77 positions but must be from 0 to 75"):
        stretch_positions(table, keep=keep)


def test_a_factor_out_of_range_and_tables_that_do_not_fit_are_refused(table: torch.Tensor) -> None:
    with pytest.raises(ValueError, match="factor is 0, a stretch needs 1 or more"):
        stretch_positions(table, factor=0)
    with pytest.raises(ValueError, match="keep is 78 for tables of 77 positions"):
        merge_position_tables(table, table, keep=78)
    with pytest.raises(ValueError, match=r"frozen position table is \(77, 5\) and the trained one \(248, 5\)"):
        merge_position_tables(table, stretch_positions(table))
