"""Files derived by `infra/derive/plan.py`; README.md says from what and under which licence."""
