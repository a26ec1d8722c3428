"""Mapillary: crowd-sourced street-level pictures under CC BY-SA 4.0, by the Graph API v4 and its vector tiles."""

from tasks.collect.providers.mapillary.client import Mapillary
from tasks.collect.providers.mapillary.streets import MapillaryStreets
from tasks.collect.providers.provider import Provider

PROVIDER = Provider(lambda connection, settings: MapillaryStreets(Mapillary(connection)))
