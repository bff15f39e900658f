-- One exchange over HTTP with a socket of HAProxy's own: what aloud.lua and bridge.lua have in common.
--
--   lua-load relay.lua     before those two; the table `relay` is what they use

relay = {}

local BLOCK = 1000 -- bytes of a long body that are passed on at a time

function relay.milliseconds()
    local now = core.now()
    return now.sec * 1000 + now.usec // 1000
end

-- A whole request; `lines` are its headers, but for those that belong to the connection and to the body.
function relay.request(method, target, lines, body)
    local all = { method .. " " .. target .. " HTTP/1.1" }
    table.move(lines, 1, #lines, 2, all)
    table.insert(all, "connection: close")
    table.insert(all, "content-length: " .. #body)
    return table.concat(all, "\r\n") .. "\r\n\r\n" .. body
end

-- Status and headers of an answer; nil when there is none.
function relay.head(socket)
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
        headers[name:lower()] = value
    end
    return nil
end

local function counted(socket, length, take)
    local body = length > 0 and socket:receive(length) or ""
    take(body)
    return #body == length
end

local function chunked(socket, take)
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

-- Calls take() with each piece of a body as it comes. True when the body came to its end.
function relay.pieces(socket, headers, take)
    if headers["content-length"] ~= nil then
        return counted(socket, tonumber(headers["content-length"]), take)
    elseif headers["transfer-encoding"] ~= nil then
        return chunked(socket, take)
    end
    -- Only the end of the connection ends it: nobody can tell whether that is all.
    for line in function() return socket:receive("*l") end do
        take(line .. "\n")
    end
    return true
end

function relay.is_stream(headers)
    return (headers["content-type"] or ""):lower():find("text/event-stream", 1, true) ~= nil
end
