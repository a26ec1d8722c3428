"""The pages of the site: every `Page` (tasks/review/site/page.py) that a module here defines."""
