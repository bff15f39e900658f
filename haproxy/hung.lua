-- Breaks the requests of an engine that has stopped working without ending, so that another one answers them.
--
--   setenv silence_seconds SECONDS   how long nothing may show that an engine works
--   setenv prompt_BACKEND BODY       the JSON of the smallest completion that needs no chat template
--   setenv path_BACKEND PATH         where that is asked, if it is something else: vectors, of an engine that embeds
--   lua-load prove.lua               before this file
--
-- An engine that reads a long prompt says nothing for minutes and must not be touched. So an engine is hung only when it
-- has requests, what its core tells of each of its steps has not changed in /metrics for all of that time, and then it
-- does not answer the smallest completion. If /metrics does not have that, nothing is ever done. Answers that begin prove
-- nothing: vLLM sends the head of a stream before its core has seen the request.
-- HAProxy gives a request to another engine when its connection breaks before the answer began, as if the engine had
-- died; and vLLM gives up a request whose connection is closed. Streams that have begun end.

local AGAIN = 250 -- milliseconds between two questions to an engine that is out
local PATH = "/v1/completions"
-- Written from the core's report of a step alone. The first grows while a long prompt is read, which ends no request.
local STEPS = {
    "vllm:kv_cache_usage_perc", "vllm:iteration_tokens_total_count", "vllm:prompt_tokens_total",
    "vllm:generation_tokens_total", "vllm:num_requests_running", "vllm:num_requests_waiting",
    "sglang:token_usage", "sglang:prompt_tokens_total", "sglang:generation_tokens_total", "sglang:num_running_reqs",
    "llamacpp:n_decode_total", "llamacpp:prompt_tokens_total", "llamacpp:tokens_predicted_total",
}

local limit = tonumber(os.getenv("silence_seconds")) * 1000
local answer, look = math.min(10, limit // 1000), math.min(3, limit // 1000) -- seconds for a completion, for /metrics
local pause = math.floor(math.min(math.max(limit / 10, 200), 5000))

local function milliseconds()
    local now = core.now()
    return now.sec * 1000 + now.usec // 1000
end

local function requests_on(server)
    return tonumber(server:get_stats().scur) or 0
end

-- What the core's steps have changed, as a text: "" from an engine that does not even answer this; nil: cannot be told.
local function steps(server)
    local word, status, text = ask_engine(server, look, "/metrics")
    if word == "silent" then
        return ""
    end
    local found = {}
    if status == 200 then
        for _, name in ipairs(STEPS) do
            for value in text:gmatch("\n" .. name .. "([{ ][^\n]*)") do
                table.insert(found, value)
            end
        end
    end
    return #found > 0 and table.concat(found, "\n") or nil
end

-- Until the engine answers a completion. It gets nothing else meanwhile.
local function break_off(server, name, path, body, count)
    core.Warning(name .. " has done nothing for " .. limit // 1000 .. " s with " .. count .. " requests on it: they are"
        .. " taken from it, and it gets no more until it answers a completion")
    server:set_weight("0%")
    server:shut_sess()
    repeat
        core.msleep(AGAIN)
        local _, status = ask_engine(server, answer, path, body)
    until status == 200
    core.Warning(name .. " answers completions again")
end

-- An engine that prove.lua has taken out already only loses its requests.
local function end_requests(server, name, path, body, count)
    if examined[name] ~= nil then
        server:shut_sess()
        return
    end
    examined[name] = "out"
    local whole, problem = pcall(break_off, server, name, path, body, count)
    if not whole then
        core.Alert("hung.lua: " .. tostring(problem))
    end
    server:set_weight("100%")
    examined[name] = nil
end

local function watch(server, name, path, body)
    local since, before = nil, nil -- milliseconds, and what was seen then and ever since
    while true do
        core.msleep(pause)
        local now = requests_on(server) > 0 and steps(server) or nil
        if now == nil then
            since = nil
        elseif since == nil or now ~= before then
            since, before = milliseconds(), now
        elseif milliseconds() - since >= limit and examined[name] ~= "suspect" then
            since = nil
            if ask_engine(server, answer, path, body) == "silent" and steps(server) == before then
                local count = requests_on(server)
                if count > 0 then
                    end_requests(server, name, path, body, count)
                end
            end
        end
    end
end

core.register_init(function()
    for label, backend in pairs(core.backends) do
        local body, path = os.getenv("prompt_" .. label), os.getenv("path_" .. label) or PATH
        for name, server in pairs(body and backend.servers or {}) do
            if name ~= "again" then
                core.register_task(function()
                    watch(server, label .. "/" .. name, path, body)
                end)
            end
        end
    end
end)
