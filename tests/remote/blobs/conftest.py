"""Real servers, which tests of other directories use as well."""

from buckets import bucket_environment, bucket_url, ceph, new_bucket
from sftp_servers import new_sftp, sftp_program, sftp_url

__all__ = [
    "bucket_environment",
    "bucket_url",
    "ceph",
    "new_bucket",
    "new_sftp",
    "sftp_program",
    "sftp_url",
]
