"""Tests of hastore.store.recovery, most of them with whole logs or stores."""
