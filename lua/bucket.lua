#!lua
-- bucket: takes the same number of tokens from several buckets, or gives unused ones back.
--
-- KEYS   n token buckets
-- ARGV   1 op: take | give   2 min, tokens   3 max, tokens: what is taken is the most from min to max that all
--        buckets have; give returns max   4 not_after, ms of Redis' time
--        then per bucket: capacity, rate, seconds of its period
-- Reply  status, now ms, tokens, n × micro-tokens left
--        status: ok | short (some bucket has less than min) | expired (ran after not_after)
--        | amount (an argument is no number of tokens). Only ok writes.
-- Keeps  all or nothing: every bucket is checked before the first write; never above a bucket's capacity.
-- include: base bucket

local us, now = clock()
local least, most = tonumber(ARGV[2]), tonumber(ARGV[3])
local give = ARGV[1] == 'give'
if now > tonumber(ARGV[4]) then
  return { 'expired', now, 0 }
end
if not (is_amount(least) and is_amount(most)) then
  return { 'amount', now, 0 }
end
local buckets, tokens = {}, most
for i = 1, #KEYS do
  local at = 4 + (i - 1) * 3
  buckets[i] = bucket_read(KEYS[i], tonumber(ARGV[at + 1]), tonumber(ARGV[at + 2]), tonumber(ARGV[at + 3]), us)
  if not give then
    tokens = math.min(tokens, math.floor(buckets[i].v / 1000000))
  end
end
local status = 'ok'
if tokens < least then
  status, tokens = 'short', 0
end
local out = { status, now, tokens }
for i = 1, #KEYS do
  local b = buckets[i]
  if give then
    bucket_add(b, tokens)
    bucket_write(b)
  elseif status == 'ok' then
    bucket_add(b, -tokens)
    bucket_write(b)
  end
  out[3 + i] = b.v
end
return out
