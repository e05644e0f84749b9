#!lua
-- reserve: freezes an amount on a chain for one request; with kind "consume" it charges at once.
--
-- KEYS   1 hold   2 deadlines   3 conf   4…3+n accounts, the org's `ever` account first   then nb buckets
--        last, if ARGV 16 is not "": the once-only mark of an Idempotency-Key
-- ARGV   1 n   2 nb   3 gen for accounts loaded here   4 version of the load values, "" without
--        5 not_after, ms of Redis' time   6 amount, credits   7 life of the hold, ms   8 kind: hold | consume
--        9 fingerprint of the request's content   10 attempt, names this try of the call   11 price id   12 node
--        13 tokens taken from tpm buckets, to be corrected at settle   14 chain, as key suffixes
--        15 windows of the chain, as start-end in ms   16 life of the once-only mark, ms, or ""
--        then per account: start, end of its period in ms (0 0 for ever), load values or ""
--        then per bucket: capacity, rate, seconds of its period, tokens needed
-- Reply  status, now ms, duplicate 0|1, amount, charged, deadline ms, state of the hold, n, nb,
--        n × (total, overage_limit, spent, prepaid, leased, max_inflight, inflight, slots_leased), nb × micro-tokens left
--        status: ok | short (a limit forbids it) | load (accounts missing: their numbers follow the head)
--        | period (an account's period is over) | expired (ran after not_after) | conflict (known id, other content)
--        | inflight, replayed (another hold has the once-only mark: it lives, or it was charged)
--        | void (this attempt was voided) | amount (a sum would pass 2^53-1, or an argument is no amount)
--        Only ok writes, but for accounts that it loaded.
-- Keeps  I1, I2: every account and bucket is checked before the first write; a repeat changes no amount.
-- include: base account bucket

local n, nb = tonumber(ARGV[1]), tonumber(ARGV[2])
local amount = tonumber(ARGV[6])
local attempt = ARGV[10]
local us, now = clock()
local conf, org = KEYS[3], KEYS[4]

local function reply(status, dup, amt, charged, deadline, state, accounts, buckets)
  local out = { status, now, dup, amt, charged, deadline, state, accounts and n or 0, buckets and nb or 0 }
  if accounts then
    for i = 1, n do
      account_reply(out, accounts[i])
    end
  end
  if buckets then
    for i = 1, nb do
      out[#out + 1] = buckets[i].v
    end
  end
  return out
end

if now > tonumber(ARGV[5]) then
  return reply('expired', 0, 0, 0, 0, '')
end

-- A known id: its recorded outcome. Attempts that share the hold are noted, so
-- that voiding one of them does not take it from the others.
local h = redis.call('HMGET', KEYS[1], 'state', 'fp', 'amount', 'charged', 'deadline', 'attempts', 'voids')
local voids = h[7] or ''
if h[1] then
  if contains(words(voids), attempt) then
    return reply('void', 0, 0, 0, 0, h[1])
  end
  if h[1] ~= 'void' then
    if h[2] ~= ARGV[9] then
      return reply('conflict', 0, 0, 0, 0, h[1])
    end
    local list = words(h[6] or '')
    if not contains(list, attempt) then
      list[#list + 1] = attempt
      if #list > 8 then
        list[1] = '*' -- an attempt dropped from the list stays counted
        table.remove(list, 2)
      end
      redis.call('HSET', KEYS[1], 'attempts', table.concat(list, ' '))
    end
    return reply('ok', 1, tonumber(h[3]), tonumber(h[4] or '0'), tonumber(h[5] or '0'), h[1])
  end
end

-- A once-only mark lets one call through while it lives, and none after it was charged.
local mark = ARGV[16] ~= '' and KEYS[#KEYS] or nil
if mark then
  local m = redis.call('HMGET', mark, 'hold', 'state')
  if m[1] then
    return reply(m[2] == 'charged' and 'replayed' or 'inflight', 0, 0, 0, 0, '')
  end
end

local first = 16
local accounts, missing = {}, {}
local valid = nil
for i = 1, n do
  local at = first + (i - 1) * 3
  local from, till = tonumber(ARGV[at + 1]), tonumber(ARGV[at + 2])
  if till > 0 and (now < from or now >= till) then
    return reply('period', 0, 0, 0, 0, '')
  end
  local a = account_read(KEYS[3 + i])
  if not a and ARGV[at + 3] ~= '' then
    if valid == nil then
      valid = load_valid(conf, ARGV[4])
    end
    if valid then
      a = account_from(KEYS[3 + i], ARGV[at + 3], ARGV[3])
    end
  end
  if a then
    accounts[i] = a
  else
    missing[#missing + 1] = i
  end
end
if #missing > 0 then
  local out = reply('load', 0, 0, 0, 0, '')
  for i = 1, #missing do
    out[#out + 1] = missing[i]
  end
  return out
end

local sane = is_amount(amount) and is_amount(tonumber(ARGV[13]))
for i = 1, nb do
  sane = sane and is_amount(tonumber(ARGV[first + n * 3 + i * 4]))
end
if not sane then
  return reply('amount', 0, 0, 0, 0, '')
end

local hold = ARGV[8] == 'hold'
local status = 'ok'
for i = 1, n do
  local a = accounts[i]
  account_store_fresh(a, conf, ARGV[4], org, now)
  if a.spent + a.prepaid + amount > MAX then
    status = 'amount'
  elseif status == 'ok' then
    if a.total >= 0 and amount > a.total + a.overage - a.prepaid - a.spent then
      status = 'short'
    end
    if hold and i <= 3 and a.max >= 0 and a.inflight + a.slots + 1 > a.max then
      status = 'short'
    end
  end
end
local buckets, need = {}, {}
for i = 1, nb do
  local at = first + n * 3 + (i - 1) * 4
  buckets[i] = bucket_read(KEYS[3 + n + i], tonumber(ARGV[at + 1]), tonumber(ARGV[at + 2]), tonumber(ARGV[at + 3]), us)
  need[i] = tonumber(ARGV[at + 4])
  if status == 'ok' and buckets[i].v < need[i] * 1000000 then
    status = 'short'
  end
end
if status ~= 'ok' then
  return reply(status, 0, 0, 0, 0, '', accounts, buckets)
end

local gens = {}
for i = 1, n do
  local a = accounts[i]
  gens[i] = a.gen
  if hold then
    a.prepaid = a.prepaid + amount
    if i <= 3 then
      a.inflight = a.inflight + 1
    end
  else
    a.spent = a.spent + amount
  end
  account_save(a, now)
end
for i = 1, nb do
  bucket_add(buckets[i], -need[i])
  bucket_write(buckets[i])
end
local deadline = now + tonumber(ARGV[7])
local state, charged = 'held', 0
if not hold then
  state, charged = 'settled', amount
end
if h[1] then
  redis.call('DEL', KEYS[1]) -- a tombstone, or the record of a voided hold: only its voids live on
end
redis.call('HSET', KEYS[1], 'state', state, 'kind', ARGV[8], 'amount', int(amount), 'fp', ARGV[9], 'attempts', attempt,
  'voids', voids, 'price_id', ARGV[11], 'node', ARGV[12], 'tokens', ARGV[13], 'chain', ARGV[14], 'windows', ARGV[15],
  'gens', table.concat(gens, ' '), 'created_at', int(now), 'deadline', int(deadline))
if hold then
  redis.call('ZADD', KEYS[2], int(deadline), index_name(KEYS[1]))
else
  redis.call('HSET', KEYS[1], 'charged', int(amount), 'refunded', '0', 'late', '0', 'ended_at', int(now))
  redis.call('PEXPIRE', KEYS[1], RECEIPT_TTL)
end
if mark then
  redis.call('HSET', mark, 'hold', index_name(KEYS[1]), 'state', hold and 'live' or 'charged')
  redis.call('PEXPIRE', mark, ARGV[16])
  redis.call('HSET', KEYS[1], 'idem', index_name(mark))
end
raise_op(org)
return reply('ok', 0, amount, charged, deadline, state, accounts, buckets)
