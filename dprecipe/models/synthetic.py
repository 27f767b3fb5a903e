"""Synthetic records: rows of a table, or texts, that a released language model writes and a strict reader accepts.

What a model writes belongs to no unit, and may be no row at all. A row counts only if it is exactly one that the
recipe's columns could hold (`dprecipe.data.row_text`). The others are rejected, and counted by reason: the counts are
about the released model, and tell nothing more of its training records than it does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import final

import torch

from dprecipe.data.columns import Boolean, Category, Columns, Ordinal
from dprecipe.data.row_text import NoRow, RowText, RowValue
from dprecipe.faults import RunFailed, UsageFault
from dprecipe.models.decoding import Sampling
from dprecipe.models.language_model import BATCH, LanguageModel, WrittenText

HOPELESS = 0.01
"""A share of accepted rows below which nothing is waited for."""
TRIED = 1000
"""Rows after which the share is judged."""
UNFINISHED, EMPTY = "cut before its end", "empty"
Record = Mapping[str, RowValue]


@dataclass(slots=True)
class Tally:
    """Counts of the texts that a model has written: accepted, and rejected."""

    accepted: int = 0
    rejected: Counter[str] = field(default_factory=Counter)
    """Number of rejected texts by reason."""

    def add(self, reason: str | None) -> None:
        """Counts a text: accepted, or rejected for a reason."""
        if reason is None:
            self.accepted += 1
        else:
            self.rejected[reason] += 1

    @property
    def written(self) -> int:
        """All texts."""
        return self.accepted + self.rejected.total()

    @property
    def rate(self) -> float:
        """The share of texts that were accepted; 1 where there are none."""
        return self.accepted / self.written if self.written else 1.0

    def describe(self) -> str:
        """Describes in words how many texts were accepted, and why others were not."""
        reasons = ", ".join(f"{reason}: {count:,}" for reason, count in self.rejected.most_common())
        return f"{self.accepted:,} of {self.written:,} texts accepted ({self.rate:.1%})" + (
            f"; rejected: {reasons}" if reasons else ""
        )


@final
class RecordWriter:
    """Records of a released model of rows (form `row`) or of free text (form `text`)."""

    def __init__(self, model: LanguageModel) -> None:
        """Raises `UsageFault` where the model's texts have another form."""
        step = model.step
        if step.row is None and step.text is None:
            form = "conversations" if step.chat is not None else "prompts and completions"
            raise UsageFault(
                f"the model writes {form}, which are no records by themselves",
                "train one on `row` or `text` (data.preprocess sequences), or use dprecipe generate",
            )
        self._model, self._columns = model, model.file.columns or {}
        self._rows = None if step.row is None else RowText(self._columns, step.row)
        self.names: tuple[str, ...] = step.columns
        """Names of the columns, in order."""
        self.tally = Tally()

    @property
    def values(self) -> tuple[str, ...] | None:
        """The declared values of the first column, which records can be asked for; None where it has none."""
        return None if self._rows is None else declared_values(self._columns, self.names[0])

    def write(
        self,
        count: int,
        sampling: tuple[int | None, float, float],
        generator: torch.Generator,
        value: str | None = None,
        progress: Callable[[int], None] = lambda done: None,
    ) -> Iterator[Record]:
        """Yields `count` accepted records; `value`: of their first column, which is then not drawn. `sampling`:
        most tokens of one (None: the length of training), temperature, top-p. `progress` is called with how many there
        are.

        Raises:
            UsageFault: no such value is declared, or a number is out of its range.
            RunFailed: so few of the texts are rows that waiting is hopeless.
        """
        if value is not None and value not in (self.values or ()):
            declared = f"of {', '.join(self.values)}" if self.values else "with declared values"
            raise UsageFault(f"{self.names[0]} is no column {declared} that can be {value!r}", "name one of them")
        prompt = self._prompt(value)
        if self._model.tokens.decode(self._model.tokens.encode([prompt])[0] if prompt else []) != prompt:
            raise UsageFault(
                "the release's tokeniser does not give texts back as they were: it has no decoder, or changes letters",
                "train with the tokeniser of a decoder, or use dprecipe generate",
            )
        start = self._model.begin(prompt)
        most, temperature, top_p = sampling
        chosen = Sampling(self._model.count_left(start) if most is None else most, temperature, top_p)
        own, done = Tally(), 0
        while done < count:
            for one in self._model.write(start, BATCH, chosen, generator):
                record, reason = self._read(prompt, one)
                own.add(reason)
                self.tally.add(reason)
                if record is not None and done < count:
                    done += 1
                    yield record
            progress(done)
            if own.written >= TRIED and own.rate < HOPELESS:
                raise RunFailed(
                    f"the model does not write such rows: {own.describe()}",
                    "train it longer or with more budget, raise max_length, or lower --temperature",
                )

    def _prompt(self, value: str | None) -> str:
        """Returns the start of a record, without the blank after the colon, which tokenisers join to the next word."""
        if self._rows is None:
            return ""
        if value is None:
            return f"{self.names[0]}:"
        return f"{self.names[0]}: {value}" + (f"\n{self.names[1]}:" if self.names[1:] else "")

    def _read(self, prompt: str, one: WrittenText) -> tuple[Record | None, str | None]:
        """Returns the record that a text is, or why it is none."""
        text = prompt + one.text
        if self._model.tokens.after and not one.has_ended:
            return None, UNFINISHED
        if self._rows is None:
            return ({self.names[0]: text}, None) if text.strip() else (None, EMPTY)
        try:
            return self._spell(self._rows.parse(text)), None
        except NoRow as error:
            return None, str(error)

    def _spell(self, record: Record) -> Record:
        """Returns the record with truth values in the words of their columns, as the recipe reads them."""
        return {
            name: (declared_values(self._columns, name) or ("false", "true"))[value]
            if isinstance(value, bool)
            else value
            for name, value in record.items()
        }


def declared_values(columns: Columns, name: str) -> tuple[str, ...] | None:
    """Returns the declared values of a column, as they are written; None where it has none."""
    match columns[name]:
        case Category(values=values) | Ordinal(values=values):
            return values
        case Boolean(values=values):
            return values or ("false", "true")
    return None
