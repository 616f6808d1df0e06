"""Proof that every engine computes the same update."""
