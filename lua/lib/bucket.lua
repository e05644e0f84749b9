-- bucket: token buckets in integer micro-tokens. A bucket is a hash
-- { v = micro-tokens, at = time in microseconds, rem = rest of the division };
-- the rest is kept, so that hammering loses nothing and gains nothing. A
-- missing bucket is full. Time never runs back: an earlier clock adds nothing.
-- All is exact: capacity and debt are bounded so that (full - v) * period < 2^53.

local DEBT_MAX = 50000000000000 -- micro-tokens, 50 million tokens; no correction leaves a larger debt

local function bucket_read(key, cap, rate, period, us)
  local full = cap * 1000000
  local h = redis.call('HMGET', key, 'v', 'at', 'rem')
  if not (h[1] and h[2] and h[3]) then
    return { key = key, v = full, at = us, rem = 0, full = full, rate = rate, period = period }
  end
  local v, at, rem = tonumber(h[1]), tonumber(h[2]), tonumber(h[3])
  local elapsed = us - at
  if elapsed > 0 then
    at = us
    if rate > 0 and v < full then
      if elapsed >= (full - v) * period / rate then
        v, rem = full, 0
      else
        local gained = elapsed * rate + rem
        local add = math.floor(gained / period)
        v, rem = v + add, gained - add * period
      end
    end
  end
  if v >= full then
    v, rem = full, 0
  end
  return { key = key, v = v, at = at, rem = rem, full = full, rate = rate, period = period }
end

-- Gives tokens, or takes them when negative, whatever is there: never above
-- full, and a debt is at most one capacity, so that one underestimate cannot
-- close a bucket for long.
local function bucket_add(b, tokens)
  b.v = b.v + tokens * 1000000
  local least = 0 - math.min(b.full, DEBT_MAX)
  if b.v >= b.full then
    b.v, b.rem = b.full, 0
  elseif b.v < least then
    b.v, b.rem = least, 0
  end
end

-- Writes a bucket with the expiry after which it would be full anyway.
local function bucket_write(b)
  redis.call('HSET', b.key, 'v', int(b.v), 'at', int(b.at), 'rem', int(b.rem))
  if b.rate > 0 then
    redis.call('PEXPIRE', b.key, int(math.ceil((b.full - b.v) * b.period / b.rate / 1000) + 60000))
  else
    redis.call('PERSIST', b.key)
  end
end
