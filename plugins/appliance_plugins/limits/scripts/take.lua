-- Debit all lines, or none of them. One clock for all replicas: that of the Redis server.
-- KEYS: reservation, then one a line.
-- ARGV: lease, its life in ms, 1 to keep a reservation, and the lines in MessagePack: kind, limit, amount, span.
--   slot: a sorted set of leases by the time they expire. Span: none.
--   bucket: a hash (used, at), which leaks limit in span ms.
--   window: a number, until span (Unix ms); kept a day longer, for what is settled late.
-- Returns 1 or 0, then what each line had used: after the debit, or, if it was refused, before it.
local SLACK, DAY = 0.001, 86400000
local lease, life, keeps, lines = ARGV[1], ARGV[2], ARGV[3], cmsgpack.unpack(ARGV[4])
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
local used, ok = {}, 1

-- Given up before it arrived: its caller is gone.
if redis.call('GET', KEYS[1]) == 'undone' then ok = 0 end

for i, line in ipairs(lines) do
  local key, kind, limit, amount, span = KEYS[i + 1], unpack(line)
  if kind == 'slot' then
    redis.call('ZREMRANGEBYSCORE', key, '-inf', now)
    used[i] = redis.call('ZCARD', key)
  elseif kind == 'bucket' then
    local was = redis.call('HMGET', key, 'used', 'at')
    local leaked = was[2] and math.max(0, now - was[2]) * limit / span or 0
    used[i] = math.max(0, tonumber(was[1] or 0) - leaked)
  else
    used[i] = tonumber(redis.call('GET', key) or 0)
  end
  if used[i] + amount > limit + SLACK then ok = 0 end
end

local answer = {ok}
for i, line in ipairs(lines) do
  local key, kind, limit, amount, span = KEYS[i + 1], unpack(line)
  if ok == 1 then
    used[i] = used[i] + amount
    if kind == 'slot' then
      redis.call('ZADD', key, now + life, lease)
      redis.call('PEXPIRE', key, life)
    elseif kind == 'bucket' then
      redis.call('HSET', key, 'used', string.format('%.6f', used[i]), 'at', string.format('%.0f', now))
      redis.call('PEXPIRE', key, math.ceil(used[i] * span / limit) + 1000)
    else
      redis.call('INCRBY', key, string.format('%.0f', amount))
      redis.call('PEXPIREAT', key, string.format('%.0f', span + DAY))
    end
  end
  answer[i + 1] = string.format('%.6f', used[i])
end
if ok == 1 and keeps == '1' then redis.call('SET', KEYS[1], '1', 'PX', DAY) end
return answer
