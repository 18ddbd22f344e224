"""Columns that many tables of a report have."""

from __future__ import annotations

from hastore.pipeline.report.html import Column
from hastore.pipeline.report.numbers import count_text, name_text, size_text


def name_column(key: str, title: str) -> Column:
    """Give a column of names: of topics, tags, keys, stores."""
    return Column(title, lambda row: name_text(row.get(key)), is_number=False)


def count_column(key: str, title: str) -> Column:
    """Give a column of counts, empty where there is none."""
    return Column(title, lambda row: "" if row.get(key) is None else count_text(row[key]))


def size_column(key: str, title: str) -> Column:
    """Give a column of bytes."""
    return Column(title, lambda row: size_text(row[key]))
