"""Seeds that once failed, and what each found; every run of the tests repeats them.

A seed remains the same run only while the simulator makes the same choices, so each defect of the
product also has a separate test.  ``model``: the simulator was wrong, not the product.
"""

PINNED = {
    91: "model: a slave whose disk rots after its report has kept its promise",
    269: "the same as 91",
    393: "the same as 91",
    335: "a clean stop before dispatch had returned to where it was before a power cut left"
    " holes in consume queues: tests/store/recovery/test_stop_before_redispatch.py",
    360: "model: two failed syncs at once are one group of two disk errors",
    524: "model: an ASYNC_FLUSH slave that loses its power after its report has kept its promise",
    762: "model: a record that was flushed in part, and rotted there, counts as torn",
    811: "a start took the first files of a log, never flushed at all, for intact ones:"
    " tests/store/recovery/test_nothing_flushed_at_start.py",
    972: "model: a dead process's listener took its successor's address away",
    10358: "model: a put that was answered while the world healed was counted as unanswered",
    12270: "the same as 10358, with a master that died",
    12543: "the same as 10358",
    10704: "model: bytes that a master confirms before it serves were not recorded",
    10777: "bytes left by a failed sync in the cache after a log's end counted as written, once"
    " the same bytes were appended again:"
    " tests/store/recovery/test_flushed_bytes.py::test_cached_bytes_after_the_log_are_forgotten",
    23320: "model: a slave that had not compared yet was taken for a prefix of its master",
    27087: "the same as 23320",
    27818: "the name of a queue's file that a killed process had made was not synced; after a"
    " power cut the queue began at 0 again: tests/store/recovery/test_names_after_a_kill.py",
    38049: "a start trusted a clean stop from before a queue emptied by a power cut was rebuilt:"
    " tests/store/recovery/test_stop_before_redispatch.py",
    20120: "model: an answer that a cut had delayed came after a crash had lost its message",
}

# Of replica groups (``hastore sim replay --groups``).
PINNED_GROUPS = {
    2: "a SYNC_FLUSH master confirmed bytes that it had not flushed:"
    " tests/ha/test_group_ha_service.py"
    "::test_master_with_sync_flush_confirms_only_what_it_has_flushed",
    14: "a former member with all of the log stayed out of an idle group's set:"
    " tests/ha/test_sync_state_set.py"
    "::test_node_that_left_and_has_all_of_the_log_joins_again_by_repeating_its_ack",
    48: "model: a BLANK that ends a log is no message, and an opening may drop it",
    107: "a slave stored a master's epochs before it had cut what another master had written:"
    " tests/ha/test_link_epochs.py::test_bytes_that_we_have_change_no_epochs",
    3138: "model: a start showed an older cut as the newest, because the wall clock had gone back",
    4168: "model: a promotion that comes after the next one need not have what was confirmed since",
    4297: "model: a node whose power was cut before its process ran a step",
    4484: "the same as 4168",
    5387: "a confirm mark inside a record refused the cut of that record, of which a member had a"
    " part: tests/store/recovery/test_cut.py"
    "::test_cut_of_a_message_below_the_confirm_mark_is_an_alarm",
    1759: "an fsync that failed as a cut was found to be needed ended the node by the wrong error",
    1576: "model: a member's new link, whose handshake a cut held up, was taken for the one that"
    " counted",
    965: "model: a proposal whose answer was lost was called void because the term was over",
    36: "a topic that was deleted once more kept offsets committed since:"
    " tests/broker/test_deletion.py"
    "::test_a_second_deletion_removes_offsets_committed_after_the_first",
    206: "a clock that was set from behind to ahead, and then right, was not known to have been"
    " behind: tests/broker/test_clock.py"
    "::test_a_clock_that_was_behind_and_then_ahead_has_been_behind_too",
}

# Of groups whose nodes decide roles by a model of etcd (``simulate_group(seed, with_etcd=True)``).
PINNED_WITH_ETCD = {
    3: "a start after etcd was restored raised the alarm again for ever:"
    " tests/cluster/test_role_service.py"
    "::test_a_start_notices_that_the_coordinator_was_restored_since",
    174: "model: a person took another group's log for the newest one",
    229: "model: a set that a master had written again after a restore did not count",
    232: "model: etcd was restored to before a node got a new directory",
    3355: "model: what a group had agreed on before a restore counted in a later epoch, too",
    3706: "a group whose etcd had forgotten epochs began them again, and a node that had seen them"
    " followed nobody: tests/cluster/test_role_service.py"
    "::test_after_an_epoch_that_was_forgotten_a_later_one_begins",
    4573: "a promotion that took too long was given up, and failed while the node was to follow its"
    " successor: it never did: tests/broker/test_group_node.py"
    "::test_a_master_is_followed_although_an_abandoned_promotion_fails_meanwhile",
    676: "a master handed over while a put waited for its own disk, and answered it PUT_OK after"
    " its successor had begun: tests/cluster/test_role_service.py"
    "::test_a_switchover_waits_until_all_puts_are_answered",
    2735: "model: nobody removed a node once more that a dead process had registered again",
    1274: "model: etcd was restored to before an epoch, and nobody who had seen it was up",
    2156: "oracle: a put had enough copies before a member left, and waited for the master's disk",
    197: "a view from before its own write took a node out of a master's set that could be elected:"
    " tests/cluster/test_term_coordinator.py::test_an_old_view_does_not_undo_what_was_accepted",
    30061: "a slave's log ended before a BLANK whose filler it had acknowledged, and its next"
    " opening took that for a loss: tests/store/test_node_identity.py"
    "::test_a_slave_whose_log_ends_before_a_blank_has_lost_nothing",
    2563: "oracle: an operator began again with the newest log after all members had lost theirs",
    706: "model: no operator named a log where one member was a copy and the others were unproven",
    65: "a node whose role changed forgot that its clock had just been behind:"
    " tests/broker/test_clock.py::test_a_doubt_is_stored_as_soon_as_it_is_seen",
}

# The same with etcd down for a minute, with failsafe (``Outage(failsafe=True)``).
PINNED_WITH_ETCD_DOWN = {
    454: "model: a restore to what the group had agreed on anyway was taken for a step back",
    944: "a node ended because of the record that its directory's predecessor had left, which was"
    " killed: tests/cluster/test_role_service.py"
    "::test_a_record_that_another_directory_has_left_is_waited_for",
}
