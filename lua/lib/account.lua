-- account: reading, loading, freeing and charging the accounts of a chain.
--
-- An account is a table { key, total, overage, max, spent, prepaid, leased,
-- inflight, slots, gen, fold, adj, fresh }; fresh says that it is loaded by
-- this call and must be written whole. Accounts live 30 days after the last
-- touch, day accounts 3, month accounts 63.

local function account_ttl(key)
  if string.find(key, ':d%d%d%d%d%d%d%d%d$') then
    return 259200000
  end
  if string.find(key, ':m%d%d%d%d%d%d$') then
    return 5443200000
  end
  return 2592000000
end

-- The account of a key as stored, or nil when Redis does not hold it whole.
local function account_read(key)
  local h = redis.call('HMGET', key, 'total', 'overage_limit', 'max_inflight', 'spent', 'prepaid', 'leased',
    'inflight', 'slots_leased', 'gen', 'fold', 'adj')
  for i = 1, 11 do
    if not h[i] then
      return nil
    end
  end
  return {
    key = key, total = tonumber(h[1]), overage = tonumber(h[2]), max = tonumber(h[3]), spent = tonumber(h[4]),
    prepaid = tonumber(h[5]), leased = tonumber(h[6]), inflight = tonumber(h[7]), slots = tonumber(h[8]),
    gen = h[9], fold = h[10], adj = tonumber(h[11]),
  }
end

-- The account that load values 'total,overage_limit,max_inflight,spent,fold,adj' describe.
local function account_from(key, load, gen)
  local t, o, m, s, f, a = string.match(load, '^(-?%d+),(%d+),(-?%d+),(%d+),(%d+),(%d+)$')
  if not t then
    return nil
  end
  return {
    key = key, total = tonumber(t), overage = tonumber(o), max = tonumber(m), spent = tonumber(s), prepaid = 0,
    leased = 0, inflight = 0, slots = 0, gen = gen, fold = f, adj = tonumber(a), fresh = true,
  }
end

-- Load values count only while the tenant's published version is the one they
-- were read under, or none is published (then this call publishes it).
local function load_valid(conf, version)
  if version == '' then
    return false
  end
  local published = redis.call('HGET', conf, 'version')
  return not published or published == version
end

-- Writes what a load brought; first writer wins because a present account is never fresh.
local function account_store_fresh(a, conf, version, org, now)
  if not a.fresh then
    return
  end
  redis.call('HSET', a.key, 'total', int(a.total), 'overage_limit', int(a.overage), 'max_inflight', int(a.max),
    'spent', int(a.spent), 'refunded', '0', 'prepaid', '0', 'leased', '0', 'inflight', '0', 'slots_leased', '0',
    'lessees', '0', 'demand', '0', 'exact', '0', 'gen', a.gen, 'fold', a.fold, 'adj', int(a.adj),
    'updated_at', int(now))
  if a.key == org then
    redis.call('HSET', a.key, 'op', '0', 'learn_until', '0')
  end
  redis.call('PEXPIRE', a.key, account_ttl(a.key))
  redis.call('HSETNX', conf, 'version', version)
  a.fresh = false
end

-- Raises the tenant's operation counter, the alarm for writes that a failover lost.
local function raise_op(org)
  if redis.call('EXISTS', org) == 1 then
    redis.call('HINCRBY', org, 'op', 1)
  end
end

-- Writes what a decision or its end may change, and renews the expiry.
local function account_save(a, now)
  redis.call('HSET', a.key, 'spent', int(a.spent), 'prepaid', int(a.prepaid), 'inflight', int(a.inflight),
    'updated_at', int(now))
  redis.call('PEXPIRE', a.key, account_ttl(a.key))
end

-- Raises what was freed over the account's life; it stops at MAX.
local function account_refunded(a, amount)
  local refunded = tonumber(redis.call('HGET', a.key, 'refunded') or '0')
  redis.call('HSET', a.key, 'refunded', int(math.min(MAX, refunded + amount)))
end

-- Eight numbers of an account, in the order that the Go side reads.
local function account_reply(out, a)
  local n = #out
  out[n + 1], out[n + 2], out[n + 3], out[n + 4] = a.total, a.overage, a.spent, a.prepaid
  out[n + 5], out[n + 6], out[n + 7], out[n + 8] = a.leased, a.max, a.inflight, a.slots
end

-- Whether KEYS[4…] are exactly the accounts that the hold's record names.
local function same_chain(chain, n)
  local prefix = string.match(KEYS[1], '^quota:{[^}]*}:')
  local names = words(chain)
  if #names ~= n then
    return false
  end
  for i = 1, n do
    if KEYS[3 + i] ~= prefix .. names[i] then
      return false
    end
  end
  return true
end

-- The deadline index names a record by its key without the tenant's prefix.
local function index_name(key)
  return string.match(key, '^quota:{[^}]*}:(.*)$')
end

-- Ends what a once-only mark of this hold stands for: charged for ttl ms, or
-- freed (no ttl). A mark that another hold has taken since is left alone.
local function mark_end(mark, ttl)
  local owner = redis.call('HGET', mark, 'hold')
  if owner and owner ~= index_name(KEYS[1]) then
    return
  end
  if ttl then
    redis.call('HSET', mark, 'hold', index_name(KEYS[1]), 'state', 'charged')
    redis.call('PEXPIRE', mark, ttl)
  elseif owner then
    redis.call('DEL', mark)
  end
end
