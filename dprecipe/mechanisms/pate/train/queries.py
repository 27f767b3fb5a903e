"""The queries: the first distinct public records. A repeated record is not asked again: its answer is replayed.

Axes: R public records, Q queries.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import final

import numpy as np
from numpy.typing import NDArray

from dprecipe.data.preprocess import Floats
from dprecipe.data.records import Records
from dprecipe.faults import DataFault

NO_QUERY = -1


@final
@dataclass(frozen=True, slots=True, eq=False)
class ChosenQueries:
    """The public records that are asked, and the others to which their answers apply."""

    records: NDArray[np.int64]
    """Public record that each query is, (Q,)."""
    of_record: NDArray[np.int64]
    """Query that each public record is, or equals byte for byte, (R,); `NO_QUERY` for records that are not asked."""

    def labels(self, outcomes_Q: NDArray[np.int64]) -> NDArray[np.int64]:
        """Returns the outcome of each public record's query, (R,); `NO_QUERY` if it has no query."""
        return np.where(self.of_record == NO_QUERY, NO_QUERY, outcomes_Q[self.of_record])


def digest_pending(records: object) -> NDArray[np.uint8] | None:
    """Returns digests, (R, 32), that tell apart records on which a paid step is pending; None if none is pending.

    They are digests of the records as read: their prepared values are not known before the paid step. Records that
    differ here and are equal afterwards are two queries, and each is paid for.
    """
    if not isinstance(records, Records) or records.next_stage is None:
        return None
    texts = [records.texts[name].values for name in sorted(records.texts)]
    digests = [
        hashlib.blake2b(row.tobytes() + json.dumps([column[index] for column in texts]).encode(), digest_size=32)
        for index, row in enumerate(records.features)
    ]
    return np.frombuffer(b"".join(digest.digest() for digest in digests), np.uint8).reshape(-1, 32)


def choose_queries(public: Floats | NDArray[np.uint8], max_queries: int) -> ChosenQueries:
    """Chooses the first `max_queries` distinct records of the public ones, (R, …).

    Raises:
        DataFault: there are fewer distinct records.
    """
    query_of_digest: dict[bytes, int] = {}
    firsts: list[int] = []
    of_record_R = np.full(len(public), NO_QUERY)
    for record, features in enumerate(np.ascontiguousarray(public)):
        digest = hashlib.blake2b(features.data, digest_size=32).digest()
        query = query_of_digest.setdefault(digest, len(query_of_digest))
        if query >= max_queries:
            continue
        of_record_R[record] = query
        if query == len(firsts):
            firsts.append(record)
    if len(query_of_digest) < max_queries:
        raise DataFault(
            f"data.public holds {len(query_of_digest)} different records, the plan puts {max_queries} queries",
            f"lower mechanism.queries.max to {len(query_of_digest)}, or name more public records"
            if query_of_digest
            else "name public records",
        )
    return ChosenQueries(np.array(firsts, np.int64), of_record_R)
