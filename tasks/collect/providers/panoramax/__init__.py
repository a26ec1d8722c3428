"""Panoramax: street-level pictures of many instances, each under a licence of its own, by the Panoramax API."""

from tasks.collect.providers.panoramax.client import Panoramax
from tasks.collect.providers.panoramax.streets import PanoramaxStreets
from tasks.collect.providers.provider import Provider

PROVIDER = Provider(lambda connection, settings: PanoramaxStreets(Panoramax(connection), settings.crowded_rows))
