"""Files on S3 and on servers that speak its protocol, or in a folder, by the client `obstore`.

Keys and bytes enter by `FileStore`; requests of a client leave, and errors of this project. It knows no
database. Each store is bound to one tenant and one scope, which are the head of every name in the bucket.
"""

from persistence.objects.errors import BucketRefusedError, BucketUnreachableError
from persistence.objects.files import FolderFileStore, ObjectArtifactBytes, S3FileStore
from persistence.objects.settings import BucketSettingsError, S3Settings

__all__ = [
    "BucketRefusedError",
    "BucketSettingsError",
    "BucketUnreachableError",
    "FolderFileStore",
    "ObjectArtifactBytes",
    "S3FileStore",
    "S3Settings",
]
