"""Bytes to records and back: pure, canonical, and suspicious of every byte."""
