"""JSON web tokens of another system: the claims that are used, and the tokens that are refused."""

from __future__ import annotations

import asyncio
import base64
import json
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from compose._web.identity.json_web_tokens import (
    REFRESH_S,
    RETRY_S,
    ClaimNames,
    JsonWebTokens,
    KeySet,
)
from tests.behaviour.guarded import Guarded, guarded_on
from tests.behaviour.web import Answer, create_session

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.behaviour.bed import Bed

RSA: Final = rsa.generate_private_key(public_exponent=65_537, key_size=2_048)
OTHER: Final = rsa.generate_private_key(public_exponent=65_537, key_size=2_048)
SHORT: Final = rsa.generate_private_key(public_exponent=65_537, key_size=1_024)
EC: Final = ec.generate_private_key(ec.SECP256R1())
ED: Final = ed25519.Ed25519PrivateKey.generate()
NAMES: Final = ClaimNames(issuer="https://id.example", audience="callboard")


def jwk(key: Any, kid: str | None, **more: Any) -> dict[str, Any]:
    """Return the public part of a key, as in a key set."""
    kinds: dict[type, Any] = {
        rsa.RSAPrivateKey: jwt.algorithms.RSAAlgorithm,
        ec.EllipticCurvePrivateKey: jwt.algorithms.ECAlgorithm,
        ed25519.Ed25519PrivateKey: jwt.algorithms.OKPAlgorithm,
    }
    algorithm = next(algorithm for base, algorithm in kinds.items() if isinstance(key, base))
    fields: dict[str, Any] = algorithm.to_jwk(key.public_key(), as_dict=True)
    fields.pop("key_ops", None)
    return {**fields, **({} if kid is None else {"kid": kid}), **more}


KEYS: Final = [
    *(jwk(RSA, "r"), jwk(EC, "e"), jwk(ED, "o"), jwk(SHORT, "short")),
    jwk(RSA, "pinned", alg="RS256"),
]


class Signer:
    """Another system that signs tokens, by the bed's clock."""

    def __init__(self, bed: Bed) -> None:
        self.now = int(bed.clock.now().timestamp())

    def claims(self, **more: Any) -> dict[str, Any]:
        """Return valid claims, changed by `more`; None removes one."""
        facts = {
            "iss": "https://id.example",
            "aud": "callboard",
            "sub": "ada",
            "tenant": "acme",
            "scope": "openid sessions:own cleanup",
            "exp": self.now + 600,
            **more,
        }
        return {name: value for name, value in facts.items() if value is not None}

    def token(
        self, key: Any = RSA, algorithm: str = "RS256", kid: str | None = "r", **more: Any
    ) -> str:
        """Return a token that is valid but for the given arguments."""
        headers = {} if kid is None else {"kid": kid}
        return jwt.encode(self.claims(**more), key, algorithm=algorithm, headers=headers)


def by_hand(head: object, claims: object, signature: bytes = b"x") -> str:
    """Return a token of these parts."""
    parts = (json.dumps(head).encode(), json.dumps(claims).encode(), signature)
    return ".".join(base64.urlsafe_b64encode(part).decode().rstrip("=") for part in parts)


class Keys:
    """A key source that returns `data`, or something unreadable."""

    def __init__(self, *keys: dict[str, Any]) -> None:
        self.data: bytes | None = json.dumps({"keys": keys or KEYS}).encode()

    async def __call__(self) -> bytes:
        """See `KeySource`."""
        await asyncio.sleep(0)
        if self.data is None:
            raise ConnectionRefusedError
        return self.data


@asynccontextmanager
async def trusting(
    bed: Bed, source: Keys | None = None, names: ClaimNames = NAMES
) -> AsyncIterator[Guarded]:
    """Return an API that accepts tokens signed by these keys."""
    keys = KeySet(source or Keys(), bed.clock.monotonic)
    recognize = JsonWebTokens(keys, names, bed.clock.now)
    async with guarded_on(bed, recognize=recognize) as guarded:
        yield guarded


async def who(guarded: Guarded, token: str) -> Answer:
    """Return the answer to the request for one's own principal."""
    return await guarded.with_token(token)("GET", "/v1/login")


async def test_claims_name_the_principal(bed: Bed) -> None:
    """By keys of each kind. Scopes of other systems are ignored; scopes may be a list."""
    signer = Signer(bed)
    async with trusting(bed) as guarded:
        for key, algorithm, kid in (
            (RSA, "RS256", "r"),
            (RSA, "PS512", "r"),
            (EC, "ES256", "e"),
            (ED, "EdDSA", "o"),
        ):
            answer = await who(guarded, signer.token(key, algorithm, kid))
            assert answer.status == 200, (algorithm, answer)
            identity = answer.data
            assert (identity["tenant"], identity["principal"]) == ("acme", "ada")
            assert identity["scopes"] == ["cleanup", "sessions:own"]
        token = signer.token(scope=["sessions:all", 7, "admin"], aud=["x", "callboard"])
        assert (await who(guarded, token)).data["scopes"] == ["sessions:all"]
        nothing = signer.token(scope=None)
        assert (await who(guarded, nothing)).data["scopes"] == []
        refused = await guarded.with_token(nothing)("GET", "/v1/sessions")
        assert refused.status == 403
        web = guarded.with_token(signer.token(sub="auth0|a b/ü:1"))
        await create_session(web)
        assert (await web.get("/v1/sessions/s"))["owner"] == "auth0|a b/ü:1"
        assert (await guarded.with_token(signer.token())("GET", "/v1/sessions/s")).status == 404
        stored = await guarded.token("ada", "sessions:own")
        assert (await who(guarded, stored)).status == 401


async def test_the_claims_of_principal_and_scopes_can_be_configured(bed: Bed) -> None:
    """One tenant for all tokens; other claims for principal and scopes; no check of issuer and audience."""
    names = ClaimNames(tenant="", principal="https://x/mail", scopes="roles")
    signer = Signer(bed)
    more: dict[str, Any] = {"https://x/mail": "a@b.c", "roles": ["operate"], "tenant": "acme"}
    async with trusting(bed, names=names) as guarded:
        identity = (await who(guarded, signer.token(aud=None, **more))).data
        assert (identity["tenant"], identity["principal"]) == ("default", "a@b.c")
        assert identity["scopes"] == ["operate"]
        assert (await who(guarded, signer.token(**more))).status == 401, "it is for somebody"


async def test_an_invalid_token_has_no_principal(bed: Bed) -> None:
    """Wrong signature, algorithm, key, instants, claims, or form."""
    signer = Signer(bed)
    public = RSA.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    good, claims = signer.token(), signer.claims()
    head, body, signature = good.split(".")
    forged = base64.urlsafe_b64encode(json.dumps(signer.claims(sub="eve")).encode()).decode()
    secret = base64.urlsafe_b64encode(public).decode()
    wrong = {
        "signature": f"{head}.{forged.rstrip('=')}.{signature}",
        "no signature": f"{head}.{body}.",
        "another key": signer.token(OTHER),
        "none": by_hand({"alg": "none", "kid": "r"}, claims, b""),
        "None": by_hand({"alg": "nOnE", "kid": "r"}, claims, b""),
        "a public key as a secret": by_hand({"alg": "HS256", "kid": "r"}, claims),
        "HMAC": jwt.encode(claims, secret, algorithm="HS256", headers={"kid": "r"}),
        "another kind": signer.token(RSA, "RS256", "e"),
        "a short key": by_hand({"alg": "RS256", "kid": "short"}, claims),
        "no kid": signer.token(kid=None),
        "unknown kid": signer.token(kid="nothing"),
        "a path": signer.token(kid="../../etc/passwd"),
        "a URL": signer.token(kid="https://evil.example/jwks.json"),
        "SQL": signer.token(kid="' or 1=1"),
        "a long kid": signer.token(kid="x" * 3_000),
        "own keys": by_hand({"alg": "RS256", "jwk": jwk(OTHER, "r"), "kid": "r"}, claims),
        "keys elsewhere": by_hand({"alg": "RS256", "jku": "https://evil.example"}, claims),
        "crit": jwt.encode(claims, RSA, "RS256", {"kid": "r", "crit": ["b64"], "b64": True}),
        "another way than the key says": signer.token(RSA, "PS256", "pinned"),
        "alg is a list": by_hand({"alg": ["RS256"], "kid": "r"}, claims),
        "kid is a number": by_hand({"alg": "RS256", "kid": 5}, claims),
        "head is a list": by_hand([1], claims),
        "claims are a list": by_hand({"alg": "RS256", "kid": "r"}, [1]),
        "no JWT": "x.y.z",
        "deep": base64.urlsafe_b64encode(b"[" * 3_000).decode().rstrip("=") + ".e30.x",
        "no exp": signer.token(exp=None),
        "exp is text": signer.token(exp="9999999999"),
        "exp is true": signer.token(exp=True),
        "exp is not a number": signer.token(exp=float("nan")),
        "exp is infinite": signer.token(exp=float("inf")),
        "not yet": signer.token(nbf=signer.now + 60),
        "nbf is text": signer.token(nbf="x"),
        "issuer": signer.token(iss="https://evil.example"),
        "no issuer": signer.token(iss=None),
        "audience": signer.token(aud="other"),
        "no audience": signer.token(aud=None),
        "no principal": signer.token(sub=None),
        "no tenant": signer.token(tenant=None),
        "empty tenant": signer.token(tenant=""),
        "odd tenant": signer.token(tenant="a b"),
        "tenant is a list": signer.token(tenant=["acme"]),
        "NUL": signer.token(sub="a\x00b"),
        "long": signer.token(sub="x" * 1_100),
    }
    async with trusting(bed) as guarded:
        assert (await who(guarded, good)).status == 200
        for what, token in wrong.items():
            answer = await who(guarded, token)
            assert (answer.status, answer.data["code"]) == (401, "bad_token"), (what, answer)
            assert token not in str(answer.body), what
        old = await who(guarded, signer.token(exp=signer.now - 31))
        assert (old.status, old.data["code"]) == (401, "token_expired")
        for right in (
            signer.token(exp=signer.now - 20),
            signer.token(nbf=signer.now + 20),
            signer.token(exp=1e300),
        ):
            assert (await who(guarded, right)).status == 200


async def test_a_token_that_expires_ends_streams_and_logins(bed: Bed) -> None:
    """At most half a minute later, the tolerance between clocks."""
    signer = Signer(bed)
    async with trusting(bed) as guarded:
        token = signer.token(exp=signer.now - 28, tenant="default")
        web = guarded.with_token(token)
        path = await create_session(web)
        logged = await guarded.web("POST", "/v1/login", {"token": token})
        assert logged.status == 200
        async with web.stream(f"{path}/events") as stream:
            events = await stream.until()
        assert events[-1]["data"]["code"] == "token_expired"
        cookie = "; ".join(cookie.partition(";")[0] for cookie in logged.set_cookies)
        over = await guarded.web("GET", "/v1/login", cookie=cookie)
        assert (over.status, over.data["code"]) == (401, "token_expired")


async def test_keys_are_read_again_when_a_token_has_a_new_key(bed: Bed) -> None:
    """At most every ten seconds. Removed keys are not accepted, and a bad answer changes nothing."""
    if bed.backend != "memory":
        pytest.skip("an hour of virtual time")
    signer, keys = Signer(bed), Keys()
    new = signer.token(OTHER, kid="new", exp=signer.now + 9_999)
    old = signer.token(exp=signer.now + 9_999)
    async with trusting(bed, keys) as guarded:
        assert (await who(guarded, old)).status == 200
        keys.data = Keys(jwk(OTHER, "new")).data
        assert (await who(guarded, new)).status == 401, "so soon"
        await asyncio.sleep(RETRY_S)
        assert [(await who(guarded, token)).status for token in (new, old)] == [200, 401]
        bad = (b"", b"[]", b"{}", b'{"keys": []}', b'{"keys": [1, {"kty": "oct", "k": "eA"}]}')
        for data in (*bad, b"[" * 100_000, b"\xff", None):
            keys.data = data
            await asyncio.sleep(REFRESH_S)
            assert (await who(guarded, new)).status == 200, data


async def test_without_keys_requests_are_503_with_a_remedy(bed: Bed) -> None:
    """503 with a remedy, and a retry in ten seconds; a malformed token is refused at once."""
    signer = Signer(bed)
    private = {**jwt.algorithms.RSAAlgorithm.to_jwk(RSA, as_dict=True), "kid": "r"}
    private.pop("key_ops")
    keys = Keys(private, jwk(OTHER, "r", use="enc"), {"kty": "RSA"})
    async with trusting(bed, keys) as guarded:
        answers = await asyncio.gather(*(who(guarded, signer.token(jti=str(n))) for n in range(3)))
        assert {(answer.status, answer.data["code"]) for answer in answers} == {(503, "no_keys")}
        assert answers[0].headers["retry-after"] == "10"
        assert "CALLBOARD_JWT_JWKS" in answers[0].data["remedy"]
        assert (await who(guarded, "cb_x")).status == 401
        keys.data = Keys(jwk(RSA, None)).data
        await asyncio.sleep(RETRY_S)
        assert (await who(guarded, signer.token(kid=None))).status == 200, "the only key has no id"
