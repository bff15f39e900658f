"""Batch jobs: files of requests that nobody waits for, answered when engines have nothing better to do."""
