-- Give a lease's places back, and correct its budgets once: by a change of amounts, negative for a refund.
-- KEYS: reservation, then one a line.
-- ARGV: lease, ms since the debit, 1 if there is a reservation; then kind, limit, change, span for each line.
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
local due = ARGV[3] == '1' and redis.call('DEL', KEYS[1]) == 1

for i = 1, #KEYS - 1 do
  local key, kind, limit = KEYS[i + 1], ARGV[4 * i], tonumber(ARGV[4 * i + 1])
  local change, span = tonumber(ARGV[4 * i + 2]), tonumber(ARGV[4 * i + 3])
  if kind == 'slot' then
    redis.call('ZREM', key, ARGV[1])
  elseif due and kind == 'window' then
    if redis.call('EXISTS', key) == 1 then redis.call('INCRBY', key, ARGV[4 * i + 2]) end
  elseif due and kind == 'bucket' then
    -- What has leaked since came back by itself; it must not be paid twice.
    if change < 0 then change = math.min(0, change + limit * ARGV[2] / span) end
    local was = redis.call('HMGET', key, 'used', 'at')
    local leaked = was[2] and math.max(0, now - was[2]) * limit / span or 0
    local used = math.max(0, math.max(0, tonumber(was[1] or 0) - leaked) + change)
    redis.call('HSET', key, 'used', string.format('%.6f', used), 'at', string.format('%.0f', now))
    redis.call('PEXPIRE', key, math.ceil(used * span / limit) + 1000)
  end
end
return 1
