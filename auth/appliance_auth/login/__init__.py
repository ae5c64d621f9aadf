"""Plugin ``login``: people sign in at an identity provider, with a browser or at a terminal. docs/oauth.md shows how.

settings.py      what is configured, and what of it is refused
provider.py      the authorization code flow, as a client of the provider
attempt.py       a sign-in under way
id_tokens.py     what makes an ID token, or a logout token, good
cookies.py       the two cookies
sessions.py      the session as a credential
routes.py        /auth/...
commands.py      appliance login, logout, whoami, token
device_flow.py   a sign-in without a browser of one's own
issuer.py        the provider, as the command line sees it
token_files.py   where the command line keeps tokens
"""
