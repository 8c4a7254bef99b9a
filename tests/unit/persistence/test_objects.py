"""What needs no bucket: names of objects, settings, and what errors of the client mean."""

from __future__ import annotations

import pickle
import re
from typing import Any

import pytest
from obstore.exceptions import GenericError, PermissionDeniedError

from actors.errors import ContractError, PersistenceError
from persistence._objects.errors import is_missing_object, translate_objects
from persistence._objects.settings import name_of_file
from persistence.objects import (
    BucketRefusedError,
    BucketSettingsError,
    BucketUnreachableError,
    FolderFileStore,
    S3FileStore,
    S3Settings,
)

SECRET = "s3cr3t/with+signs"
ANSWER = (
    "Generic S3 error: Error performing PUT http://h/b/k in 1ms - Server returned non-2xx status code: {}: "
    '<?xml version="1.0"?>\n<Error><Code>{}</Code><Message>In words</Message>'
    "<AWSAccessKeyId>AKIA</AWSAccessKeyId>"
)


def settings(**changes: Any) -> S3Settings:
    """Settings that can be used, but for the changes."""
    keys = {"access_key": "AKIA", "secret_key": SECRET}
    return S3Settings(
        **{"bucket": "files", "endpoint": "https://s3.example:9000", **keys, **changes}
    )


@pytest.mark.item(311)
def test_no_two_files_have_one_name() -> None:
    """Not those whose texts read alike, nor those of two tenants or scopes; and any bucket takes the names."""
    keys = [
        "a",
        "A",
        "a/b",
        "a//b",
        "a/",
        "a.b",
        "a b",
        "ä",
        "é",
        "e\u0301",
        "x" * 1_024,
        "x/" * 512,
    ]
    pairs = [("t", "s"), ("t", "s/files"), ("T", "s"), ("s", "t"), ("t", ""), ("t", "ß" * 500)]
    names = {name_of_file(*pair, key).lower() for pair in pairs for key in keys}

    assert len(names) == len(pairs) * len(keys)
    assert all(re.fullmatch(r"[a-z0-9_./-]{1,400}", name) for name in names)
    assert all(len(part) <= 255 and part.strip(".") for name in names for part in name.split("/"))
    assert name_of_file("acme", "s", "2025/may 1.txt").endswith(".may-1.txt")


@pytest.mark.item(311)
@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"bucket": "Upper"}, "bucket 'Upper'"),
        ({"bucket": "a/b"}, "bucket 'a/b'"),
        ({"endpoint": "s3.example"}, "https://host:port"),
        ({"endpoint": f"https://AKIA:{SECRET}@s3.example"}, "keys apart"),
        ({"endpoint": "https://s3.example/bucket"}, "without a path"),
        ({"endpoint": "https://s3.example:99999"}, "not the address"),
        ({"endpoint": "https://two words"}, "not the address"),
        ({"access_key": None}, "both, or neither"),
        ({"secret_key": f"{SECRET}\n"}, "secret_key"),
        ({"region": "eu west"}, "us-east-1"),
        ({"prefix": "a//b"}, "prefix"),
        ({"prefix": "../b"}, "relative path"),
        ({"request_s": 0}, "request_s"),
        ({"retry_s": float("nan")}, "retry_s"),
        ({"retries": 11}, "0 to 10"),
    ],
)
def test_settings_that_cannot_be_used_are_refused(changes: dict[str, Any], problem: str) -> None:
    """With the remedy, and without a word of the keys."""
    with pytest.raises(ContractError, match=problem) as raised:
        settings(**changes)

    assert SECRET not in f"{raised.value}{raised.value!r}"
    if isinstance(raised.value, BucketSettingsError):
        assert str(pickle.loads(pickle.dumps(raised.value))) == str(raised.value)


@pytest.mark.item(311)
def test_settings_show_no_key() -> None:
    """Neither by their text nor by the address that errors name."""
    bucket_settings = settings()

    assert SECRET not in f"{bucket_settings}{bucket_settings!r}{bucket_settings.where}"
    assert "AKIA" not in f"{bucket_settings}{bucket_settings!r}"
    assert bucket_settings.where == "https://s3.example:9000/files"


@pytest.mark.item(311)
@pytest.mark.parametrize(
    ("error_text", "kind", "words"),
    [
        (ANSWER.format("403 Forbidden", "SignatureDoesNotMatch"), BucketRefusedError, "secret_key"),
        (ANSWER.format("404 Not Found", "NoSuchBucket"), BucketRefusedError, "Create the bucket"),
        (ANSWER.format("301 Moved", "PermanentRedirect"), BucketRefusedError, "own region"),
        (ANSWER.format("400 Bad Request", "Other"), BucketRefusedError, "400 Other In words"),
        (ANSWER.format("503 Slow", "SlowDown"), BucketUnreachableError, "503 SlowDown In words"),
        (ANSWER.format("429 Slow", "SlowDown"), BucketUnreachableError, "sent again"),
        (
            "Generic S3 error: Error performing GET http://h/b/k in 6s - HTTP error: timed out\n\nDebug",
            BucketUnreachableError,
            "HTTP error: timed out",
        ),
        (
            "Generic S3 error: Error performing PUT http://169.254.169.254/latest/api/token in 9s",
            BucketRefusedError,
            "no keys",
        ),
    ],
)
def test_an_error_of_the_client_says_what_to_do(
    error_text: str, kind: type[PersistenceError], words: str
) -> None:
    """Whether the same may be sent again is its kind; what the server quotes of keys is left out."""
    error = translate_objects(GenericError(error_text), "uploading k", "https://h/b")

    assert type(error) is kind
    assert words in str(error)
    assert str(error).startswith("uploading k: https://h/b ")
    assert "AKIA" not in str(error)
    assert error.retryable is (kind is BucketUnreachableError)


@pytest.mark.item(311)
def test_a_bucket_that_is_not_there_is_no_missing_file() -> None:
    """A program would take its files for lost."""
    lost = FileNotFoundError(ANSWER.format("404 Not Found", "NoSuchBucket"))

    assert not is_missing_object(lost)
    assert is_missing_object(FileNotFoundError(ANSWER.format("404 Not Found", "NoSuchKey")))
    assert not is_missing_object(PermissionDeniedError("no"))


@pytest.mark.item(311)
async def test_what_no_request_can_carry_is_refused_before_it() -> None:
    """Media types with line ends, URLs that are valid for too long, and tenants that are no names."""
    store = S3FileStore(settings(endpoint="https://localhost:1"), tenant="acme")

    for type_ in ("text/plain\r\nx: y", "text/ü", "\x00"):
        with pytest.raises(ContractError, match="media type"):
            await store.upload("k", b"x", content_type=type_)
    with pytest.raises(ContractError, match="7 days"):
        await store.presign_url("k", expires_s=7 * 86_400 + 1)
    url = await store.presign_url("k", expires_s=0.1)
    assert "X-Amz-Expires=1&" in url
    assert SECRET not in url
    for tenant, scope in (("a/b", "s"), ("a", "\x00"), ("a", "s" * 1_001)):
        with pytest.raises(ContractError):
            S3FileStore(settings(), tenant=tenant, scope=scope)


@pytest.mark.item(311)
async def test_a_folder_that_cannot_be_used_says_so(tmp_path: Any) -> None:
    """By each call, with its path and the remedy; a file in it is nobody else's."""
    (tmp_path / "file").write_text("x")
    store = FolderFileStore(tmp_path / "file" / "folder", tenant="acme")
    for call in (store.connect(), store.upload("k", b"x"), store.download("k"), store.delete("k")):
        with pytest.raises(BucketRefusedError, match=r"Not a directory.*folder's rights"):
            await call

    await FolderFileStore(tmp_path / "new" / "er", tenant="acme").connect()
    assert (tmp_path / "new" / "er").stat().st_mode & 0o077 == 0
