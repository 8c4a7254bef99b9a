"""Files on S3 and on servers that speak its protocol, or in a folder, by the client `obstore`.

Each store is bound to one tenant and one scope, which are the head of every name in the bucket.
"""

from persistence._objects.errors import BucketRefusedError, BucketUnreachableError
from persistence._objects.files import FolderFileStore, ObjectArtifactBytes, S3FileStore
from persistence._objects.settings import BucketSettingsError, S3Settings

__all__ = [
    "BucketRefusedError",
    "BucketSettingsError",
    "BucketUnreachableError",
    "FolderFileStore",
    "ObjectArtifactBytes",
    "S3FileStore",
    "S3Settings",
]

__path__: list[str] = []  # modules of the release before were below this one
