-- Which backend a LoRA adapter belongs to, where there are several: adapters come and go without a reload.
--
--   setenv adapters_file PATH         lines "NAME MODEL", read when HAProxy starts or reloads
--   setenv adapters_models LIST       MODEL=BACKEND=NAME,… for models that take adapters; NAME is what they are served as
--   lua-load adapters.lua
--   http-request lua.adapter          sets txn.adapter to the backend, when txn.model is the name of an adapter
--   lua.adapter_models                the adapters as entries of /v1/models, each with a comma before it
--   fleetctl adapters NAME=MODEL,…    (runtime API) these are all adapters from now on; "-" for none

local NAME = "^[%w][%w._-]*$"

local models = {} -- model -> {backend, the name it is served as}
local known = {} -- name of an adapter -> model
local listed = "" -- what /v1/models has of them

for model, backend, name in (os.getenv("adapters_models") or ""):gmatch("([^=,]+)=([^=,]+)=([^=,]+)") do
    models[model] = { backend, name }
end

local function take(pairs_of)
    local names, entries = {}, {}
    for name, model in pairs_of do
        if name:match(NAME) and models[model] ~= nil then
            names[name] = model
        end
    end
    local sorted = {}
    for name in pairs(names) do
        table.insert(sorted, name)
    end
    table.sort(sorted)
    for _, name in ipairs(sorted) do
        local parent = models[names[name]][2]
        local entry = ',{"id":"%s","object":"model","owned_by":"fleetctl","parent":"%s"}'
        table.insert(entries, entry:format(name, parent))
    end
    known, listed = names, table.concat(entries)
end

local file = io.open(os.getenv("adapters_file") or "", "r")
if file ~= nil then
    take(file:read("a"):gmatch("(%S+) (%S+)"))
    file:close()
end

core.register_action("adapter", { "http-req" }, function(txn)
    local model = known[txn:get_var("txn.model") or ""]
    if model ~= nil then
        txn:set_var("txn.adapter", models[model][1])
    end
end)

core.register_fetches("adapter_models", function()
    return listed
end)

core.register_cli({ "fleetctl", "adapters" }, "fleetctl adapters NAME=MODEL,…", function(applet, ...)
    local words = { ... }
    take((words[#words] or ""):gmatch("([^=,]+)=([^=,]+)"))
    local count = 0
    for _ in pairs(known) do
        count = count + 1
    end
    applet:send("adapters: " .. count .. "\n")
end)
