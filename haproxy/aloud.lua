-- Keeps a streaming request alive that waits for an engine: 200 and a comment line now and then, later the real answer.
--
--   setenv again_BACKEND PATH            the Unix socket that leads to the backend again
--   setenv hold_seconds SECONDS          how long a request waits in all
--   setenv keepalive_seconds SECONDS     between two comment lines
--   setenv stream_seconds SECONDS        longest silence of an engine
--   lua-load hold.lua                    before this file
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

local function milliseconds()
    local now = core.now()
    return now.sec * 1000 + now.usec // 1000
end

local function event(applet, text)
    applet:send("data: " .. text:gsub("[\r\n]+", " ") .. "\n\n")
end

-- The request once more, to the backend's own socket.
local function request(applet, body)
    local lines = { applet.method .. " " .. applet.path .. (applet.qs ~= "" and "?" .. applet.qs or "") .. " HTTP/1.1" }
    for name, values in pairs(applet.headers) do
        for _, value in pairs(OWN[name] and {} or values) do
            table.insert(lines, name .. ": " .. value)
        end
    end
    table.insert(lines, "fleetctl-handed: yes")
    table.insert(lines, "connection: close")
    table.insert(lines, "content-length: " .. #body)
    return table.concat(lines, "\r\n") .. "\r\n\r\n" .. body
end

-- Status and headers of an answer; nil when there is none.
local function head(socket)
    local line = socket:receive("*l")
    local status = tonumber(line and line:match("^HTTP/1%.%d (%d%d%d)"))
    local headers = {}
    while status ~= nil do
        line = socket:receive("*l")
        if line == nil then
            return nil
        end
        local name, value = line:match("^([^:]+):%s*(.-)%s*$")
        if name == nil then
            return status, headers
        end
        headers[name:lower()] = value:lower()
    end
    return nil
end

-- Calls take() with each piece of a body. True when it came to its end.
local function pieces(socket, headers, take)
    if headers["content-length"] ~= nil then
        local body = socket:receive(tonumber(headers["content-length"]))
        if body ~= nil then
            take(body)
        end
        return body ~= nil
    end
    while true do
        local line = socket:receive("*l")
        local size = tonumber(line and line:match("^%x+") or "", 16)
        if size == nil or size == 0 then
            return size == 0
        end
        local piece = socket:receive(size)
        if piece == nil then
            return false
        end
        take(piece)
        socket:receive("*l")
    end
end

local function relay(applet, socket)
    local status, headers = head(socket)
    if status == nil then
        return false
    end
    if status == 200 and (headers["content-type"] or ""):find("text/event-stream", 1, true) then
        return pieces(socket, headers, function(piece)
            applet:send(piece)
        end)
    end
    local body = {}
    local whole = pieces(socket, headers, function(piece)
        table.insert(body, piece)
    end)
    if whole then
        event(applet, table.concat(body))
    end
    return whole
end

core.register_service("aloud", "http", function(applet)
    local name = applet.f:be_name()
    local body = applet:receive()
    applet:set_status(200)
    applet:add_header("content-type", "text/event-stream; charset=utf-8")
    applet:add_header("cache-control", "no-store")
    applet:start_response()
    applet:send(COMMENT)
    local told = milliseconds()
    local deadline = told + hold - keepalive -- it waited for the first comment too
    while wait_is(name) == nil do
        if milliseconds() >= deadline then
            event(applet, EXPIRED)
            return
        end
        if milliseconds() - told >= keepalive then
            applet:send(COMMENT)
            told = milliseconds()
        end
        core.msleep(POLL)
    end
    local socket = core.tcp()
    socket:settimeout(tonumber(os.getenv("stream_seconds")))
    local whole = socket:connect("unix@" .. os.getenv("again_" .. name))
        and socket:send(request(applet, body))
        and relay(applet, socket)
    socket:close()
    if not whole then
        event(applet, LOST)
    end
end)
