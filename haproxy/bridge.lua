-- Takes a request that waits for an engine to another endpoint, the bridge, and brings back its answer.
--
--   setenv bridge_model_BACKEND NAME  the model at the bridge, as JSON, for requests of a backend; without: they only wait
--   setenv bridge_socket PATH         the Unix socket that leads to the backend fleetctl_bridge
--   setenv bridge_path PATH           stands before chat/completions and the like at the bridge
--   setenv bridge_host HOST           named in answers
--   setenv bridge_seconds SECONDS     how long a request waits for an engine first
--   setenv bridge_limit COUNT         requests that the bridge takes at once
--   lua-load relay.lua, rename.lua    before this file
--   http-request use-service lua.bridge   for a request that hold.lua found an answer for
--
-- Only an answer with 2xx is passed on. Whatever else comes of it, the request goes on waiting: it never fails because
-- the bridge did. After a failure one request tries it again now and then, until one is answered.

bridge = {}

local POLL = 20 -- milliseconds between two looks at HAProxy's counters
local PAUSE = 5000 -- milliseconds between two tries of a bridge that fails
local SETTLED = 1000 -- milliseconds after which a request that was sent has long been counted by HAProxy
-- Nothing else of what a client says of itself goes to the bridge, and nothing else of the bridge's to the client.
local SENT = { "content-type", "accept" }
local PASSED = { "content-type", "content-length", "x-request-id" }
-- What is wrong with a request itself, for a smaller model at least: the bridge is well.
local REFUSED = { [400] = true, [413] = true, [422] = true }

local after = tonumber(os.getenv("bridge_seconds")) * 1000
local limit = tonumber(os.getenv("bridge_limit"))
local host = os.getenv("bridge_host")
local targets = {}
for _, path in ipairs({ "chat/completions", "completions", "embeddings" }) do
    targets["/v1/" .. path] = os.getenv("bridge_path") .. path
end

local failing, next_try = false, 0
local sent, last_sent = 0, 0
local look = { at = 0, usable = 0, running = 0, seen = 0 }

-- The bridge takes one more request at this moment. All requests that wait share one look at HAProxy's counters; those
-- that were sent and are not counted yet are added.
local function open(now)
    if now < next_try then
        return false
    end
    if now - look.at >= POLL or now < look.at then
        local stats = core.backends.fleetctl_bridge:get_stats()
        look = {
            at = now,
            usable = tonumber(stats.act) or 0,
            running = tonumber(stats.scur) or 0,
            seen = tonumber(stats.stot) or 0,
        }
    end
    if now - last_sent > SETTLED then
        sent = look.seen
    end
    return look.usable > 0 and look.running + sent - look.seen < limit
end

-- What became of a try: a failing bridge is told once, and so is its recovery.
local function note(status)
    local well = status ~= nil and (status < 300 or REFUSED[status])
    if well and failing then
        core.Warning("the bridge " .. host .. " answers again")
    elseif not well and not failing then
        core.Warning("the bridge " .. host .. " fails (" .. (status or "no answer") .. "): requests wait for an engine")
    end
    failing = not well
    next_try = well and 0 or relay.milliseconds() + PAUSE
end

-- Status, headers and the socket of an answer with 2xx; else nil and the status.
local function ask(text)
    local socket = core.tcp()
    socket:settimeout(tonumber(os.getenv("stream_seconds")))
    local status, headers
    if socket:connect("unix@" .. os.getenv("bridge_socket")) and socket:send(text) then
        status, headers = relay.head(socket)
    end
    if status ~= nil and status >= 200 and status < 300 then
        return { status = status, headers = headers, socket = socket }, status
    end
    socket:close()
    return nil, status
end

-- The request as the bridge gets it; nil when its body is not there as a whole, or is no JSON object.
local function request(asked, model)
    local body = asked.body()
    local length = asked.headers["content-length"]
    if body == nil or (length ~= nil and tonumber(length[0]) ~= #body) then
        return nil
    end
    body = renamed(body, model)
    local lines = { "host: bridge", "user-agent: fleetctl" }
    for _, name in ipairs(SENT) do
        for _, value in pairs(asked.headers[name] or {}) do
            table.insert(lines, name .. ": " .. value)
        end
    end
    return body and relay.request("POST", targets[asked.path], lines, body)
end

-- For a request of a backend that waits since some time, in milliseconds: a function that tries the bridge when it is
-- time to, and returns an answer to be passed on, or nil. Nil when the request is none for the bridge.
-- `asked` has method, path, headers, and body(), which is called at most once.
function bridge.crossing(backend, asked, since)
    local model = os.getenv("bridge_model_" .. backend)
    if model == nil or asked.method ~= "POST" or targets[asked.path] == nil then
        return nil
    end
    local due, text = since + after, nil
    return function()
        local now = relay.milliseconds()
        if now < due or not open(now) then
            return nil
        end
        text = text or request(asked, model)
        if text == nil then
            due = math.huge
            return nil
        end
        sent, last_sent = sent + 1, now
        next_try = failing and now + PAUSE or 0
        local answer, status = ask(text)
        note(status)
        if answer ~= nil then
            answer.began = now
        elseif REFUSED[status] then
            due = math.huge
        end
        return answer
    end
end

function bridge.host()
    return host
end

core.register_service("bridge", "http", function(applet)
    local answer = applet:get_priv()
    applet:receive() -- what is left of the request would keep HAProxy busy for ever
    applet:set_status(answer.status)
    for _, name in ipairs(PASSED) do
        if answer.headers[name] ~= nil then
            applet:add_header(name, answer.headers[name])
        end
    end
    applet:add_header("fleetctl-bridge", host)
    applet:start_response()
    local whole = relay.pieces(answer.socket, answer.headers, function(piece)
        applet:send(piece)
    end)
    answer.socket:close()
    if not whole then
        -- HAProxy closes the connection without the last chunk: the client sees that something is missing.
        error("the bridge " .. host .. " broke off an answer")
    end
end)
