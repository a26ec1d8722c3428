"""Files derived by `tasks/plan/derive.py`; README.md says from what and under which licence."""
