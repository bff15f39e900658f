-- Takes an engine out of the rotation that fails completions while its /health is 200, until it answers one.
--
--   setenv question_BACKEND BODY     the JSON of the smallest chat completion; HAProxy 2.6 gives scripts no arguments
--   setenv path_BACKEND PATH         where it is asked, if it is something else: vectors, of an engine that embeds
--   lua-load prove.lua
--
-- A request that failed on an engine makes it suspect: one that was tried again, or an answer with 5xx. It gets no more
-- requests while it is asked itself, if there is another one to take them. Its word counts: 5xx, or a connection closed
-- without a word, keeps its weight at 0; anything below 500 gives it back. So a failure that lies in the request costs
-- nothing. Refused and silent connections are for the health checks, and a busy engine may not answer in time.

local LOOK = 5 -- milliseconds between two looks at the counters: HAProxy tries again within this time or two
local AGAIN = 250 -- milliseconds between two questions to an engine that is out
local SUSPECT, OUT = 2, 10 -- seconds for an answer, from an engine that is suspect or out
local PATH = "/v1/chat/completions"

-- BACKEND/SERVER -> "suspect" or "out": whoever wrote that here has the say over its weight. Global: hung.lua too.
examined = {}

-- Of a server or a backend. Only ever grows, but for "clear counters".
local function failures(told)
    local counters = told:get_stats()
    return (tonumber(counters.wretr) or 0) + (tonumber(counters.hrsp_5xx) or 0)
end

-- A reload stops the frontends of the old process: its servers are not asked any more.
local function replaced()
    return core.frontends.fleetctl_clients:get_stats().status == "STOP"
end

-- Milliseconds since some time.
local function milliseconds()
    local now = core.now()
    return now.sec * 1000 + now.usec // 1000
end

-- One HTTP exchange with an engine. "answered" with status and body, "failed" (5xx, or a connection closed without a
-- word), "silent", or nil when it cannot be reached. Global: hung.lua too.
function ask_engine(server, seconds, path, body)
    local host, port = server:get_addr():match("^(.*):(%d+)$")
    if host == nil then
        return nil
    end
    host = host:find(":", 1, true) and host:sub(1, 1) ~= "[" and "[" .. host .. "]" or host
    local socket = core.tcp()
    socket:settimeout(seconds)
    local late = milliseconds() + seconds * 1000 - 100
    local word, status, text = nil, nil, nil
    if socket:connect(host, tonumber(port)) then
        local head = (body and "POST " or "GET ") .. path .. " HTTP/1.1\r\nHost: " .. host .. ":" .. port
        if body ~= nil then
            head = head .. "\r\nContent-Type: application/json\r\nContent-Length: " .. #body
        end
        socket:send(head .. "\r\nConnection: close\r\n\r\n" .. (body or ""))
        local line = socket:receive("*l")
        status = tonumber(line and line:match("^HTTP/1%.%d (%d%d%d)"))
        if status ~= nil then
            word = status < 500 and "answered" or "failed"
            text = body == nil and socket:receive("*a") or ""
        else
            word = milliseconds() < late and "failed" or "silent"
        end
    end
    socket:close()
    return word, status, text
end

-- Until the engine is well, or is found to be no matter of completions.
local function examine(server, name, body, path)
    local word = ask_engine(server, SUSPECT, path, body)
    if word == "failed" then
        examined[name] = "out"
        server:set_weight("0%")
        core.Warning(name .. " fails completions: it gets no requests until it answers one")
        repeat
            core.msleep(AGAIN)
            word = ask_engine(server, OUT, path, body)
        until word == "answered" or replaced()
        core.Warning(name .. " answers completions again")
    end
    server:set_weight("100%")
end

local function watch(label, backend, body, path)
    local known = {}
    local seen = failures(backend)
    for name, server in pairs(backend.servers) do
        known[name] = failures(server)
    end
    while not replaced() do
        core.msleep(LOOK)
        local now = failures(backend)
        if now ~= seen then
            seen = now
            for name, server in pairs(backend.servers) do
                local count, full = failures(server), label .. "/" .. name
                local suspect = count > known[name] and name ~= "again" and not examined[full]
                known[name] = count
                if suspect then
                    examined[full] = "suspect"
                    if (tonumber(backend:get_stats().act) or 0) > 1 then
                        server:set_weight("0%")
                    end
                    core.register_task(function()
                        local whole, problem = pcall(examine, server, full, body, path)
                        if not whole then
                            -- An engine is never left out for a fault of this script.
                            server:set_weight("100%")
                            core.Alert("prove.lua: " .. tostring(problem))
                        end
                        examined[full] = nil
                    end)
                end
            end
        end
    end
end

core.register_init(function()
    for name, backend in pairs(core.backends) do
        local body = os.getenv("question_" .. name)
        if body ~= nil then
            core.register_task(function()
                watch(name, backend, body, os.getenv("path_" .. name) or PATH)
            end)
        end
    end
end)
