-- Keeps a conversation on the copy whose cache has it, as far as load allows; all else is left to leastconn.
--
--   http-request set-var(txn.lead) …   a hash of how the conversation begins; without it nothing is done
--   http-request lua.prefer            sets txn.prefer to a server's name, or not
--
-- Which copy that is follows from the hash alone (each copy draws a number from it, the highest wins), so that reloads and
-- other proxies agree, and a copy that comes or goes moves only its own conversations. It is taken only if it has a free
-- place and not much more to do than the others: a request that waits, or that makes others wait, costs more than what the
-- cache saves. Else leastconn chooses, and if all are full the request waits in the queue that is shared: one that waits in
-- a copy's own queue would stay there while the other is free, or when its copy gets no more requests.

local FACTOR = 1.5 -- how much more than an equal share of the running requests a copy may have because of this

-- A number that looks random for each (hash, name), the same each time.
local function draw(lead, name)
    local value = lead
    for index = 1, #name do
        value = (value ~ name:byte(index)) * 0x100000001b3
    end
    value = (value ~ (value >> 30)) * -0x40a7b892e31b1a47
    value = (value ~ (value >> 27)) * -0x6b2fb644ecceee15
    return value ~ (value >> 31)
end

core.register_action("prefer", { "http-req" }, function(txn)
    local lead = txn:get_var("txn.lead")
    if lead == nil then
        return
    end
    local running, copies, best = 1, 0, nil
    for name, server in pairs(core.backends[txn.f:be_name()].servers) do
        local told = name ~= "again" and server:get_stats()
        if told and told.status:sub(1, 2) == "UP" and (tonumber(told.weight) or 0) > 0 then
            local busy, drawn = tonumber(told.scur) or 0, draw(lead, name)
            running, copies = running + busy, copies + 1
            if best == nil or drawn > best.drawn then
                best = { name = name, drawn = drawn, busy = busy, places = tonumber(told.slim) or math.huge }
            end
        end
    end
    if copies > 1 and best.busy < best.places and best.busy < math.ceil(FACTOR * running / copies) then
        txn:set_var("txn.prefer", best.name)
    end
end)
