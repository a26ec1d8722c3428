"""The split by cells of the ground floor, under the name the plan knows it by."""

from tasks.cell_split import SPLITS, keeps_clear, split_of_cells

__all__ = ["SPLITS", "keeps_clear", "split_of_cells"]
