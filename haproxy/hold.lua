-- Holds requests while their backend has no usable server.
--
--   http-request lua.hold SECONDS     waits; sets txn.held (milliseconds waited) and, when it was in vain, txn.held_out
--   lua.usable(BACKEND)               number of usable servers, without the one that leads back to the wait
--
-- A server is usable when it is up, ready and not draining: HAProxy's own count of active servers.

local POLL = 20 -- milliseconds between two looks

local seen = {} -- backend -> {time of the look in milliseconds, usable servers}

local function milliseconds()
    local now = core.now()
    return now.sec * 1000 + now.usec // 1000
end

local function usable(name)
    local now = milliseconds()
    local look = seen[name]
    if look == nil or now - look[1] >= POLL or now < look[1] then
        look = { now, tonumber(core.backends[name]:get_stats().act) or 0 }
        seen[name] = look
    end
    return look[2]
end

core.register_action("hold", { "http-req" }, function(txn, seconds)
    local name = txn.f:be_name()
    if usable(name) > 0 then
        return
    end
    local start = milliseconds()
    local deadline = start + tonumber(seconds) * 1000
    while usable(name) == 0 do
        if milliseconds() >= deadline then
            txn:set_var("txn.held_out", true)
            break
        end
        core.msleep(POLL)
    end
    txn:set_var("txn.held", milliseconds() - start)
end, 1)

core.register_fetches("usable", function(_, name)
    return usable(name)
end)
