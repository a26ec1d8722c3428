"""The pages of the site, one module each; a module here exports PAGE (tasks/review/site/page.py)."""
