"""Real servers, which tests of other directories use as well."""

from buckets import bucket_environment, bucket_url, ceph, new_bucket
from rclone_servers import new_rclone, rclone_place, rclone_url
from sftp_servers import new_sftp, sftp_program, sftp_url

__all__ = [
    "bucket_environment",
    "bucket_url",
    "ceph",
    "new_bucket",
    "new_rclone",
    "new_sftp",
    "rclone_place",
    "rclone_url",
    "sftp_program",
    "sftp_url",
]
