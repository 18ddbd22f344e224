"""Tags codes and keys' hashes of many records, a column at a time.

The rules are those of ``store.record.derived_record``, which itself reads the few records of which
columns say too little: delayed messages, keys that are not ASCII, and tags that are not UTF-8.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, final

import attrs
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hastore.columnar.key_hashes import values_of, words_of
from hastore.store.index.layout import key_hash, topic_hash
from hastore.store.record.derived_record import derive, has_keys
from hastore.store.record.java_hash import tags_code
from hastore.topic import SCHEDULE_TOPIC

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from hastore.store.record.delay_levels import DelayLevels
    from hastore.store.record.derived_record import DerivedRecord

    Array = NDArray[Any]

_REPLACED: Final = "\ufffd"  # stands in a column for bytes that are not UTF-8


@final
@attrs.frozen(kw_only=True)
class DerivedColumns:
    """What to derive from: ``topic_codes`` are places in ``topics``, which are distinct.

    ``properties`` returns the property text of a row.
    """

    topics: Sequence[str]
    topic_codes: Array
    sys_flags: Array
    store_ms: Array
    properties: Callable[[int], bytes]
    delay_levels: DelayLevels

    def tags_codes(self, tags: pa.StringArray) -> Array:
        """Return each record's tags code, even if it has no unit."""
        distinct = tags.dictionary_encode()
        of_tag = pa.array([tags_code(tag) for tag in distinct.dictionary.to_pylist()], pa.int64())
        codes: Array = pc.fill_null(of_tag.take(distinct.indices), 0).to_numpy().copy()
        is_replaced = pc.match_substring(distinct.dictionary, _REPLACED).take(distinct.indices)
        is_delayed = np.array([topic == SCHEDULE_TOPIC for topic in self.topics], np.bool_)
        is_odd = pc.fill_null(is_replaced, fill_value=False).to_numpy(zero_copy_only=False)
        for row in np.flatnonzero(is_odd | is_delayed[self.topic_codes]).tolist():
            codes[row] = self._derive(row).tags_code
        return codes

    def key_hashes(
        self, uniq_keys: pa.StringArray, keys: pa.StringArray, rows: Array
    ) -> tuple[Array, Array]:
        """Return the hashes of the keys of ``rows`` in the index's order, and the row of each."""
        hash_of_topic = [topic_hash(topic) for topic in self.topics]
        begun = np.array(hash_of_topic, np.int64)[self.topic_codes]
        unique, words = values_of(uniq_keys), words_of(keys)
        odd = np.union1d(unique.odd_rows(), words.odd_rows())
        is_wanted = np.zeros(len(self.topic_codes), np.bool_)
        is_wanted[rows] = has_keys(self.sys_flags[rows])
        is_plain = is_wanted.copy()
        is_plain[odd] = False
        found = []  # rows, places within a row, hashes
        for place, some in enumerate((unique, words)):
            kept = is_plain[some.rows]
            places = place + some.starts[kept] * place
            found.append((some.rows[kept], places, some.hashes(begun)[kept]))
        for row in odd[is_wanted[odd]].tolist():
            begun_here = hash_of_topic[self.topic_codes[row]]
            exact = [key_hash(begun_here, key) for key in self._derive(row).keys]
            places = np.arange(len(exact))
            found.append((np.full(len(exact), row), places, np.array(exact, np.int32)))
        of_rows, places, hashes = (np.concatenate(parts) for parts in zip(*found, strict=True))
        order = np.lexsort((places, of_rows))
        return of_rows[order].astype(np.int64), hashes[order]

    def _derive(self, row: int) -> DerivedRecord:
        return derive(
            self.topics[self.topic_codes[row]],
            sys_flag=int(self.sys_flags[row]),
            store_ms=int(self.store_ms[row]),
            properties=self.properties(row),
            delay_levels=self.delay_levels,
        )
