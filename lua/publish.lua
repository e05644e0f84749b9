#!lua flags=allow-oom
-- publish: writes one document of a tenant or API key, and the limits it sets to the accounts that Redis holds.
--
-- KEYS   1 the hash that holds the document (conf of a tenant, or of one API key)   then n accounts
-- ARGV   1 field   2 version of the document   3 the document, JSON
--        then per account: total or "", overage_limit or "", max_inflight or ""; "" leaves it
-- Reply  status, now ms: ok | old (Redis has this version or a newer one; nothing written)
-- Keeps  documents and limits never go back: an older version writes neither. `version` is the highest published,
--        which load values are compared with. Usage is never touched.
-- include: base account

local _, now = clock()
local version = tonumber(ARGV[2])
local stored = redis.call('HGET', KEYS[1], ARGV[1])
if stored and tonumber(string.match(stored, '^(%d+) ')) >= version then
  return { 'old', now }
end
redis.call('HSET', KEYS[1], ARGV[1], int(version) .. ' ' .. ARGV[3])
local published = redis.call('HGET', KEYS[1], 'version')
if not published or tonumber(published) < version then
  redis.call('HSET', KEYS[1], 'version', int(version))
end
local names = { 'total', 'overage_limit', 'max_inflight' }
for i = 2, #KEYS do
  local a = account_read(KEYS[i])
  if a then
    for j = 1, 3 do
      local value = ARGV[3 + (i - 2) * 3 + j]
      if value ~= '' then
        redis.call('HSET', KEYS[i], names[j], value)
      end
    end
    account_save(a, now)
  end
end
return { 'ok', now }
