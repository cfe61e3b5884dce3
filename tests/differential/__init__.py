"""Tests that run two programs in lockstep and allow no difference."""
