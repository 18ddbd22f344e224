"""Seeds that have failed once, and what each found; they are run for ever.

A seed is the same run only as long as the simulator chooses as it did, so whatever was wrong in the
product has a test of its own, too.  ``model``: the simulator was wrong, not the product.
"""

PINNED = {
    91: "model: a slave whose disk rots after its report has kept its promise",
    269: "the same as 91",
    393: "the same as 91",
    335: "a clean stop before the dispatch had come again to where it was before a power cut left"
    " holes in consume queues: tests/store/test_stop_before_redispatch.py",
    360: "model: two failed syncs at once are one group of two disk errors",
    524: "model: an ASYNC_FLUSH slave that loses its power after its report has kept its promise",
    762: "model: a record that was flushed in part, and rotted there, is a torn one",
    811: "a start took the first files of a log for sound of which nothing was ever flushed:"
    " tests/store/test_nothing_flushed_at_start.py",
    972: "model: a dead process's listener took its successor's address away",
    10358: "model: a put that was answered while the world healed was held for unanswered",
    12270: "the same as 10358, with a master that died",
    12543: "the same as 10358",
    10704: "model: what a master confirms before it serves was not noted",
    10777: "what a failed sync had left in the cache behind a log's end counted as written, once"
    " the same bytes were appended again:"
    " tests/store/test_recovery.py::test_what_a_failed_sync_left_behind_the_log_is_forgotten",
    23320: "model: a slave that had not compared yet was held for a prefix of its master",
    27087: "the same as 23320",
    27818: "the name of a queue's file was not synced where a killed process had made it; after a"
    " power cut the queue began at 0 again: tests/store/test_names_after_a_kill.py",
    38049: "a clean stop before a queue that a power cut had emptied was built again was believed:"
    " tests/store/test_stop_before_redispatch.py",
    20120: "model: an answer that a cut had held up came when a crash had lost what it shows",
}
