"""How long the lake keeps what nothing needs any more."""

from pydantic import Field

from schemas.settings.base import Settings


class MaintainSettings(Settings):
    """Retention of `geofix maintain`. What a snapshot names is kept whatever these say."""

    versions_days: int = Field(7, ge=1, le=3650, description="older table versions, unless a snapshot names them")
    images_days: int = Field(7, ge=1, le=3650, description="pictures that no row names, since they were last stored")
    temporary_hours: int = Field(24, ge=1, le=8760, description="temporary files that killed writers left")
    reports_days: int = Field(90, ge=1, le=3650, description="reports of snapshots that were not approved")
    state_days: int = Field(30, ge=1, le=3650, description="logs, and local copies of a remote lake's files")
    small_file_mb: int = Field(64, ge=1, le=4096, description="table files below this size are merged")
    least_files: int = Field(8, ge=2, description="small files of a table before they are merged")
