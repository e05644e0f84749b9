#!lua flags=allow-oom
-- account: loads accounts that Redis does not hold, and applies one numbered adjustment of a total.
--
-- KEYS   1 conf   2 the org's `ever` account   3…2+n accounts
-- ARGV   1 n   2 gen for accounts loaded here   3 version of the load values   4 op: load | adjust
--        5 number of the adjustment   6 delta, credits   7 "force" or "": a cut below prepaid + spent is refused
--        then per account: load values
-- Reply  status, now ms, n, n × (total, overage_limit, spent, prepaid, leased, max_inflight, inflight, slots_leased)
--        status: ok | duplicate (this number or a later one was decided before) | load (values are stale: read again)
--        | below (total would fall below prepaid + spent) | unlimited (there is no total to adjust) | amount (beyond 0 … 2^53-1)
--        adjust takes exactly one account.
-- Keeps  an adjustment counts once: its number is compared with the account's `adj`, which the load carries too.
-- include: base account

local n = tonumber(ARGV[1])
local _, now = clock()
local conf, org = KEYS[1], KEYS[2]
local accounts = {}
local valid = nil
for i = 1, n do
  local a = account_read(KEYS[2 + i])
  if not a then
    if valid == nil then
      valid = load_valid(conf, ARGV[3])
    end
    a = valid and account_from(KEYS[2 + i], ARGV[7 + i], ARGV[2])
    if not a then
      return { 'load', now, 0 }
    end
  end
  accounts[i] = a
end
local status = 'ok'
local written = false
for i = 1, n do
  written = written or accounts[i].fresh
  account_store_fresh(accounts[i], conf, ARGV[3], org, now)
end
if ARGV[4] == 'adjust' then
  local a = accounts[1]
  local number, total = tonumber(ARGV[5]), a.total + tonumber(ARGV[6])
  if number <= a.adj then
    status = 'duplicate'
  else
    if a.total < 0 then
      status = 'unlimited'
    elseif total < 0 or total + a.overage > MAX then
      status = 'amount'
    elseif tonumber(ARGV[6]) < 0 and total < a.prepaid + a.spent and ARGV[7] ~= 'force' then
      status = 'below'
    else
      a.total = total
    end
    -- A refused number is used up too: a late copy of it must not apply after all.
    a.adj = number
    redis.call('HSET', a.key, 'total', int(a.total), 'adj', int(number))
    account_save(a, now)
    redis.call('HSET', conf, 'adjusted_at', int(now)) -- tells every node that what was short may not be any more
    written = true
  end
end
if written then
  raise_op(org)
end
local out = { status, now, n }
for i = 1, n do
  account_reply(out, accounts[i])
end
return out
