"""The review site: a folder of static pages for each snapshot. docs/review.md says how to add a page."""

from tasks.review.site.build import build_site, keep_plan, renew_site, report_path, site_settings

__all__ = ["build_site", "keep_plan", "renew_site", "report_path", "site_settings"]
