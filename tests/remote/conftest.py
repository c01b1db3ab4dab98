"""Real servers, which tests of other directories use as well."""

from buckets import bucket_environment, bucket_url, ceph
from sftp_servers import sftp_program, sftp_url

__all__ = ["bucket_environment", "bucket_url", "ceph", "sftp_program", "sftp_url"]
