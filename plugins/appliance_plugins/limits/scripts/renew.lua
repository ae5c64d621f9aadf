-- Renew the places that a living process holds; those given back meanwhile stay given back.
-- KEYS: sorted sets. ARGV: the life of a lease in ms, then one lease for each key.
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
for i, key in ipairs(KEYS) do
  redis.call('ZADD', key, 'XX', now + ARGV[1], ARGV[i + 1])
  redis.call('PEXPIRE', key, ARGV[1])
end
return #KEYS
