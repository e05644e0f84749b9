-- base: the clock, number formats and time spans that all scripts share.

local MAX = 9007199254740991 -- 2^53 - 1: the largest amount a Lua number holds exactly
local RECEIPT_TTL = 604800000 -- ms; 7 days, until the settler confirms that it has the answer

-- Redis' own time in microseconds and whole milliseconds.
local function clock()
  local t = redis.call('TIME')
  local us = tonumber(t[1]) * 1000000 + tonumber(t[2])
  return us, math.floor(us / 1000)
end

-- Integers are always written in full: tostring would print 1.7e+15.
local function int(x)
  return string.format('%.0f', x)
end

-- Whether x is an amount: a whole number from 0 to MAX.
local function is_amount(x)
  return x ~= nil and x >= 0 and x <= MAX and x == math.floor(x)
end

-- Words of a space-separated list.
local function words(s)
  local out = {}
  for w in string.gmatch(s, '%S+') do
    out[#out + 1] = w
  end
  return out
end

local function contains(list, word)
  for i = 1, #list do
    if list[i] == word then
      return true
    end
  end
  return false
end
