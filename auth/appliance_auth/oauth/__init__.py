"""Plugin ``oauth``: callers with access tokens of an OAuth 2.0 authorization server.

JWT access tokens are checked here, opaque ones by asking their issuer. docs/oauth.md shows how each provider is set up.

    settings.py        what is configured, and what of it is refused
    profiles.py        the dialects of providers
    claims.py          from claims to a caller
    jwt.py             what makes a JWT access token good
    keys.py            the issuer's public keys
    metadata.py        where they are
    introspection.py   opaque tokens
    certificates.py    tokens bound to a client certificate
    issuer.py          one issuer, put together
    authenticator.py   all issuers, and the memory
"""
