"""Who calls, and what they may do: API keys, OAuth access tokens, sign-ins of people, roles and scopes."""
