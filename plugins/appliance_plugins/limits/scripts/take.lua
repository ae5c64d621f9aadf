-- Debit all lines, or none of them. One clock for all replicas: that of the Redis server.
-- KEYS: reservation, then one a line.
-- ARGV: lease, its life in ms, 1 to keep a reservation; then kind, limit, amount, span for each line.
--   slot: a sorted set of leases by the time they expire. Span: none.
--   bucket: a hash (used, at), which leaks limit in span ms.
--   window: a number, until span (Unix ms); kept a day longer, for what is settled late.
-- Returns 1 or 0, then what each line had used: after the debit, or, if it was refused, before it.
local SLACK, DAY = 0.001, 86400000
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
local lines, ok = {}, 1

for i = 1, #KEYS - 1 do
  local line = {key = KEYS[i + 1], kind = ARGV[4 * i], limit = tonumber(ARGV[4 * i + 1]),
                amount = tonumber(ARGV[4 * i + 2]), span = tonumber(ARGV[4 * i + 3])}
  if line.kind == 'slot' then
    redis.call('ZREMRANGEBYSCORE', line.key, '-inf', now)
    line.used = redis.call('ZCARD', line.key)
  elseif line.kind == 'bucket' then
    local was = redis.call('HMGET', line.key, 'used', 'at')
    local leaked = was[2] and math.max(0, now - was[2]) * line.limit / line.span or 0
    line.used = math.max(0, tonumber(was[1] or 0) - leaked)
  else
    line.used = tonumber(redis.call('GET', line.key) or 0)
  end
  if line.used + line.amount > line.limit + SLACK then ok = 0 end
  lines[i] = line
end

local answer = {ok}
for i, line in ipairs(lines) do
  if ok == 1 then
    line.used = line.used + line.amount
    if line.kind == 'slot' then
      redis.call('ZADD', line.key, now + ARGV[2], ARGV[1])
      redis.call('PEXPIRE', line.key, ARGV[2])
    elseif line.kind == 'bucket' then
      redis.call('HSET', line.key, 'used', string.format('%.6f', line.used), 'at', string.format('%.0f', now))
      redis.call('PEXPIRE', line.key, math.ceil(line.used * line.span / line.limit) + 1000)
    else
      redis.call('INCRBY', line.key, ARGV[4 * i + 2])
      redis.call('PEXPIREAT', line.key, string.format('%.0f', line.span + DAY))
    end
  end
  answer[i + 1] = string.format('%.6f', line.used)
end
if ok == 1 and ARGV[3] == '1' then redis.call('SET', KEYS[1], '1', 'PX', DAY) end
return answer
