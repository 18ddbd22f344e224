"""Peers that mean harm, or know no better: every listener, and both clients of ours."""
