-- Give a lease's places back, and correct its budgets once: by a change of amounts, negative for a refund.
-- KEYS: reservation, then one a line.
-- ARGV: lease, ms since the debit, 1 if there is a reservation, 2 if the debit may not even have arrived and must then
-- not be made any more, and the lines in MessagePack: kind, limit, change, span.
local lease, elapsed, reservation, lines = ARGV[1], ARGV[2], ARGV[3], cmsgpack.unpack(ARGV[4])
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
local due = reservation ~= '0' and redis.call('GETDEL', KEYS[1]) == '1'
if reservation == '2' then redis.call('SET', KEYS[1], 'undone', 'PX', 60000) end

for i, line in ipairs(lines) do
  local key, kind, limit, change, span = KEYS[i + 1], unpack(line)
  if kind == 'slot' then
    redis.call('ZREM', key, lease)
  elseif due and kind == 'window' then
    if redis.call('EXISTS', key) == 1 then redis.call('INCRBY', key, string.format('%.0f', change)) end
  elseif due and kind == 'bucket' then
    -- What has leaked since came back by itself; it must not be paid twice.
    if change < 0 then change = math.min(0, change + limit * elapsed / span) end
    local was = redis.call('HMGET', key, 'used', 'at')
    local leaked = was[2] and math.max(0, now - was[2]) * limit / span or 0
    local used = math.max(0, math.max(0, tonumber(was[1] or 0) - leaked) + change)
    redis.call('HSET', key, 'used', string.format('%.6f', used), 'at', string.format('%.0f', now))
    redis.call('PEXPIRE', key, math.ceil(used * span / limit) + 1000)
  end
end
return 1
