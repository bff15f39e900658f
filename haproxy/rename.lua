-- Another model's name in the JSON body of a request; every other byte stays as it is.
--
--   renamed(BODY, NAME)   BODY with NAME, which is JSON itself, as the value of "model"; nil when BODY is no JSON object
--
-- Only the outermost object counts. No client may get around the name, so it is replaced wherever some reader of JSON
-- would look for it: every time that it is there, written with escapes, in capitals (Go reads those too).

local function after_space(text, at)
    return text:match("^[ \t\r\n]*()", at)
end

-- Where the text goes on after the string that begins at `at`; nil when it does not end.
local function after_string(text, at)
    repeat
        at = text:find('["\\]', at + 1)
        if at == nil or text:sub(at, at) == '"' then
            return at and at + 1
        end
        at = at + 1 -- whatever comes after a backslash
    until false
end

-- Where the text goes on after the value that begins at `at`; nil when it does not end.
local function after_value(text, at)
    local first = text:sub(at, at)
    if first == '"' then
        return after_string(text, at)
    elseif first ~= "{" and first ~= "[" then
        return text:match("^[%w+.-]+()", at)
    end
    local depth = 0
    repeat
        at = text:find('["%[%]{}]', at)
        local found = at and text:sub(at, at)
        if found == '"' then
            at = after_string(text, at)
        elseif found ~= nil then
            depth = depth + ((found == "{" or found == "[") and 1 or -1)
            at = at + 1
        end
        if at == nil then
            return nil
        end
    until depth == 0
    return at
end

-- The key of a member whose text in quotes is given.
local function plain(quoted)
    return (quoted:sub(2, -2):gsub("\\u(%x%x%x%x)", function(digits)
        local code = tonumber(digits, 16)
        return code < 128 and string.char(code) or "?"
    end))
end

function renamed(body, name)
    local at = after_space(body, 1)
    if body:sub(at, at) ~= "{" then
        return nil
    end
    local begin = at + 1
    local parts, copied, named = {}, begin, false
    at = after_space(body, begin)
    local empty = body:sub(at, at) == "}"
    while not empty do
        local key_end = body:sub(at, at) == '"' and after_string(body, at)
        local colon = key_end and after_space(body, key_end)
        if not colon or body:sub(colon, colon) ~= ":" then
            return nil
        end
        local value = after_space(body, colon + 1)
        local value_end = after_value(body, value)
        if value_end == nil then
            return nil
        end
        local key = plain(body:sub(at, key_end - 1))
        if key:lower() == "model" then
            table.insert(parts, body:sub(copied, value - 1) .. name)
            copied, named = value_end, named or key == "model"
        end
        at = after_space(body, value_end)
        local mark = body:sub(at, at)
        if mark == "}" then
            break
        elseif mark ~= "," then
            return nil
        end
        at = after_space(body, at + 1)
    end
    if after_space(body, at + 1) ~= #body + 1 then
        return nil
    end
    local missing = named and "" or '"model": ' .. name .. (empty and "" or ", ")
    return body:sub(1, begin - 1) .. missing .. table.concat(parts) .. body:sub(copied)
end
