"""A snapshot as others read it: Hugging Face Parquet, WebDataset, GeoParquet, Croissant."""
