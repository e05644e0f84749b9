#!lua flags=allow-oom
-- settle: turns a hold into spent on every account of its chain and frees the whole hold; leaves a receipt.
--
-- KEYS   1 hold   2 deadlines   3 conf   4…3+n accounts of the hold's chain, in its order   then nb tpm buckets
--        last, if ARGV 8 is not "": the hold's once-only mark
-- ARGV   1 n   2 nb   3 gen for accounts loaded here   4 version of the load values, "" without
--        5 actual, credits   6 actual tokens, -1 for no correction of the buckets
--        7 "" or, for a hold that Redis lost, the chain as key suffixes: charge it late
--        8 "" or the life of the once-only mark, ms
--        then per account: start, end of its period in ms (0 0 for ever), load values or ""
--        then per bucket: capacity, rate, seconds of its period, 0
-- Reply  status, now ms, duplicate 0|1, reserved, charged, refunded, late 0|1, n,
--        n × (total, overage_limit, spent, prepaid, leased, max_inflight, inflight, slots_leased)
--        status: ok | unknown (then n × gen, fold follow as strings) | load (missing numbers follow the head)
--        | released (it ended by a release) | conflict (settled with another amount) | amount | chain (not the hold's chain)
--        Only ok writes, but for accounts that it loaded.
-- Keeps  I1, I3: the hold's own amount is freed where the account is still the one it was frozen on (gen); the
--        actual is charged once; a repeat answers from the receipt. After an expiry the charge still counts (late).
-- include: base account bucket

local n, nb = tonumber(ARGV[1]), tonumber(ARGV[2])
local actual, tokens = tonumber(ARGV[5]), tonumber(ARGV[6])
local us, now = clock()
local conf, org = KEYS[3], KEYS[4]

local function head(status, dup, reserved, charged, refunded, late)
  return { status, now, dup, reserved, charged, refunded, late, 0 }
end

local h = redis.call('HMGET', KEYS[1], 'state', 'amount', 'gens', 'charged', 'refunded', 'late', 'tokens', 'chain', 'voids')
local state = h[1]
local lost = ARGV[7] ~= ''
if not state and not lost then
  local out = head('unknown', 0, 0, 0, 0, 0)
  for i = 1, n do
    local g = redis.call('HMGET', KEYS[3 + i], 'gen', 'fold')
    out[#out + 1], out[#out + 2] = g[1] or '', g[2] or ''
  end
  return out
end
local reserved = tonumber(h[2] or '0')
if state == 'settled' then
  local charged = tonumber(h[4])
  if charged ~= actual then
    return head('conflict', 0, reserved, charged, 0, 0)
  end
  return head('ok', 1, reserved, charged, tonumber(h[5]), tonumber(h[6]))
end
if state == 'released' or state == 'void' then
  return head('released', 0, reserved, 0, 0, 0)
end
if state and not same_chain(h[8], n) then
  return head('chain', 0, reserved, 0, 0, 0)
end
if not is_amount(actual) then
  return head('amount', 0, reserved, 0, 0, 0)
end

local late = state == 'held' and 0 or 1
local gens = words(h[3] or '')
local accounts, missing = {}, {}
local valid = nil
for i = 1, n do
  local at = 8 + (i - 1) * 3
  local a = account_read(KEYS[3 + i])
  if not a and ARGV[at + 3] ~= '' then
    if valid == nil then
      valid = load_valid(conf, ARGV[4])
    end
    if valid then
      a = account_from(KEYS[3 + i], ARGV[at + 3], ARGV[3])
    end
  end
  local till = tonumber(ARGV[at + 2])
  if a then
    accounts[i] = a
    if a.spent + actual > MAX then
      return head('amount', 0, reserved, 0, 0, 0)
    end
  elseif not (till > 0 and now >= till) then
    missing[#missing + 1] = i -- an ended period that Redis forgot is skipped, anything else must be loaded
  end
end
if #missing > 0 then
  local out = head('load', 0, reserved, 0, 0, 0)
  for i = 1, #missing do
    out[#out + 1] = missing[i]
  end
  return out
end

local refunded = late == 1 and 0 or math.max(0, reserved - actual) -- after an expiry nothing is left to free
local out = head('ok', 0, reserved, actual, refunded, late)
for i = 1, n do
  local a = accounts[i]
  if a then
    account_store_fresh(a, conf, ARGV[4], org, now)
    a.spent = a.spent + actual
    if late == 0 and a.gen == gens[i] then
      a.prepaid = a.prepaid - reserved
      if i <= 3 then
        a.inflight = a.inflight - 1
      end
    end
    account_save(a, now)
    account_reply(out, a)
    out[8] = out[8] + 1
  end
end
if tokens >= 0 and late == 0 then
  local taken = tonumber(h[7] or '0')
  for i = 1, nb do
    local at = 8 + n * 3 + (i - 1) * 4
    local b = bucket_read(KEYS[3 + n + i], tonumber(ARGV[at + 1]), tonumber(ARGV[at + 2]), tonumber(ARGV[at + 3]), us)
    bucket_add(b, taken - tokens)
    bucket_write(b)
  end
end
if ARGV[8] ~= '' then
  mark_end(KEYS[#KEYS], actual > 0 and ARGV[8] or nil)
end
if lost and not state then
  redis.call('HSET', KEYS[1], 'kind', 'lost', 'amount', '0', 'chain', ARGV[7], 'gens', '', 'created_at', int(now))
end
redis.call('HSET', KEYS[1], 'state', 'settled', 'charged', int(actual), 'refunded', int(refunded), 'late', int(late),
  'ended_at', int(now))
redis.call('PEXPIRE', KEYS[1], RECEIPT_TTL)
redis.call('ZREM', KEYS[2], index_name(KEYS[1]))
raise_op(org)
return out
