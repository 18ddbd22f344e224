"""Tests of hastore.store: whole logs and stores here, their parts in the folders."""
