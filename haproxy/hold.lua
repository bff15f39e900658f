-- Holds requests while their backend has no usable server.
--
--   http-request lua.hold SECONDS SILENCE     waits; sets txn.hold to "over", "handed" or "expired", and txn.held to the
--                                     milliseconds waited. HAProxy breaks it off when the client leaves: then txn.hold
--                                     is not set. A request with txn.stream waits SILENCE seconds; then it is "aloud".
--                                     Where there is a bridge it is "bridge" when that has an answer for it.
--   lua.usable(BACKEND)               number of usable servers, without the one that leads back to the wait
--
-- A server is usable when it is up, ready and not draining: HAProxy's own count of active servers. After a reload only
-- the new process knows that: what the old one still holds, or gets on a connection that a client kept, is handed over.

local POLL = 20 -- milliseconds between two looks

local HANDED = 100 -- milliseconds between two looks at the queues of an old process

local last = {} -- backend -> {time of the last look in milliseconds, what was seen}

local function milliseconds()
    local now = core.now()
    return now.sec * 1000 + now.usec // 1000
end

local function usable(name)
    return tonumber(core.backends[name]:get_stats().act) or 0
end

-- A reload stops the frontends of the old process.
local function replaced()
    return core.frontends.fleetctl_clients:get_stats().status == "STOP"
end

-- What ends a wait: "handed", "over", or nil. All requests that wait for a backend share one look. Global: aloud.lua too.
function wait_is(name)
    local now, look = milliseconds(), last[name]
    if look == nil or now - look[1] >= POLL or now < look[1] then
        look = { now, replaced() and "handed" or usable(name) > 0 and "over" or nil }
        last[name] = look
    end
    return look[2]
end

-- The way to the bridge for a request that waits since some time; nil where there is none.
local function crossing(txn, name, since)
    local asked = bridge and {
        method = txn.f:method(),
        path = txn.f:path(),
        headers = txn.http:req_get_headers(),
        body = function()
            return txn.f:req_body()
        end,
    }
    return asked and bridge.crossing(name, asked, since)
end

core.register_action("hold", { "http-req" }, function(txn, seconds, silence)
    local name = txn.f:be_name()
    local outcome = "over"
    if replaced() then
        outcome = "handed"
    elseif usable(name) == 0 then
        local start = milliseconds()
        local deadline = start + tonumber(seconds) * 1000
        local patience = txn:get_var("txn.stream") and start + tonumber(silence) * 1000 or deadline
        local cross = crossing(txn, name, start)
        local answer
        outcome = nil
        repeat
            answer = cross and cross()
            if answer then
                txn:set_priv(answer)
                outcome = "bridge"
            elseif milliseconds() >= deadline then
                outcome = "expired"
            elseif milliseconds() >= patience then
                outcome = "aloud"
            else
                core.msleep(POLL)
                outcome = wait_is(name)
            end
        until outcome
        txn:set_var("txn.held", (answer and answer.began or milliseconds()) - start)
    end
    txn:set_var("txn.hold", outcome)
end, 2)

-- What is in the queue of an old process whose engines are gone is handed over as well. It does not check engines any more,
-- and HAProxy sends a queue on only when a server comes up: so the one that leads to the new process does.
local function hand_over_queues()
    while true do
        core.msleep(HANDED)
        for name, backend in pairs(replaced() and core.backends or {}) do
            local again = backend.servers.again
            if again ~= nil and usable(name) == 0 and (tonumber(backend:get_stats().qcur) or 0) > 0 then
                again:set_maint()
                again:set_ready()
            end
        end
    end
end

core.register_task(hand_over_queues)

core.register_fetches("usable", function(_, name)
    return usable(name)
end)
