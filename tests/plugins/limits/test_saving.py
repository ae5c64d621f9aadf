import stat

import pytest
from eventually import eventually
from limits_kit import Clock

from appliance_plugins.limits.ledger import MemoryLedger
from appliance_plugins.limits.lines import Amounts, Kind, Line
from appliance_plugins.limits.saving import saved

DAY = Line("k:2d", Kind.TOKENS, 1000, "day", "key", Clock.now + 3600)


async def debit(ledger: MemoryLedger, tokens: int) -> bool:
    return (await ledger.take("a", [DAY], Amounts(1, 1, tokens))).ok


async def test_days_go_on_where_they_were(tmp_path):
    path = tmp_path / "limits.json"
    async with saved(ledger := MemoryLedger(Clock()), path):
        assert await debit(ledger, 600)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    async with saved(ledger := MemoryLedger(Clock()), path):
        assert not await debit(ledger, 500)
        assert await debit(ledger, 400)


async def test_a_killed_process_had_saved_before(tmp_path):
    path = tmp_path / "limits.json"
    async with saved(ledger := MemoryLedger(Clock()), path, every=0.01):
        await debit(ledger, 600)
        await eventually(path.exists)
        async with saved(after := MemoryLedger(Clock()), path):
            assert not await debit(after, 500)


async def test_days_that_are_over_are_not_loaded_back(tmp_path):
    clock = Clock()
    async with saved(ledger := MemoryLedger(clock), tmp_path / "limits.json"):
        await debit(ledger, 600)
    clock.now += 7200
    assert ledger.dump() == {}
    async with saved(after := MemoryLedger(clock), tmp_path / "limits.json"):
        assert after.dump() == {}


@pytest.mark.parametrize("text", ["", "{", "[]", '{"k": "much"}', "\x00\xff"])
async def test_a_broken_file_is_told_and_does_not_stop_the_start(tmp_path, caplog, text):
    path = tmp_path / "limits.json"
    path.write_text(text)
    async with saved(ledger := MemoryLedger(Clock()), path):
        assert "limits.json cannot be read" in caplog.text
        assert await debit(ledger, 600)


async def test_nothing_is_written_where_no_day_counts(tmp_path):
    async with saved(MemoryLedger(Clock()), tmp_path / "limits.json"):
        pass
    assert list(tmp_path.iterdir()) == []


async def test_a_full_disk_is_told_and_hurts_nobody(tmp_path, caplog):
    path = tmp_path / "missing" / "limits.json"
    async with saved(ledger := MemoryLedger(Clock()), path):
        await debit(ledger, 600)
    assert "limits.json cannot be written" in caplog.text
