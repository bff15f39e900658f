"""What a model can do, as a number: suites of questions, judged. Asking is in ``asking.py``; the rest is pure."""
