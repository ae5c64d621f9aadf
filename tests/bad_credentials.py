"""Credentials that somebody sends who would rather be let in by the database."""

from __future__ import annotations

SQL = (
    "' OR '1'='1", "' OR 1=1 --", "'; DROP TABLE api_keys; --", "\" OR \"\"=\"", "admin'--", "') OR ('1'='1",
    "' UNION SELECT id, digest FROM api_keys --", "sk-app-' OR '1'='1", "sk-app-%-%", "sk-app-____________-x",
    "sk-app-aaaaaaaaaaaa-' OR '1'='1' --", "1; SELECT pg_sleep(10)", "' AND SLEEP(10) AND '1'='1", "${jndi:ldap://x}",
    "sk-app-aaaaaaaaaaaa-" + "b" * 31 + "'", "\\'; --", "%27%20OR%201=1", "sk-app-aaaaaaaaaaaa-" + "%" * 32, "{{7*7}}",
)  # fmt: skip
