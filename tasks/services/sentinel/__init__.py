"""Sentinel-2 scenes: searched by STAC, read in parts from cloud-optimized GeoTIFFs onto a grid around a point."""
