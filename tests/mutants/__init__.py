"""Planted bugs, and the test that must notice each of them."""
