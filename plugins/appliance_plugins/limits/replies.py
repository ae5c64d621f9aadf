"""What callers are told of their limits: refusals, and the headers that OpenAI's clients know.

RFC 6585 section 4 for 429 and ``Retry-After``; the ``x-ratelimit-*`` headers are OpenAI's ("Rate limits in headers").
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from appliance.plugin import BadRequest, RateLimited, RequestError, in_currency, time_span
from appliance_plugins.limits.lines import MINUTE, Amounts, Kind, Line

_SLOT_SECONDS = 1.0
"""When a place comes free is unknown; a second is a polite guess."""
_NAMES = {Kind.REQUESTS: "requests", Kind.TOKENS: "tokens"}


def refusal(lines: Sequence[Line], used: Sequence[float], amounts: Amounts, now: float) -> RequestError:
    """The error for a call that was not admitted: about the limit that takes longest to have room again."""
    over = [(line, have) for line, have in zip(lines, used, strict=True) if have + amounts[line.kind] > line.limit]
    if not over:  # by less than can be told
        over = [max(zip(lines, used, strict=True), key=lambda pair: pair[1] / pair[0].limit)]
    impossible = [line for line, _ in over if line.is_budget and amounts[line.kind] > line.limit]
    if impossible:
        return _too_large(impossible[0], amounts)
    wait, line, have = max((_wait(line, have, amounts, now), line, have) for line, have in over)
    return RateLimited(
        _told(line, have, amounts, wait), retry_after=wait, code=_code(line), headers=headers(lines, used, now)
    )


def headers(lines: Sequence[Line], used: Sequence[float], now: float) -> dict[str, str]:
    """``x-ratelimit-*`` for requests and tokens, for the limit that leaves least; nothing for what is not limited."""
    found: dict[str, str] = {}
    for kind, name in _NAMES.items():
        pairs = [(line, have) for line, have in zip(lines, used, strict=True) if line.kind is kind]
        if pairs:
            line, have = min(pairs, key=lambda pair: pair[0].limit - pair[1])
            found[f"x-ratelimit-limit-{name}"] = str(line.limit)
            found[f"x-ratelimit-remaining-{name}"] = str(max(0, math.floor(line.limit - have + 1e-3)))
            found[f"x-ratelimit-reset-{name}"] = duration(_reset(line, have, now))
    return found


def duration(seconds: float) -> str:
    """A time span as OpenAI writes them: ``350ms``, ``8.64s``, ``6m0s``, ``23h59m2s``."""
    milliseconds = math.ceil(max(0.0, seconds) * 1000 - 1e-6)
    if milliseconds < 1000:
        return f"{milliseconds}ms"
    if milliseconds < MINUTE * 1000:
        return f"{milliseconds / 1000:g}s"
    minutes, rest = divmod(math.ceil(milliseconds / 1000), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes}m{rest}s" if hours else f"{minutes}m{rest}s"


def _reset(line: Line, have: float, now: float) -> float:
    """Seconds until all of a limit is there again."""
    return have * MINUTE / line.limit if line.leaks else max(0.0, line.ends - now)


def _wait(line: Line, have: float, amounts: Amounts, now: float) -> float:
    """Seconds until there is room for these amounts."""
    if line.kind is Kind.SLOTS:
        return _SLOT_SECONDS
    if line.leaks:
        return max(0.0, have + amounts[line.kind] - line.limit) * MINUTE / line.limit
    return max(0.0, line.ends - now)


def _code(line: Line) -> str:
    return "budget_exceeded" if line.is_budget and not line.leaks else "rate_limit_exceeded"


def _told(line: Line, have: float, amounts: Amounts, wait: float) -> str:
    if line.kind is Kind.SLOTS:
        if not line.whose:
            return "the appliance is busy; try again shortly"
        return f"this {line.whose} has {round(have)} requests running, its limit; wait for one to end"
    when = time_span(wait)
    left = math.floor(line.limit - have)
    if line.is_budget and left > 0:
        return (
            f"this {line.whose} has {_limit(line._replace(limit=left))} left of {_limit(line)} a {line.per}, and the "
            f"request may take {_limit(line._replace(limit=amounts[line.kind]))}; lower max_completion_tokens, or try "
            f"again in {when}"
        )
    return f"this {line.whose} has a limit of {_limit(line)} a {line.per}, which is used up; try again in {when}"


def _too_large(line: Line, amounts: Amounts) -> BadRequest:
    """More than the whole limit: no waiting helps."""
    wanted = line._replace(limit=amounts[line.kind])
    return BadRequest(
        f"the request may take {_limit(wanted)}, and this {line.whose} has {_limit(line)} a {line.per}; "
        "shorten it, or lower max_completion_tokens",
        param="max_completion_tokens",
        code="request_over_limit",
    )


def _limit(line: Line) -> str:
    if line.kind is Kind.SPEND:
        return f"{in_currency(line.limit).normalize():f} of spending"
    return f"{line.limit} {_NAMES[line.kind]}"
