"""A real server, which tests of other directories use as well."""

from buckets import bucket_environment, bucket_url, ceph, new_bucket

__all__ = ["bucket_environment", "bucket_url", "ceph", "new_bucket"]
