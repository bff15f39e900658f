-- Keeps a streaming request alive that waits for an engine: 200 and a comment line now and then, later the real answer.
--
--   setenv again_BACKEND PATH            the Unix socket that leads to the backend again
--   setenv hold_seconds SECONDS          how long a request waits in all
--   setenv keepalive_seconds SECONDS     between two comment lines
--   setenv stream_seconds SECONDS        longest silence of an engine
--   lua-load hold.lua, relay.lua         before this file
--   http-request use-service lua.aloud   for a request that hold.lua found "aloud"
--
-- The status is spent with the first comment: whatever goes wrong from then on is an event with an error. HAProxy ends
-- the service when its client leaves, and with it the connection to the engine.

local POLL = 20 -- milliseconds between two looks
local COMMENT = ": waiting for an engine\n\n"
local EXPIRED = '{"error": {"message": "No engine was ready to take the request in time.", '
    .. '"type": "service_unavailable", "param": null, "code": "no_engine"}}'
local LOST = '{"error": {"message": "The engine went away while it answered.", '
    .. '"type": "server_error", "param": null, "code": "engine_lost"}}'
-- Belong to one connection, or are written anew.
local OWN = { ["connection"] = true, ["content-length"] = true, ["transfer-encoding"] = true, ["expect"] = true }

local hold = tonumber(os.getenv("hold_seconds")) * 1000
local keepalive = tonumber(os.getenv("keepalive_seconds")) * 1000

local function event(applet, text)
    applet:send("data: " .. text:gsub("[\r\n]+", " ") .. "\n\n")
end

-- The request once more, to the backend's own socket.
local function request(applet, body)
    local lines = {}
    for name, values in pairs(applet.headers) do
        for _, value in pairs(OWN[name] and {} or values) do
            table.insert(lines, name .. ": " .. value)
        end
    end
    table.insert(lines, "fleetctl-handed: yes")
    return relay.request(applet.method, applet.path .. (applet.qs ~= "" and "?" .. applet.qs or ""), lines, body)
end

-- Passes an answer on as events. True when it came to its end.
local function pass(applet, socket, status, headers)
    if status == nil then
        return false
    end
    if status == 200 and relay.is_stream(headers) then
        return relay.pieces(socket, headers, function(piece)
            applet:send(piece)
        end)
    end
    local body = {}
    local whole = relay.pieces(socket, headers, function(piece)
        table.insert(body, piece)
    end)
    if whole then
        event(applet, table.concat(body))
    end
    return whole
end

-- Comments until there is an engine. False when none came in time; an answer when the bridge had one before.
local function wait(applet, name, body)
    local told = relay.milliseconds()
    local since = told - keepalive -- it waited for the first comment too
    local asked = {
        method = applet.method,
        path = applet.path,
        headers = applet.headers,
        body = function()
            return body
        end,
    }
    local cross = bridge and bridge.crossing(name, asked, since)
    while wait_is(name) == nil do
        local answer = cross and cross()
        if answer then
            applet:send(": fleetctl-bridge: " .. bridge.host() .. "\n\n")
            return answer
        end
        local now = relay.milliseconds()
        if now >= since + hold then
            return false
        end
        if now - told >= keepalive then
            applet:send(COMMENT)
            told = now
        end
        core.msleep(POLL)
    end
    return nil
end

core.register_service("aloud", "http", function(applet)
    local name = applet.f:be_name()
    local body = applet:receive()
    applet:set_status(200)
    applet:add_header("content-type", "text/event-stream; charset=utf-8")
    applet:add_header("cache-control", "no-store")
    applet:start_response()
    applet:send(COMMENT)
    local answer = wait(applet, name, body)
    if answer == false then
        event(applet, EXPIRED)
        return
    end
    local socket, whole = answer and answer.socket or core.tcp(), nil
    if answer then
        whole = pass(applet, socket, answer.status, answer.headers)
    else
        socket:settimeout(tonumber(os.getenv("stream_seconds")))
        whole = socket:connect("unix@" .. os.getenv("again_" .. name))
            and socket:send(request(applet, body))
            and pass(applet, socket, relay.head(socket))
    end
    socket:close()
    if not whole then
        event(applet, LOST)
    end
end)
