"""The NATS login of all processes of a deployment, from the settings."""

from __future__ import annotations

import ssl
from typing import Final

from actors.errors import ContractError
from broker.nats.client import ConnectOptions
from compose.assembly.settings import Settings

CONNECT_S: Final = 5.0


def nats_server(
    urls: str, settings: Settings, *, name: str = "callboard", connect_timeout_s: float = CONNECT_S
) -> ConnectOptions:
    """Return the options to connect to NATS, with the credentials and the TLS context of the settings.

    Args:
        urls: ``nats://user:password@host:port``, several separated by commas.
        settings: The settings. The function reads those whose name begins with ``nats_``.
        name: Name of the connection in the server's lists.
        connect_timeout_s: Longest attempt to connect to one server, in seconds.

    Raises:
        ContractError: The file of a certificate or key is missing or invalid. The message names the setting.
    """
    credentials, seed = settings.nats_credentials, settings.nats_nkey_seed_file
    return ConnectOptions(
        urls=tuple(url.strip() for url in urls.split(",")),
        name=name,
        connect_timeout_s=connect_timeout_s,
        user_credentials=None if credentials is None else str(credentials),
        nkey_seed_file=None if seed is None else str(seed),
        tls=tls_context(settings),
    )


def tls_context(settings: Settings) -> ssl.SSLContext | None:
    """Return the TLS context of connections to NATS, or None if the settings name no certificate.

    The context verifies the server's certificate and its host name.

    Raises:
        ContractError: See `nats_server`.
    """
    ca, cert, key = settings.nats_tls_ca, settings.nats_tls_cert, settings.nats_tls_key
    if ca is None and cert is None and key is None:
        return None
    if (cert is None) != (key is None):
        msg = "CALLBOARD_NATS_TLS_CERT and CALLBOARD_NATS_TLS_KEY belong together: set both"
        raise ContractError(msg)
    try:
        context = ssl.create_default_context(cafile=ca)
    except OSError as exc:
        msg = f"CALLBOARD_NATS_TLS_CA={ca}: {exc.strerror or exc}; give a PEM file with the CA"
        raise ContractError(msg) from exc
    if cert is not None:
        try:
            context.load_cert_chain(cert, key)
        except OSError as exc:
            msg = f"CALLBOARD_NATS_TLS_CERT={cert}, CALLBOARD_NATS_TLS_KEY={key}: {exc}; give PEM files"
            raise ContractError(msg) from exc
    return context
