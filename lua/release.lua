#!lua flags=allow-oom
-- release: ends a hold without a charge and frees it; the reaper's expiry and the voiding of unknown outcomes are the same act.
--
-- KEYS   1 hold   2 deadlines   3 conf   4…3+n accounts of the hold's chain, in its order   then nb tpm buckets
--        last, if ARGV 7 is not "": the hold's once-only mark, which is freed
-- ARGV   1 n   2 nb   3 outcome: release | expired | void   4 attempt to void   5 "undo": a voided consume is taken back; "" it stands
--        6 fingerprint, remembered by a tombstone   7 "" or "mark"
--        then per bucket: capacity, rate, seconds of its period, 0
-- Reply  status, now ms, duplicate 0|1, refunded, charged, state of the hold after the call, n,
--        n × (total, overage_limit, spent, prepaid, leased, max_inflight, inflight, slots_leased)
--        status: ok | unknown | settled (it was charged, the charge stands) | early (not yet expired) | shared (another attempt owns it)
--        | chain (not the hold's chain)
--        Only ok and shared write (and expired drops an index entry that has no live hold); void of an unknown id leaves a tombstone for 24 h and answers ok.
-- Keeps  I1: the hold's own amount is freed, once, where the account is still the one it was frozen on (gen).
-- include: base account bucket

local n, nb = tonumber(ARGV[1]), tonumber(ARGV[2])
local outcome, attempt = ARGV[3], ARGV[4]
local us, now = clock()
local org = KEYS[4]
local h = redis.call('HMGET', KEYS[1], 'state', 'amount', 'gens', 'charged', 'deadline', 'tokens', 'chain', 'attempts', 'voids', 'kind')
local state = h[1]
local amount = tonumber(h[2] or '0')
local undo = outcome == 'void' and ARGV[5] == 'undo' and state == 'settled' and h[10] == 'consume'

local function head(status, dup, refunded, charged, after)
  return { status, now, dup, refunded, charged, after, 0 }
end

-- Voids: who made the hold, or found it as a repeat, is on the list of
-- attempts; the last one off it ends the hold. A voided attempt that runs late
-- finds itself in `voids` and writes nothing.
local list, voids = {}, {}
if outcome == 'void' then
  voids = words(h[9] or '')
  if contains(voids, attempt) then
    return head('ok', 1, 0, 0, state or '')
  end
  voids[#voids + 1] = attempt
  if #voids > 8 then
    table.remove(voids, 1)
  end
  if not state then
    redis.call('HSET', KEYS[1], 'state', 'void', 'amount', '0', 'fp', ARGV[6], 'voids', attempt, 'created_at', int(now))
    redis.call('PEXPIRE', KEYS[1], 86400000)
    return head('ok', 0, 0, 0, 'void')
  end
  local mine = false
  local all = words(h[8] or '')
  for i = 1, #all do
    if all[i] == attempt then
      mine = true
    else
      list[#list + 1] = all[i]
    end
  end
  if mine and #list == 0 and (state == 'held' or undo) and not same_chain(h[7], n) then
    return head('chain', 0, 0, 0, state)
  end
  redis.call('HSET', KEYS[1], 'attempts', table.concat(list, ' '), 'voids', table.concat(voids, ' '))
  if #list > 0 or not mine then
    return head('shared', 0, 0, 0, state)
  end
end

if outcome == 'expired' and state ~= 'held' then
  redis.call('ZREM', KEYS[2], index_name(KEYS[1])) -- an index entry without a live hold
end
if not state then
  return head('unknown', 0, 0, 0, '')
end
if state == 'settled' and not undo then
  return head('settled', 0, 0, tonumber(h[4]), state)
end
if state ~= 'held' and not undo then
  return head('ok', 1, amount, 0, state)
end
if outcome == 'expired' and now < tonumber(h[5]) then
  return head('early', 0, 0, 0, state)
end
if not same_chain(h[7], n) then
  return head('chain', 0, 0, 0, state)
end

local gens = words(h[3])
local after = ({ release = 'released', expired = 'expired', void = 'void' })[outcome]
local out = head('ok', 0, amount, 0, after)
for i = 1, n do
  local a = account_read(KEYS[3 + i])
  if a and a.gen == gens[i] then
    if undo then
      a.spent = a.spent - amount
    else
      a.prepaid = a.prepaid - amount
      if i <= 3 then
        a.inflight = a.inflight - 1
      end
    end
    account_save(a, now)
    account_refunded(a, amount)
  end
  if a then
    account_reply(out, a)
    out[7] = out[7] + 1
  end
end
local taken = tonumber(h[6] or '0')
for i = 1, nb do
  local at = 7 + (i - 1) * 4
  local b = bucket_read(KEYS[3 + n + i], tonumber(ARGV[at + 1]), tonumber(ARGV[at + 2]), tonumber(ARGV[at + 3]), us)
  bucket_add(b, taken)
  bucket_write(b)
end
if ARGV[7] ~= '' then
  mark_end(KEYS[#KEYS], nil)
end
redis.call('HSET', KEYS[1], 'state', after, 'charged', '0', 'refunded', int(amount), 'ended_at', int(now))
redis.call('PEXPIRE', KEYS[1], RECEIPT_TTL)
redis.call('ZREM', KEYS[2], index_name(KEYS[1]))
raise_op(org)
return out
